//! `lab dev mutate STAGE`: kernels broken on purpose, and whether the stage's suite notices. `lab dev mutate
//! corpus`: the headers of instructions, and whether the corpus's verdicts do. `lab dev mutate lab-lstm`: a model's own kernels, by its checks.

mod report;
mod suite;

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lab_mutate::{
    Code, Codes, Equivalents, Judge, Kernel, Mutant, Operator, Sources, Verdict, mutants,
};
use rayon::prelude::*;

use self::report::{Outcome, print_list, report};
pub(crate) use self::suite::Suite;
use crate::Common;
use crate::failure::Failure;
use lab_device::emulator::shown;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The stage, as `lab list` names it; a model with kernels of its own, such as lab-lstm; or corpus: the headers of single instructions
    /// (shared/cuda/lab/ptx) that its kernels include, each judged by the verdicts on those kernels
    /// (`lab dev corpus`) and by their numbers
    stage: String,
    /// One kind of mutation; --list names them
    #[arg(long)]
    operator: Option<String>,
    /// One file: a kernel file or a device header, by its name or the end of its path
    #[arg(long)]
    file: Option<String>,
    /// Says what would be done
    #[arg(long)]
    list: bool,
    /// Mutants at a time; by default one for each core
    #[arg(long)]
    jobs: Option<std::num::NonZeroUsize>,
    /// Seconds that the suite may take for one mutant; by default ten times what it takes for the
    /// kernel as it is, and 5 s more; 60 s where versions do not tell their kernel files
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Not the kernels as they are first: where the suite has just passed. Needs --timeout
    #[arg(long, requires = "timeout")]
    no_clean: bool,
    /// Also runs the checks of large problems
    #[arg(long)]
    large: bool,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let suite = Suite::named(&arguments.stage)?;
    let operator = arguments.operator.as_deref().map(str::parse::<Operator>).transpose();
    let operator = operator.map_err(|e| Failure::Usage(format!("--{e}")))?;
    let sources = suite.sources()?;
    let equivalents = Equivalents::read(&sources)?;
    let mut all = Vec::new();
    for (file, text) in sources.files().filter(|(file, _)| suite.breaks(file)) {
        let found = mutants(file, text)?.into_iter();
        all.extend(found.filter(|m| suite.is_corpus() || !m.operator.is_of_instructions()));
    }
    equivalents.check(&all, &sources)?;
    if let Some(file) = &arguments.file {
        let ends = |path: &str| path == file || path.ends_with(&format!("/{file}"));
        let known: Vec<_> = sources.files().map(|f| f.0).filter(|f| suite.breaks(f)).collect();
        if !known.iter().any(|path| ends(path)) {
            let file = shown(file, 60);
            let message = format!("--file: expected one of {}, got '{file}'", known.join(", "));
            return Err(Failure::Usage(message));
        }
        all.retain(|m| ends(&m.edit.file));
    }
    all.retain(|m| operator.is_none_or(|o| o == m.operator));
    if arguments.list {
        print_list(common, &all);
        return Ok(());
    }
    let jobs = jobs(arguments.jobs);
    // The kernels as they are may take their time: nothing is known of them yet, nor of the machine.
    let mut judge = suite.judge(arguments.timeout.unwrap_or(600), arguments.large, jobs)?;
    let start = Instant::now();
    judge.limits = match arguments.timeout {
        Some(seconds) if arguments.no_clean => {
            suite.trusted(kernels_reached(&sources, &all).into_keys(), seconds)
        }
        timeout => check_unbroken_suite(&suite, &judge, &sources, &all, timeout, jobs)?,
    };
    judge.limit = Duration::from_secs(arguments.timeout.unwrap_or(60));
    // Of a kernel that is emptied nobody makes the same code.
    if operator != Some(Operator::EmptyKernel) {
        judge.codes = codes(&sources, &all, jobs)?;
    }
    let outcomes = judge_all(&judge, &sources, &equivalents, all, jobs)?;
    report(common, &sources, &outcomes, start.elapsed());
    Ok(())
}

/// Runs the suite on the kernels as they are: it must pass, or nothing can be said of mutants.
/// Where versions tell their kernel files, by each file that a mutant reaches: then a mutant's
/// suite is that of the versions it can reach, and gets a limit from the time that this took.
fn check_unbroken_suite(
    suite: &Suite,
    judge: &Judge,
    sources: &Sources,
    mutants: &[Mutant],
    seconds: Option<u64>,
    jobs: usize,
) -> Result<BTreeMap<String, Duration>, Failure> {
    let passes = |judge: &Judge, files: &[&str]| -> Result<(), Failure> {
        match judge.run(None, files)? {
            Verdict::Caught(_, said) => Err(Failure::Usage(format!(
                "{} fails as it is, so that nothing can be said of its mutants: {said}",
                sources.stage
            ))),
            _ => Ok(()),
        }
    };
    if !suite.tells_files() {
        passes(judge, &[])?;
        return Ok(BTreeMap::new());
    }
    let limit = |file: &str| {
        let start = Instant::now();
        let limits_of_one = [(file.to_owned(), judge.limit)].into();
        passes(&Judge { limits: limits_of_one, ..judge.clone() }, &[file])?;
        let own = start.elapsed() * 10 + Duration::from_secs(5);
        Ok((file.to_owned(), seconds.map_or(own, Duration::from_secs)))
    };
    let reached = kernels_reached(sources, mutants);
    pool(jobs)?.install(|| reached.par_iter().map(|(file, _)| limit(file)).collect())
}

/// What the kernel files that a mutant reaches compile to as they are.
fn codes(sources: &Sources, mutants: &[Mutant], jobs: usize) -> Result<Codes, Failure> {
    let code = |(file, kernel): (&&str, &&Kernel)| {
        Ok(((*file).to_owned(), Code::unbroken(sources, kernel)?))
    };
    let reached = kernels_reached(sources, mutants);
    pool(jobs)?.install(|| reached.par_iter().map(code).collect())
}

/// The kernel files that a mutant reaches, by their names as the stage has them.
fn kernels_reached<'a>(
    sources: &'a Sources,
    mutants: &[Mutant],
) -> BTreeMap<&'static str, &'a Kernel> {
    let files: BTreeSet<&str> = mutants.iter().map(|m| m.edit.file.as_str()).collect();
    let of_file = |file: &str| sources.reached(file, None);
    files.into_iter().flat_map(of_file).map(|k| (k.source.file, k)).collect()
}

/// So many workers.
pub(crate) fn pool(jobs: usize) -> Result<rayon::ThreadPool, Failure> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs).build();
    pool.map_err(|e| Failure::Usage(format!("--jobs: {e}")))
}

pub(crate) fn jobs(given: Option<std::num::NonZeroUsize>) -> usize {
    given.or_else(|| std::thread::available_parallelism().ok()).map_or(1, |n| n.get())
}

fn judge_all(
    judge: &Judge,
    sources: &Sources,
    equivalents: &Equivalents,
    all: Vec<Mutant>,
    jobs: usize,
) -> Result<Vec<Outcome>, Failure> {
    let (done, count) = (AtomicUsize::new(0), all.len());
    let bar = ProgressBar::new(count as u64);
    bar.set_style(ProgressStyle::with_template("{wide_bar} {pos}/{len}").expect("a template"));
    let pool = pool(jobs)?;
    let terminal = std::io::stderr().is_terminal();
    let one = |mutant: Mutant| {
        let verdict = judge.judge(sources, &mutant.edit, Some(&mutant.function))?;
        bar.inc(1);
        done.fetch_add(1, Ordering::Relaxed);
        let text = sources.text(&mutant.edit.file).unwrap_or_default();
        let reason = match verdict {
            Verdict::SameCode => Some("The compiler makes the same code of it."),
            _ => equivalents.reason(&mutant, text),
        };
        let reason = reason.map(str::to_owned);
        // A run that is cut short has said so much.
        if !terminal && reason.is_none() && verdict == Verdict::Survived {
            note!("survived: {}:{}: {}", mutant.edit.file, mutant.line, mutant.edit.replacement);
        }
        Ok(Outcome { mutant, reason, verdict })
    };
    let work = || pool.install(|| all.into_par_iter().map(one).collect());
    let outcomes = if terminal { work() } else { with_progress(&done, count, work) };
    bar.finish_and_clear();
    outcomes
}

/// Where no bar is drawn: a line every ten seconds while the work lasts.
fn with_progress<T>(done: &AtomicUsize, count: usize, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let (ended, wait) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let each = Duration::from_secs(10);
            while wait.recv_timeout(each) == Err(RecvTimeoutError::Timeout) {
                let done = done.load(Ordering::Relaxed);
                note!("{done} of {count} mutants after {:.0} s", start.elapsed().as_secs_f64());
            }
        });
        let outcome = work();
        drop(ended);
        outcome
    })
}

/// The first lines of what a run said.
pub(crate) fn head(said: &str) -> String {
    let kept: Vec<_> = said.lines().take(6).collect();
    let more = if said.lines().count() > kept.len() { "\n…" } else { "" };
    kept.join("\n") + more
}

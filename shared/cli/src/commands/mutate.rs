//! `lab mutate STAGE`: kernels broken on purpose, and whether the stage's suite notices.

mod report;

use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lab_harness::Stage;
use lab_mutate::{Equivalents, Judge, Mutant, Operator, Sources, Verdict, Workspace, mutants};
use rayon::prelude::*;

use self::report::{Outcome, print_list, report};
use crate::failure::Failure;
use crate::{Common, stage};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The stage, as `lab list` names it
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
    /// Seconds that the suite may take for one mutant
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Also runs the checks whose names begin with `large`
    #[arg(long)]
    large: bool,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let stage = stage(&arguments.stage)?;
    let operator = arguments.operator.as_deref().map(str::parse::<Operator>).transpose();
    let operator = operator.map_err(|e| Failure::Usage(format!("--{e}")))?;
    let sources = sources(stage)?;
    let equivalents = Equivalents::read(&sources)?;
    let mut all = Vec::new();
    for (file, text) in sources.files() {
        all.extend(mutants(file, text)?);
    }
    equivalents.check(&all, &sources)?;
    if let Some(file) = &arguments.file {
        let ends = |path: &str| path == file || path.ends_with(&format!("/{file}"));
        if !sources.files().any(|(path, _)| ends(path)) {
            let known: Vec<_> = sources.files().map(|f| f.0).collect();
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
    let judge = judge(stage, arguments.timeout, arguments.large, jobs(arguments.jobs))?;
    let start = Instant::now();
    if let Verdict::Caught(_, said) = judge.run(None)? {
        return Err(Failure::Usage(format!(
            "{} fails as it is, so that nothing can be said of its mutants: {said}",
            stage.name
        )));
    }
    let outcomes = judge_all(&judge, &sources, &equivalents, all, jobs(arguments.jobs))?;
    report(common, &sources, &outcomes, start.elapsed());
    Ok(())
}

/// The sources of a stage, which must be those that this binary was built from.
pub(crate) fn sources(stage: &Stage) -> Result<Sources, Failure> {
    let here =
        std::env::current_dir().map_err(|e| Failure::Usage(format!("current directory: {e}")))?;
    Ok(Sources::read(&Workspace::find(&here)?, stage.name, stage.kernels)?)
}

fn jobs(given: Option<std::num::NonZeroUsize>) -> usize {
    given.or_else(|| std::thread::available_parallelism().ok()).map_or(1, |n| n.get())
}

/// This tool, told to run the stage's suite up to its first failure.
pub(crate) fn judge(
    stage: &Stage,
    seconds: u64,
    large: bool,
    jobs: usize,
) -> Result<Judge, Failure> {
    let program =
        std::env::current_exe().map_err(|e| Failure::Usage(format!("this program: {e}")))?;
    let mut arguments = vec!["selftest", stage.name, "--device", "emulator", "--fail-fast"];
    if !large {
        arguments.push("--small");
    }
    let threads = (self::jobs(None) / jobs).max(1).to_string();
    let environment = [
        ("LAB_EMULATOR_MODE", "checked"),
        ("LAB_EMULATOR_THREADS", &threads),
        ("RAYON_NUM_THREADS", &threads),
    ];
    Ok(Judge {
        program,
        arguments: arguments.into_iter().map(str::to_owned).collect(),
        environment: environment.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
        limit: Duration::from_secs(seconds),
    })
}

fn judge_all(
    judge: &Judge,
    sources: &Sources,
    equivalents: &Equivalents,
    all: Vec<Mutant>,
    jobs: usize,
) -> Result<Vec<Outcome>, Failure> {
    let bar = ProgressBar::new(all.len() as u64);
    bar.set_style(ProgressStyle::with_template("{wide_bar} {pos}/{len}").expect("a template"));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs).build();
    let pool = pool.map_err(|e| Failure::Usage(format!("--jobs: {e}")))?;
    let one = |mutant: Mutant| {
        let verdict = judge.judge(sources, &mutant.edit, Some(&mutant.function));
        bar.inc(1);
        let text = sources.text(&mutant.edit.file).unwrap_or_default();
        let reason = equivalents.reason(&mutant, text).map(str::to_owned);
        Ok(Outcome { mutant, reason, verdict: verdict? })
    };
    let outcomes = pool.install(|| all.into_par_iter().map(one).collect());
    bar.finish_and_clear();
    outcomes
}

/// The first lines of what a run said.
pub(crate) fn head(said: &str) -> String {
    let kept: Vec<_> = said.lines().take(6).collect();
    let more = if said.lines().count() > kept.len() { "\n…" } else { "" };
    kept.join("\n") + more
}

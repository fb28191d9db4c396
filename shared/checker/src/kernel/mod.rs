//! One kernel of anybody's `.cu` file: `lab check`, `run` and `profile FILE.cu --kernel …`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use lab_app::{Outcome, Settings, Single};
use lab_emulator::Order;
use serde_json::json;

use crate::arguments::{arch, bad, seconds};
use crate::counted::{CAVEAT, Counted, print_counted};
use crate::failure::CheckFailure;
use crate::front::{self, Front};
use crate::own;
use crate::stdout::{output_to_stderr, output_to_stdout};

mod expect;
mod list;
mod options;
mod report;
mod sarif;

pub use expect::Expectations;
pub use list::list;
use options::Resolved;
pub use options::written_launch;

/// A launch of one kernel of a `.cu` file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "A kernel of a FILE.cu (its file runs natively, with your rights)")]
#[group(skip)] // Its name is that of the commands' own groups.
pub struct Arguments {
    /// NAME, NAME<float, 4> or ns::NAME; without one the file's kernels are listed, each with a command
    #[arg(long, alias = "entry")]
    kernel: Option<String>,
    /// Blocks; sizes are numbers or C++ that names arguments, such as '(n + 255) / 256'
    #[arg(long, value_name = "X[,Y[,Z]]", allow_hyphen_values = true)]
    grid: Option<String>,
    /// Threads of a block
    #[arg(long, value_name = "X[,Y[,Z]]", allow_hyphen_values = true)]
    block: Option<String>,
    /// Dynamic shared memory of a block
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    shared: Option<String>,
    /// All blocks at once, for a grid-wide sync
    #[arg(long)]
    cooperative: bool,
    /// Blocks of a cluster, along x [default: what a module's .reqnctapercluster says]
    #[arg(long, value_name = "BLOCKS", allow_hyphen_values = true)]
    cluster: Option<String>,
    /// [NAME=]VALUE, in the kernel's order or by name. VALUE: C++ (1000, n * 4), in:TYPE[SHAPE][=FILL],
    /// inout:TYPE[SHAPE][=FILL] or out:TYPE[SHAPE]; FILL: random, random(LOW, HIGH), arange, a number,
    /// {…} in C++, @FILE.safetensors[TENSOR]
    #[arg(long, value_name = "[NAME=]VALUE", allow_hyphen_values = true)]
    arg: Vec<String>,
    /// A further value for expressions, such as the memory that a struct points to
    #[arg(long = "let", value_name = "NAME=VALUE")]
    lets: Vec<String>,
    /// These options from a file, .toml or .json; those of the command line come before
    #[arg(long, value_name = "FILE")]
    args: Option<PathBuf>,
    /// The order of threads: forward, reverse, warps, random[:SEED] or starve[:SEED]
    #[arg(long)]
    order: Option<String>,
    /// Ends it so many seconds after the tool began; below 30, the run has a second at least
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// So much memory it may have, such as 8GiB
    #[arg(long, value_name = "BYTES")]
    memory: Option<String>,
    /// Where headers are
    #[arg(short = 'I', long = "include", value_name = "DIRECTORY")]
    include: Vec<PathBuf>,
    /// A macro: NAME or NAME=VALUE
    #[arg(short = 'D', long = "define", value_name = "NAME")]
    define: Vec<String>,
    /// The language that it is written in [default: c++17]
    #[arg(long = "std", value_name = "STANDARD")]
    standard: Option<String>,
    /// What is wrong by the letter alone counts as well: the exit code is 3
    #[arg(long)]
    strict: bool,
    /// The GPU that is stood for, such as sm_90a: __CUDA_ARCH__, shared memory, clusters [default: sm_80]
    #[arg(long)]
    arch: Option<String>,
    /// All that the compiler says, where it refuses the file
    #[arg(long)]
    verbose: bool,
    /// Who compiles the file
    #[arg(long, value_enum, default_value_t)]
    front: Front,
    /// Of `lab debug`: threadIdx and blockIdx where a debugger stops
    #[arg(long, hide = true, value_delimiter = ',', num_args = 1)]
    debugged: Vec<i32>,
}

impl Arguments {
    /// An option that only a kernel of a file has, if one was given.
    fn given(&self) -> Option<&'static str> {
        let all = [
            (self.kernel.is_some(), "--kernel"),
            (self.grid.is_some(), "--grid"),
            (self.block.is_some(), "--block"),
            (self.shared.is_some(), "--shared"),
            (self.cooperative, "--cooperative"),
            (self.cluster.is_some(), "--cluster"),
            (!self.arg.is_empty(), "--arg"),
            (!self.lets.is_empty(), "--let"),
            (self.args.is_some(), "--args"),
            (self.order.is_some(), "--order"),
            (self.timeout.is_some(), "--timeout"),
            (self.memory.is_some(), "--memory"),
            (!self.include.is_empty(), "-I"),
            (!self.define.is_empty(), "-D"),
            (self.standard.is_some(), "--std"),
            (self.strict, "--strict"),
            (self.arch.is_some(), "--arch"),
            (self.verbose, "--verbose"),
            (self.front != Front::Host, "--front"),
        ];
        all.into_iter().find(|(is, _)| *is).map(|(_, name)| name)
    }

    /// Refuses options of a file's kernel where a stage is named.
    pub fn refuse_for_stage(&self, name: &str) -> Result<(), CheckFailure> {
        let given = self.given();
        refuse_others_for_stage(name, &[(given.is_some(), given.unwrap_or_default())])
    }

    /// Whether a launch is described at all.
    pub fn is_launch(&self) -> bool {
        let describes = [self.kernel.is_some(), self.grid.is_some(), self.block.is_some()];
        describes.contains(&true) || !self.arg.is_empty() || self.args.is_some()
    }

    /// What decides about the kernels of a file.
    fn reading(&self) -> Result<lab_app::Options, CheckFailure> {
        Ok(lab_app::Options {
            include: self.include.clone(),
            define: self.define.clone(),
            arch: arch(self.arch.as_deref())?,
            standard: self.standard.clone(),
            ..lab_app::Options::default()
        })
    }

    /// Does something with the file, or with what nvcc makes of it.
    pub(crate) fn with_file<T>(
        &self,
        file: &Path,
        act: impl Fn(&Path) -> Result<T, CheckFailure>,
    ) -> Result<T, CheckFailure> {
        let is_module = file.extension().is_some_and(|ending| ending == "ptx");
        match self.front {
            Front::Nvcc if !is_module => act(&front::module(file, &self.reading()?)?),
            Front::Auto if !is_module => match act(file) {
                Err(CheckFailure::Usage(why)) if lab_app::Nvcc::find().is_ok() => {
                    note!("{}: the host's compiler refuses it: {why}", own::name());
                    act(&front::module(file, &self.reading()?)?)
                }
                done => done,
            },
            _ => act(file),
        }
    }
}

/// Whether a name is that of a file and not of a stage.
pub fn is_file(name: &str) -> bool {
    [".cu", ".cuh", ".ptx"].iter().any(|end| name.ends_with(end))
}

/// Refuses what only a kernel of a file has.
pub fn refuse_others_for_stage(name: &str, given: &[(bool, &str)]) -> Result<(), CheckFailure> {
    match given.iter().find(|(is, _)| *is) {
        None => Ok(()),
        Some((_, option)) => {
            Err(bad(option, "a FILE.cu, whose kernels take it", &format!("'{name}'")))
        }
    }
}

/// Refuses options that only a stage has.
pub fn refuse_for_file(name: &str, given: &[(bool, &str)]) -> Result<(), CheckFailure> {
    match given.iter().find(|(is, _)| *is) {
        None => Ok(()),
        Some((_, option)) => {
            let name = lab_emulator::shown(name, 60);
            Err(CheckFailure::Usage(format!(
                "{option}: expected a STAGE, which takes it, got '{name}'"
            )))
        }
    }
}

/// Where results go.
#[derive(Debug, Default)]
pub struct Targets<'a> {
    /// Its outputs.
    pub output: Option<&'a Path>,
    /// Its findings.
    pub sarif: Option<&'a Path>,
}

/// How a launch is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Plain,
    Checked,
    Counted,
}

/// What a command makes of a launch.
pub(crate) struct Launched {
    pub(crate) outcome: Outcome,
    pub(crate) seconds: f64,
    pub(crate) order: Order,
    pub(crate) seed: u64,
}

/// Compiles and runs what the arguments describe.
fn launch(
    json: bool,
    file: &Path,
    arguments: &Arguments,
    resolved: &Resolved,
    seed: u64,
    mode: Mode,
) -> Result<Launched, CheckFailure> {
    let start = Instant::now();
    let mut emulator = lab_emulator::Options::from_env()
        .map_err(|error| CheckFailure::Usage(error.to_string()))?;
    if let Some(order) = resolved.order(seed)? {
        emulator.order = order;
    }
    emulator.count = mode == Mode::Counted;
    let mut options = resolved.compile_options(mode == Mode::Plain);
    let wanted = match arguments.debugged[..] {
        [tx, ty, tz, bx, by, bz] => Some([[tx, ty, tz], [bx, by, bz]]),
        _ => None,
    };
    options.debug = wanted.is_some();
    options.timeout = resolved.timeout.map(seconds).transpose()?;
    options.memory = resolved.memory;
    let single = Single::build(file, &resolved.launch, &options)
        .map_err(|error| refused(error, resolved.verbose))?;
    if let Some(timeout) = resolved.timeout {
        let timeout = seconds(timeout)?;
        end_after(timeout, lab_app::time_to_run(timeout, start), json);
    }
    // What a kernel prints must not stand in the one object that is printed.
    if json {
        output_to_stderr();
    }
    if let Some(bytes) = resolved.memory {
        lab_app::limit_memory(bytes).map_err(CheckFailure::Refused)?;
    }
    let fault = if json { end_in_json } else { end_in_text };
    let settings = Settings { seed, emulator, wanted, fault: Some(fault) };
    let outcome = single.run(&settings).map_err(|error| refused(error, resolved.verbose));
    // SAFETY: flushes all streams of C: what a kernel prints stands before the report.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    output_to_stdout();
    let seconds = start.elapsed().as_secs_f64();
    Ok(Launched { outcome: outcome?, seconds, order: emulator.order, seed })
}

fn end_in_text(fault: String, _: i32) {
    end_at_fault(fault, false);
}

fn end_in_json(fault: String, _: i32) {
    end_at_fault(fault, true);
}

/// Host code of the file, which makes the arguments, has faulted.
fn end_at_fault(fault: String, json: bool) {
    output_to_stdout();
    let failure = CheckFailure::Usage(fault);
    failure.tell(json);
    // SAFETY: ends the process at once; nothing is half-written, since files are renamed whole.
    unsafe { libc::_exit(i32::from(failure.code())) };
}

/// Ends the process, whatever the kernel and the file's own code do by then.
fn end_after(limit: Duration, left: Duration, json: bool) {
    std::thread::spawn(move || {
        std::thread::sleep(left);
        lab_app::end_without_fail();
        let failure = CheckFailure::Refused(format!(
            "--timeout: expected an end within {} s, got none",
            limit.as_secs_f32()
        ));
        output_to_stdout();
        failure.tell(json);
        // SAFETY: ends the process at once; nothing is half-written, since files are renamed whole.
        unsafe { libc::_exit(i32::from(failure.code())) };
    });
}

/// Why nothing was launched.
fn refused(error: lab_app::Error, verbose: bool) -> CheckFailure {
    match error {
        lab_app::Error::Compile { said, .. } if said.starts_with("a C++ compiler is needed") => {
            CheckFailure::Unavailable(said)
        }
        lab_app::Error::Compile { said, .. } if verbose => CheckFailure::Usage(said),
        late @ lab_app::Error::Late { .. } => CheckFailure::Refused(late.to_string()),
        refused @ lab_app::Error::Compile { .. } => {
            CheckFailure::Usage(format!("{refused}{}", front::hint(&refused.to_string())))
        }
        other => CheckFailure::Usage(other.to_string()),
    }
}

/// Refuses what can be refused before anything is compiled.
pub(crate) fn validate(file: &Path, arguments: &Arguments) -> Result<(), CheckFailure> {
    Resolved::of(file, arguments, &Expectations::default()).map(|_| ())
}

/// `lab check FILE.cu --kernel …`
pub fn check(
    json: bool,
    file: &Path,
    arguments: &Arguments,
    expectations: &Expectations,
    targets: &Targets<'_>,
    seed: u64,
) -> Result<(), CheckFailure> {
    arguments.with_file(file, |file| {
        judge(json, file, arguments, expectations, targets, seed, Mode::Checked)
    })
}

/// `lab run FILE.cu --kernel …`: not checked, and so faster.
pub fn run(
    json: bool,
    file: &Path,
    arguments: &Arguments,
    expectations: &Expectations,
    targets: &Targets<'_>,
    seed: u64,
) -> Result<(), CheckFailure> {
    arguments.with_file(file, |file| {
        judge(json, file, arguments, expectations, targets, seed, Mode::Plain)
    })
}

fn judge(
    json: bool,
    file: &Path,
    arguments: &Arguments,
    expectations: &Expectations,
    targets: &Targets<'_>,
    seed: u64,
    mode: Mode,
) -> Result<(), CheckFailure> {
    let resolved = Resolved::of(file, arguments, expectations)?;
    for path in [targets.output, targets.sarif].into_iter().flatten() {
        crate::finding::check_target(path)?;
    }
    resolved.expected.check()?;
    let launched = launch(json, file, arguments, &resolved, seed, mode)?;
    let outcome = &launched.outcome;
    let comparisons = resolved.expected.compare(outcome)?;
    if let Some(path) = targets.output {
        report::write_outputs(path, outcome)?;
    }
    if let Some(path) = targets.sarif {
        sarif::write(path, outcome)?;
    }
    let code = report::code(outcome, &comparisons, arguments.strict);
    if json {
        say!("{}", report::as_json(&launched, &comparisons, mode, code))
    } else {
        report::print(&launched, &comparisons, mode, targets)
    }
    report::verdict(outcome, &comparisons, arguments.strict)
}

/// `lab profile FILE.cu --kernel …`: what it asks of the memory system, by line.
pub fn profile(
    json: bool,
    file: &Path,
    arguments: &Arguments,
    seed: u64,
) -> Result<(), CheckFailure> {
    arguments.with_file(file, |file| profile_of(json, file, arguments, seed))
}

fn profile_of(
    json: bool,
    file: &Path,
    arguments: &Arguments,
    seed: u64,
) -> Result<(), CheckFailure> {
    let resolved = Resolved::of(file, arguments, &Expectations::default())?;
    let launched = launch(json, file, arguments, &resolved, seed, Mode::Counted)?;
    let outcome = &launched.outcome;
    let verdict = report::verdict(outcome, &[], arguments.strict);
    // What is told of a launch that is wrong is what is wrong.
    if verdict.is_err() {
        if json {
            say!("{}", report::as_json(&launched, &[], Mode::Counted, 3))
        } else {
            report::print(&launched, &[], Mode::Counted, &Targets::default())
        }
        return verdict;
    }
    let settled = crate::counted::settled(outcome.profile.clone());
    let source = |file: &str| std::fs::read_to_string(file).ok();
    let counted = Counted { profile: &settled, source: &source };
    if json {
        let mut all = report::as_json(&launched, &[], Mode::Counted, 0);
        all["note"] = json!(CAVEAT);
        all["totals"] = json!(counted.totals_json());
        all["lines"] = json!(counted.lines_json());
        all["left_out"] = json!(settled.left_out);
        say!("{all}");
        return Ok(());
    }
    if outcome.findings.is_empty() {
        say!("{}", report::title(outcome))
    } else {
        // Formal ones.
        report::print(&launched, &[], Mode::Counted, &Targets::default())
    }
    say!("{CAVEAT}\n");
    print_counted(&counted);
    Ok(())
}

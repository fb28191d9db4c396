//! The tool `lab`: its commands, and the registry of all stages.

/// As the standard library's, but that never ends the process: [`lab_checker::out`].
macro_rules! println {
    () => { lab_checker::out::line(format_args!("")) };
    ($($text:tt)*) => { lab_checker::out::line(format_args!($($text)*)) };
}

/// Likewise.
macro_rules! eprintln {
    ($($text:tt)*) => { lab_checker::out::note(format_args!($($text)*)) };
}

mod commands;
mod failure;
pub mod loaders;
mod part;
mod plot;
mod profile;
mod traces;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use lab_device::{DType, Device, KernelSource, Selector};
use lab_harness::suite::Suite;
use lab_harness::{Choice, Error, Stage, Version};

use failure::Failure;
use lab_checker::{own, table, usage, words};

/// Every stage, in the order of the story.
pub static STAGES: &[&Stage] = &[
    &playg::STAGE,
    &matmul::STAGE,
    &qkv_v0::STAGE,
    &qkv_v1::STAGE,
    &qkv_v2::STAGE,
    &vlstm_fw_v0::STAGE,
    &vlstm_fw_v1::STAGE,
    &vlstm_fw_v2::STAGE,
    &vlstm_fw_v3::STAGE,
    &vlstm_fw_v4::STAGE,
    &vlstm_step::STAGE,
    &vlstm_fwbw_v0::STAGE,
    &vlstm_fwbw_v1::STAGE,
    &vlstm_fwbw_v2::STAGE,
    &vlstm_fwbw_v3::STAGE,
    &vlstm_fwbw_v4::STAGE,
    &lstm_fused::STAGE,
    &slstm_fused::STAGE,
    &mlp_fused::STAGE,
    &attention::STAGE,
    &passes::STAGE,
    &decode::STAGE,
];

/// What is trained by kernels of the stages: its checks belong to theirs.
pub static MODELS: &[&Suite] =
    &[&lab_operations::SUITE, &lab_lstm::SUITE, &lab_mlp::SUITE, &lab_lm::SUITE];

/// All versions of all stages.
pub fn versions() -> impl Iterator<Item = &'static dyn Version> {
    STAGES.iter().flat_map(|s| s.versions.iter().copied())
}

/// Every kernel file that this tool has.
pub(crate) fn kernels() -> impl Iterator<Item = &'static KernelSource> {
    let of_stages = STAGES.iter().flat_map(|s| s.kernels);
    let others = [
        lab_harness::device_checks::kernels::KERNELS,
        lab_corpus::kernels::KERNELS,
        lab_lm::kernels::KERNELS,
    ];
    of_stages.chain(others.into_iter().flatten()).copied()
}

/// The stage of this name.
///
/// # Errors
/// There is none; the message lists those there are.
pub fn stage(name: &str) -> Result<&'static Stage, Error> {
    STAGES.iter().copied().find(|s| s.name == name).ok_or_else(|| {
        // Behind the stages, for who has left out the stage of a version.
        let versions: Vec<String> = versions().map(|v| v.info().full_name()).collect();
        let stages: Vec<&str> = STAGES.iter().map(|s| s.name).collect();
        let known: Vec<&str> =
            stages.iter().copied().chain(versions.iter().map(String::as_str)).collect();
        let near = words::near(&known, name);
        let known = if near.is_empty() { stages } else { near };
        let expected = words::known_names(&known, name, "lab list");
        Error::Bad { what: "stage".into(), expected, got: format!("'{name}'") }
    })
}

/// The versions that `STAGE[:VERSION]` names: one, or all of a stage; or those of a family that no stage is named as.
///
/// # Errors
/// No such stage, version or family; the message lists those there are.
pub fn named(name: &str) -> Result<Vec<&'static dyn Version>, Error> {
    let (stage, version) = match name.split_once(':') {
        Some((stage, version)) => (stage, Some(version)),
        None => (name, None),
    };
    let of_family = || versions().filter(|v| v.info().family.name() == name).collect::<Vec<_>>();
    let found = match self::stage(stage) {
        Ok(found) => found,
        Err(_) if !of_family().is_empty() => return Ok(of_family()),
        Err(unknown) => return Err(unknown),
    };
    let Some(version) = version else { return Ok(found.versions.to_vec()) };
    match found.versions.iter().find(|v| v.info().name == version) {
        Some(one) => Ok(vec![*one]),
        None => {
            let all: Vec<_> = found.versions.iter().map(|v| v.info().name).collect();
            let what = format!("version of {stage}");
            let expected = words::known_names(&all, version, &format!("lab list {stage}"));
            Err(Error::Bad { what, expected, got: format!("'{version}'") })
        }
    }
}

/// The one version that `STAGE[:VERSION]` or a family's name means. A stage or family stands for its last version that takes
/// this type, or else the first one's first, and runs on this architecture; all its versions must compute the
/// same, or those of the family that it is named after: vlstm_fw of vlstm_fw_v4.
///
/// # Errors
/// As [`named`]; also a stage of several families and named after none, which needs a version.
pub fn named_one(name: &str, dtype: Option<DType>, arch: &str) -> Result<Choice, Error> {
    let mut all = named(name)?;
    let family = |v: &dyn Version| v.info().family.name();
    if all.iter().any(|v| family(*v) != family(all[0])) {
        let names: Vec<_> = all.iter().map(|v| v.info().full_name()).collect();
        let of_stage = name.rsplit_once("_v").map_or(name, |(of_stage, _)| of_stage);
        all.retain(|v| family(*v) == of_stage);
        if all.is_empty() {
            return Err(Error::Bad {
                what: "version".into(),
                expected: names.join(", "),
                got: format!("'{name}'"),
            });
        }
    }
    let wanted = dtype.unwrap_or(all[0].info().dtypes[0]);
    let last = *all.last().expect("a stage has versions");
    Ok(Choice::of(&all, wanted, arch).unwrap_or(Choice { version: last, better: None }))
}

/// As [`named_one`]; a stage alone stands for a version that also takes the problem, as `fits` says, if one does.
///
/// # Errors
/// As there.
pub fn named_for(
    name: &str,
    dtype: Option<DType>,
    arch: &str,
    fits: impl Fn(&dyn Version) -> bool,
) -> Result<Choice, Error> {
    let first = named_one(name, dtype, arch)?;
    if name.contains(':') || fits(first.version) {
        return Ok(first);
    }
    let family = first.version.info().family.name();
    let mut others = named(name)?;
    others.retain(|v| v.info().family.name() == family && fits(*v));
    let wanted = dtype.unwrap_or(first.version.info().dtypes[0]);
    Ok(Choice::of(&others, wanted, arch).unwrap_or(first))
}

/// What [`Failure::code`] gives.
const EXIT_CODES: &str = "\
Exit codes: 0 fine; 1 a result is wrong, or a bench is refused; 2 bad usage or
bad input; 3 the emulator's checks found something; 4 no such device, driver or
toolkit. `lab app` keeps the program's own where nothing is found.";

/// Runs CUDA kernels on a GPU or on the CPU emulator, and says how they do
#[derive(Debug, Parser)]
#[command(name = "lab", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(flatten)]
    common: Common,
    /// Without a command: the tour.
    #[command(subcommand)]
    command: Option<Command>,
}

/// What every command takes.
#[derive(Clone, Debug, Args)]
struct Common {
    /// auto, cuda, cuda:N or emulator
    #[arg(long, global = true, env = "LAB_DEVICE", default_value = "auto")]
    device: String,
    /// One JSON object on stdout
    #[arg(long, global = true)]
    json: bool,
}

impl Common {
    fn selector(&self) -> Result<Selector, Failure> {
        // An empty variable is none.
        match self.device.as_str() {
            "" => Ok(Selector::Auto),
            device => Ok(device.parse()?),
        }
    }

    fn open(&self) -> Result<Device, Failure> {
        Ok(Device::open(self.selector()?)?)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The device found, every stage on a small problem, an exercise to try
    Tour(commands::tour::Arguments),
    /// What is here, what is missing, and how to get it
    Doctor,
    /// Facts of each GPU and of the emulator
    Devices,
    /// Families, stages and versions, with their types and sizes
    List {
        /// A family, a stage, or STAGE:VERSION; all of them where none is named
        name: Option<String>,
    },
    /// Runs one version, on your tensors or on random ones
    Run(commands::run::Arguments),
    /// Looks at every access of a kernel, a stage's or that of a .cu file
    Check(commands::check::Arguments),
    /// Runs a CUDA program of yours, every launch checked; needs no GPU
    App(commands::app::Arguments),
    /// Opens gdb at one thread of a kernel of a CUDA file of yours
    Debug(commands::debug::Arguments),
    /// What a run asks of the memory system, in total and by source line
    Profile(commands::profile::Arguments),
    /// Every stage's correctness suite
    Selftest(commands::selftest::Arguments),
    /// The museum of mistakes: a list, or one broken and then fixed
    Bug(commands::bug::Arguments),
    /// Pieces of kernels to write: a list, or one begun, and judged
    Exercise(commands::exercise::Arguments),
    /// All versions of a family or stage on one problem
    Compare(commands::compare::Arguments),
    /// Compiles every kernel with NVRTC; needs no GPU
    Compile(commands::compile::Arguments),
    /// Times every version on a GPU
    Bench(commands::bench::Arguments),
    /// Tries a set of tile parameters on the GPU at hand
    Tune(commands::tune::Arguments),
    /// The records of the benchmarks, as tables and plots
    History(commands::history::Arguments),
    /// Trains an LSTM, a GRU or an sLSTM on series or texts; tests, writes
    #[command(subcommand)]
    Lstm(commands::lstm::Command),
    /// Trains a model of the next word on a text; judges, predicts
    #[command(subcommand)]
    Mlp(commands::mlp::Command),
    /// Trains a language model of xLSTM blocks on texts; judges, writes
    #[command(subcommand)]
    Lm(commands::lm::Command),
    /// Begins a stage: one that compiles and passes, to be changed
    New(commands::new::Arguments),
    /// For maintainers of the lab: corpus, mutants, pages, bundles
    #[command(subcommand)]
    Dev(commands::dev::Command),
    #[command(hide = true)]
    Corpus(commands::dev::Moved),
    #[command(hide = true)]
    Trace(commands::dev::Moved),
    #[command(hide = true)]
    Mutate(commands::dev::Moved),
    #[command(hide = true)]
    Bundle(commands::dev::Moved),
}

/// Parses the command line and does what it says.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    ExitCode::from(usage::parse(&words).map_or_else(|code| code, run))
}

/// The same for a program that has this tool within it: `arguments` stand behind the tool's name, and `command` begins another
/// process that calls this. Gives back the exit code.
pub fn main_within(command: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    let words: Vec<OsString> =
        std::iter::once("lab".into()).chain(arguments.iter().cloned()).collect();
    own::called_by(command, arguments);
    usage::parse(&words).map_or_else(|code| code, run)
}

fn run(cli: Cli) -> u8 {
    let common = &cli.common;
    // Of a device that is none, the commands that need none tell as well.
    if let Err(failure) = common.selector() {
        failure.tell(common.json);
        return failure.code();
    }
    let outcome =
        match cli.command.unwrap_or(Command::Tour(Default::default())) {
            Command::Tour(arguments) => commands::tour::run(common, &arguments),
            Command::Doctor => commands::doctor::run(common),
            Command::Devices => commands::devices::run(common),
            Command::List { name } => commands::list::run(common, name.as_deref()),
            Command::Run(arguments) => commands::run::run(common, &arguments),
            Command::Check(arguments) => commands::check::run(common, &arguments),
            Command::App(arguments) => commands::refuse_gpu_for(common, "programs run")
                .and_then(|()| commands::app::run(common.json, &arguments).map_err(Failure::from)),
            Command::Debug(arguments) => commands::refuse_gpu(common)
                .and_then(|()| Ok(commands::debug::run(common.json, &arguments)?)),
            Command::Profile(arguments) => commands::profile::run(common, &arguments),
            Command::Selftest(arguments) => commands::selftest::run(common, &arguments),
            Command::Bug(arguments) => commands::bug::run(common, &arguments),
            Command::Exercise(arguments) => (arguments.refuse_upkeep())
                .and_then(|()| commands::exercise::run(common, &arguments)),
            Command::Compare(arguments) => commands::compare::run(common, &arguments),
            Command::History(arguments) => (arguments.refuse_upkeep())
                .and_then(|()| commands::history::run(common, &arguments)),
            Command::Compile(arguments) => (arguments.refuse_upkeep())
                .and_then(|()| commands::compile::run(common, &arguments)),
            Command::Tune(arguments) => commands::tune::run(common, &arguments),
            Command::Bench(arguments) => commands::bench::run(common, &arguments),
            Command::Lstm(command) => commands::lstm::run(common, &command),
            Command::Mlp(command) => commands::mlp::run(common, &command),
            Command::Lm(command) => commands::lm::run(common, &command),
            Command::New(arguments) => commands::new::run(common, &arguments),
            Command::Dev(command) => commands::dev::run(common, &command),
            Command::Corpus(_) => commands::dev::refuse("corpus"),
            Command::Trace(_) => commands::dev::refuse("trace"),
            Command::Mutate(_) => commands::dev::refuse("mutate"),
            Command::Bundle(_) => commands::dev::refuse("bundle"),
        };
    let whole = || match lab_checker::out::lost() {
        Some(why) => Err(lab_checker::Failure::lost(why).into()),
        None => Ok(()),
    };
    match outcome.and_then(|()| whole()) {
        Ok(()) => 0,
        Err(failure) => {
            failure.tell(common.json);
            failure.code()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use lab_device::{Build, compile_missing};

    use super::{Cli, kernels};

    /// Names that clash are told when a command is used; here for all of them.
    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The kernels travel in programs and wheels for `manylinux_2_28`: what they ask of the C library has been there in 2.28.
    #[test]
    #[ignore = "takes long: --include-ignored runs it"]
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    fn kernels_load_beside_an_older_c_library() {
        const VERSION: &[u8] = b"GLIBC_2.";
        let mut found = 0;
        let builds = [Build::Plain, Build::Checked];
        compile_missing(kernels().flat_map(|kernel| builds.map(|build| (kernel, build)))).unwrap();
        for kernel in kernels() {
            for object in builds.map(|build| kernel.object(build).unwrap()) {
                for at in memchr::memmem::find_iter(object, VERSION) {
                    let rest = &object[at + VERSION.len()..];
                    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
                    let minor: u32 = str::from_utf8(&rest[..digits]).unwrap().parse().unwrap();
                    assert!(minor <= 28, "{}: asks for glibc 2.{minor}", kernel.file);
                    found += 1;
                }
            }
        }
        assert!(found > 0, "no kernel asks for anything");
    }
}

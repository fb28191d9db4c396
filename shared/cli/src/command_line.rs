//! What stands on the command line: the options of every command, and the commands.

use clap::{Args, Parser, Subcommand};
use lab_device::{Device, Selector};

use crate::commands;
use crate::failure::Failure;

/// What [`Failure::code`] gives.
const EXIT_CODES: &str = "\
Exit codes: 0 fine; 1 a result is wrong, or a bench is refused; 2 bad usage or
bad input; 3 the emulator's checks found something; 4 no such device, driver or
toolkit. `lab app` keeps the program's own where nothing is found.";

/// Runs CUDA kernels on a GPU or on the CPU emulator, and says how they do
#[derive(Debug, Parser)]
#[command(name = "lab", version, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Without a command: the tour.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// What every command takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// auto, cuda, cuda:N or emulator
    #[arg(long, global = true, env = "LAB_DEVICE", default_value = "auto")]
    pub(crate) device: String,
    /// One JSON object on stdout
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Common {
    pub(crate) fn selector(&self) -> Result<Selector, Failure> {
        // An empty variable is none.
        match self.device.as_str() {
            "" => Ok(Selector::Auto),
            device => Ok(device.parse()?),
        }
    }

    pub(crate) fn open(&self) -> Result<Device, Failure> {
        Ok(Device::open(self.selector()?)?)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
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

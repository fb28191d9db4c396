//! `lab dev`: what those need who maintain the lab, and nobody who uses it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::Common;
use crate::commands::{
    bundle, compile, corpus, crowd, doors, exercise, history, mutate, operands, trace,
};
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The planted bugs that the checks are held against
    Corpus(corpus::Arguments),
    /// Kernels broken on purpose: does the stage's suite notice?
    Mutate(mutate::Arguments),
    /// Small runs of the emulator, step by step: the book's moving pictures
    Trace(trace::Arguments),
    /// The records of the benchmarks, as pages of the book
    #[command(mut_arg("write", |a| a.hide(false)), mut_arg("corpus", |a| a.hide(false)))]
    History(history::Arguments),
    /// Compiles kernels into the book's pages, or into images that a package brings along
    #[command(mut_arg("write", |a| a.hide(false)), mut_arg("images", |a| a.hide(false)))]
    Compile(compile::Arguments),
    /// Judges every exercise as it is given, and its solution
    #[command(mut_arg("all", |a| a.hide(false)), mut_arg("part", |a| a.hide(false)), mut_arg("counted", |a| a.hide(false)))]
    Exercise(exercise::Arguments),
    /// Kernels by way of the PTX that NVRTC makes of them: objects that stand in for the embedded ones
    Doors(doors::Arguments),
    /// Versions on a GPU of which other blocks hold some multiprocessors: how much slower, and do they end?
    Crowd(crowd::Arguments),
    /// Instructions of PTX on thousands of operands: the emulator's bits against a GPU's
    Operands(operands::Arguments),
    /// Packs the tool for a GPU machine that has no Rust
    Bundle {
        /// The directory to fill
        directory: PathBuf,
    },
}

/// What stands behind a name that a command had once.
#[derive(Debug, Args)]
pub(crate) struct Moved {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

pub(crate) fn run(common: &Common, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Corpus(arguments) => corpus::run(common, arguments),
        Command::Mutate(arguments) => mutate::run(common, arguments),
        Command::Trace(arguments) => trace::run(common, arguments),
        Command::History(arguments) => history::run(common, arguments),
        Command::Compile(arguments) => compile::run(common, arguments),
        Command::Exercise(arguments) => exercise::run(common, arguments),
        Command::Doors(arguments) => doors::run(common, arguments),
        Command::Crowd(arguments) => crowd::run(common, arguments),
        Command::Operands(arguments) => operands::run(common, arguments),
        Command::Bundle { directory } => bundle::run(common, directory),
    }
}

/// A command by its old name.
pub(crate) fn refuse(name: &str) -> Result<(), Failure> {
    Err(Failure::Usage(format!("{name}: expected `lab dev {name}`, as this is called now")))
}

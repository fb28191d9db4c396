//! `lab lstm`: trains an LSTM, a GRU or an sLSTM on a series or a text, tests it, writes with it.

mod forecast;
mod free_run;
mod generate;
mod options;
mod report;
mod saved;
mod settings;
mod source;
mod states;
mod test;
mod tested;
mod text;
mod train;

use std::path::Path;

use clap::Subcommand;
use lab_lstm::training::Checkpoint;

use crate::Common;
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Trains a network on a series or a text
    #[command(allow_negative_numbers = true)]
    Train(Box<train::Arguments>),
    /// Holds a trained network against baselines, draws its forecast and its states
    #[command(allow_negative_numbers = true)]
    Test(tested::Arguments),
    /// Writes on where a prompt ends
    #[command(allow_negative_numbers = true)]
    Generate(generate::Arguments),
}

/// Refuses settings that no training has.
pub(crate) fn check_arguments(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Train(arguments) => train::check_arguments(arguments),
        Command::Test(_) | Command::Generate(_) => Ok(()),
    }
}

/// Reads a model's file. The notes of the checkpoint are made anew from what was understood.
pub(crate) fn model(path: &Path) -> Result<Checkpoint, Failure> {
    let (mut checkpoint, notes) = saved::read(path)?;
    checkpoint.notes = notes.write();
    Ok(checkpoint)
}

pub(crate) fn run(common: &Common, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Train(arguments) => train::run(common, arguments),
        Command::Test(arguments) => test::run(common, arguments),
        Command::Generate(arguments) => generate::run(common, arguments),
    }
}

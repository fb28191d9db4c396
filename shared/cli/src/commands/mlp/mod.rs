//! `lab mlp`: trains a model of the next token on a text, judges it, and asks it what comes next.

mod corpus;
mod eval;
mod predict;
mod saved;
mod settings;
mod train;

use std::path::Path;

use clap::Subcommand;
use lab_mlp::training::Checkpoint;

use crate::Common;
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Trains a model on a text
    #[command(allow_negative_numbers = true)]
    Train(Box<train::Arguments>),
    /// Holds a trained model against baselines that only count
    Eval(eval::Arguments),
    /// What may come after a few words
    Predict(predict::Arguments),
}

/// Refuses settings that no training has.
pub(crate) fn check_arguments(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Train(arguments) => Ok(arguments.settings.check()?),
        _ => Ok(()),
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
        Command::Eval(arguments) => eval::run(common, arguments),
        Command::Predict(arguments) => predict::run(common, arguments),
    }
}

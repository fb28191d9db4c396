//! What the tool reads from its users, and does nothing with it: for tests that feed it anything.

use std::ffi::OsString;
use std::path::Path;

use lab_checker::usage::{self, Unread};

use crate::commands::{lm, lstm, mlp, run};
use crate::failure::Failure;
use crate::{Cli, Command};

/// Reads a command line, the tool's name first, and checks what can be checked before any work begins: the device's
/// name, and of a run its version, type, sizes and options, and of a training its settings.
///
/// # Errors
/// What the tool would end with: the exit code, and the message.
pub fn command_line(words: &[OsString]) -> Result<(), (u8, String)> {
    let cli: Cli = match usage::read(words) {
        Ok(cli) => cli,
        Err(Unread::Asked(text)) => return Err((0, text)),
        Err(Unread::Lacking(_, failure) | Unread::Wrong(failure)) => {
            return Err((failure.code(), failure.message().to_owned()));
        }
    };
    check_arguments(&cli).map_err(|failure| (failure.code(), failure.message().to_owned()))
}

fn check_arguments(cli: &Cli) -> Result<(), Failure> {
    cli.common.selector()?;
    match &cli.command {
        Some(Command::Run(arguments)) => run::check_arguments(arguments),
        Some(Command::Lstm(command)) => lstm::check_arguments(command),
        Some(Command::Mlp(command)) => mlp::check_arguments(command),
        Some(Command::Lm(command)) => lm::check_arguments(command),
        _ => Ok(()),
    }
}

/// Reads a file that `lab lstm train` wrote. The notes of the checkpoint are made anew from what was understood.
///
/// # Errors
/// The message.
pub fn lstm_model(path: &Path) -> Result<lab_lstm::training::Checkpoint, String> {
    lstm::model(path).map_err(|failure| failure.message().to_owned())
}

/// Reads a file that `lab mlp train` wrote, likewise.
///
/// # Errors
/// The message.
pub fn mlp_model(path: &Path) -> Result<lab_mlp::training::Checkpoint, String> {
    mlp::model(path).map_err(|failure| failure.message().to_owned())
}

/// Reads a file that `lab lm train` wrote, likewise.
///
/// # Errors
/// The message.
pub fn lm_model(path: &Path) -> Result<lab_lm::Checkpoint, String> {
    lm::model(path).map_err(|failure| failure.message().to_owned())
}

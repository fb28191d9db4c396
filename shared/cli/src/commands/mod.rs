//! One module a command.

pub(crate) use lab_checker::{app, debug, kernel, watch};
use lab_mutate::Workspace;

use crate::Common;
use crate::failure::Failure;

pub(crate) mod against;
pub(crate) mod bench;
pub(crate) mod bug;
pub(crate) mod bundle;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod compile;
pub(crate) mod corpus;
pub(crate) mod crowd;
pub(crate) mod dev;
pub(crate) mod devices;
pub(crate) mod doctor;
pub(crate) mod doors;
pub(crate) mod exercise;
pub(crate) mod history;
pub(crate) mod list;
pub(crate) mod lm;
pub(crate) mod lstm;
pub(crate) mod measure;
pub(crate) mod mlp;
pub(crate) mod mutate;
pub(crate) mod new;
pub(crate) mod operands;
pub(crate) mod profile;
pub(crate) mod run;
pub(crate) mod selftest;
pub(crate) mod tour;
pub(crate) mod trace;
pub(crate) mod training;
pub(crate) mod tune;

/// The workspace that the command was called in.
pub(crate) fn workspace() -> Result<Workspace, Failure> {
    let here =
        std::env::current_dir().map_err(|e| Failure::Usage(format!("current directory: {e}")))?;
    Ok(Workspace::find(&here)?)
}

/// Refuses a GPU where only the emulator does what a command does.
pub(crate) fn refuse_gpu_for(common: &Common, what: &str) -> Result<(), Failure> {
    match common.selector()? {
        lab_device::Selector::Cuda(_) => Err(Failure::Usage(format!(
            "--device: expected emulator, which is where {what}, got '{}'",
            common.device
        ))),
        _ => Ok(()),
    }
}

/// Refuses a GPU: files of anybody's run on the emulator alone.
pub(crate) fn refuse_gpu(common: &Common) -> Result<(), Failure> {
    match common.selector()? {
        lab_device::Selector::Cuda(_) => Err(Failure::Usage(format!(
            "--device: expected emulator, where a FILE.cu runs, got '{}'",
            common.device
        ))),
        _ => Ok(()),
    }
}

/// Refuses the first of the options that is given, which `lab dev` has now.
pub(crate) fn refuse_options(command: &str, given: &[(bool, &str)]) -> Result<(), Failure> {
    match given.iter().find(|(is_given, _)| *is_given) {
        None => Ok(()),
        Some((_, option)) => Err(Failure::Usage(format!(
            "{option}: expected `lab dev {command} {option}`, as this is called now"
        ))),
    }
}

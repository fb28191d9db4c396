//! One module a command.

use lab_mutate::Workspace;

use crate::failure::Failure;

pub(crate) mod against;
pub(crate) mod app;
pub(crate) mod bench;
pub(crate) mod bug;
pub(crate) mod bundle;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod compile;
pub(crate) mod corpus;
pub(crate) mod debug;
pub(crate) mod devices;
pub(crate) mod doctor;
pub(crate) mod exercise;
pub(crate) mod history;
pub(crate) mod kernel;
pub(crate) mod list;
pub(crate) mod lstm;
pub(crate) mod measure;
pub(crate) mod mlp;
pub(crate) mod mutate;
pub(crate) mod new;
pub(crate) mod profile;
pub(crate) mod run;
pub(crate) mod selftest;
pub(crate) mod tour;
pub(crate) mod trace;
pub(crate) mod training;
pub(crate) mod tune;
pub(crate) mod watch;

/// The workspace that the command was called in.
pub(crate) fn workspace() -> Result<Workspace, Failure> {
    let here =
        std::env::current_dir().map_err(|e| Failure::Usage(format!("current directory: {e}")))?;
    Ok(Workspace::find(&here)?)
}

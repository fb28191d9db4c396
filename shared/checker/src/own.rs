//! This tool as a command: what it was called with, and how one begins another process of it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Who called it, where that is not its own executable.
struct Caller {
    command: Vec<OsString>,
    arguments: Vec<OsString>,
}

static CALLER: OnceLock<Caller> = OnceLock::new();
static NAME: OnceLock<&str> = OnceLock::new();

/// Says what this tool is called in the commands that it prints. Once, at its beginning.
pub fn set_name(name: &'static str) {
    let _ = NAME.set(name);
}

/// What this tool is called: `lab`, unless something else was said.
pub fn name() -> &'static str {
    NAME.get().unwrap_or(&"lab")
}

/// Says that `command` begins a process of this tool, and that this one was given `arguments`.
pub fn called_by(command: Vec<OsString>, arguments: Vec<OsString>) {
    // A process is called once.
    let _ = CALLER.set(Caller { command, arguments });
}

/// The words of a command that begins another process of this tool; its arguments come behind.
pub fn command() -> std::io::Result<Vec<OsString>> {
    match CALLER.get() {
        Some(caller) => Ok(caller.command.clone()),
        None => Ok(vec![std::env::current_exe()?.into()]),
    }
}

/// The file of this tool alone.
///
/// # Errors
/// Another program has it within itself.
pub fn executable() -> std::io::Result<PathBuf> {
    match CALLER.get() {
        None => std::env::current_exe(),
        Some(_) => Err(std::io::Error::other("lab: expected a tool that is a file of its own")),
    }
}

/// Another process of this tool.
pub fn process() -> std::io::Result<Command> {
    let words = command()?;
    let mut process = Command::new(&words[0]);
    process.args(&words[1..]);
    Ok(process)
}

/// What this process was called with, behind its name.
pub fn arguments() -> Vec<OsString> {
    match CALLER.get() {
        Some(caller) => caller.arguments.clone(),
        None => std::env::args_os().skip(1).collect(),
    }
}

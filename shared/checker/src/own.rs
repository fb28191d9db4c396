//! This tool as a command: what it was called with, and how one begins another process of it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
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

/// How a shell calls this tool again, as the commands that it prints begin: by its name, where it was found by that; through
/// cargo in a workspace that has built it; otherwise by the path that it was called by.
pub fn shell() -> String {
    let quoted = |word: &OsString| match word.to_string_lossy() {
        word if word.contains(char::is_whitespace) => format!("'{word}'"),
        word => word.into_owned(),
    };
    if let Some(caller) = CALLER.get() {
        return caller.command.iter().map(quoted).collect::<Vec<_>>().join(" ");
    }
    let called = std::env::args_os().next().unwrap_or_else(|| name().into());
    let here = std::env::current_dir().ok();
    let file = std::env::current_exe().ok();
    match here.zip(file).and_then(|(here, file)| cargo_run(&called, &here, &file)) {
        Some(command) => command,
        None => quoted(&called),
    }
}

/// `cargo run` that builds and calls this file, `None` where a name on the path does or none would. It is the default of its
/// workspace, so it is `lab`.
fn cargo_run(called: &OsString, here: &Path, file: &Path) -> Option<String> {
    let profile = file.parent()?;
    let root = profile.parent().filter(|target| target.ends_with("target"))?.parent()?;
    let is_there = here.starts_with(root) && root.join("Cargo.lock").is_file();
    let by_path = Path::new(called).components().count() > 1;
    let release = match profile.file_name()?.to_str()? {
        "debug" => "",
        "release" => "--release ",
        _ => return None,
    };
    (by_path && is_there && file.ends_with("lab")).then(|| format!("cargo run --quiet {release}--"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_calls_what_lies_in_the_target_of_the_workspace() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("Cargo.lock"), "").unwrap();
        let at = |file: &str| root.path().join(file);
        let of =
            |called: &str, here: &str, file: &str| cargo_run(&called.into(), &at(here), &at(file));
        let debug = "target/debug/lab";
        assert_eq!(of(debug, "", debug).as_deref(), Some("cargo run --quiet --"));
        assert_eq!(of("../lab", "stages", debug).as_deref(), Some("cargo run --quiet --"));
        let release = "target/release/lab";
        assert_eq!(of(release, "", release).as_deref(), Some("cargo run --quiet --release --"));
        // By its name, from elsewhere, installed, or another tool.
        assert_eq!(of("lab", "", debug), None);
        assert_eq!(cargo_run(&debug.into(), Path::new("/"), &at(debug)), None);
        assert_eq!(of("bin/lab", "", "bin/lab"), None);
        assert_eq!(of("target/debug/lab-checker", "", "target/debug/lab-checker"), None);
    }
}

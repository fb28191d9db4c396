//! `lab debug FILE.cu --kernel … --thread 3,0,0 --blk 1,0,0`: gdb at one thread of a kernel.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Args;
use serde_json::json;

use crate::arguments::bad;
use crate::failure::CheckFailure;
use crate::kernel;

/// Opens gdb where a thread of a kernel begins, all local variables there. `next`, `break FILE.cu:LINE`, `print`
/// and the rest are gdb's own; `lab-thread 4,0,0 1,0,0` goes on to another thread, one that has not begun;
/// `lab-where` says which thread this is.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A file of CUDA C++
    #[arg(value_name = "FILE.cu")]
    file: PathBuf,
    /// threadIdx of the thread
    #[arg(long, value_name = "X[,Y[,Z]]", default_value = "0")]
    thread: String,
    /// blockIdx of the thread
    #[arg(long, value_name = "X[,Y[,Z]]", default_value = "0")]
    blk: String,
    /// A command of gdb at that thread, such as 'info locals'; may be given several times
    #[arg(long, value_name = "COMMAND", allow_hyphen_values = true)]
    ex: Vec<String>,
    /// Ends behind these commands
    #[arg(long)]
    batch: bool,
    /// Seed of random values, and of --order random
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    kernel: kernel::Arguments,
}

/// What gdb is told first.
const SCRIPT: &str = "set confirm off
set breakpoint pending on
set debuginfod enabled off
set print thread-events off
set print inferior-events off
set disable-randomization off
set environment LAB_EMULATOR_THREADS 1
set environment LAB_EMULATOR_STALL_SECONDS 86400
handle SIG37 nostop noprint pass
define lab-thread
  set var emu_wanted_thread = {$arg0}
  set var emu_wanted_block = {$arg1}
  continue
  finish
end
document lab-thread
lab-thread X,Y,Z BX,BY,BZ: goes on to where that thread begins.
end
define lab-where
  printf \"thread (%d,%d,%d) of block (%d,%d,%d)\\n\", emu_coordinate(0), emu_coordinate(1), emu_coordinate(2), emu_coordinate(3), emu_coordinate(4), emu_coordinate(5)
end
document lab-where
Which thread of which block this is.
end
break emu_debug_here
run
finish
";

/// Puts gdb in the place of this process; with `--batch`, waits for it, and with `json` as well gives what it says as one object.
///
/// # Errors
/// Bad arguments, or no gdb.
pub fn run(json: bool, arguments: &Arguments) -> Result<(), CheckFailure> {
    if json && !arguments.batch {
        return Err(bad("--json", "--batch beside it, for gdb asks and answers by itself", "none"));
    }
    let name = arguments.file.display().to_string();
    if arguments.file.to_str().is_none() {
        return Err(bad("FILE.cu", "a file whose name is UTF-8", &format!("'{name}'")));
    }
    if !kernel::is_file(&name) {
        return Err(bad("FILE.cu", "a file of CUDA C++", &format!("'{name}'")));
    }
    let wanted = [index("--thread", &arguments.thread)?, index("--blk", &arguments.blk)?].concat();
    kernel::validate(&arguments.file, &arguments.kernel)?;
    if Command::new("gdb").arg("--version").output().is_err() {
        return Err(CheckFailure::Unavailable(
            "gdb: expected it in PATH, got none (Debian, Ubuntu: apt install gdb)".into(),
        ));
    }
    let tool =
        crate::own::command().map_err(|e| CheckFailure::file(crate::own::name().as_ref(), e))?;
    let here = tempfile::tempdir().map_err(|e| CheckFailure::file(&std::env::temp_dir(), e))?;
    let script = here.path().join("begin.gdb");
    let cwd = std::env::current_dir().unwrap_or_default();
    std::fs::write(&script, format!("directory {}\n{SCRIPT}", cwd.display()))
        .map_err(|e| CheckFailure::file(&script, e))?;
    let mut gdb = Command::new("gdb");
    gdb.args(["-q", "-iex", "set auto-load python-scripts off", "-x"]).arg(&script);
    if arguments.batch {
        gdb.arg("--batch");
    }
    for command in &arguments.ex {
        gdb.arg("-ex").arg(command);
    }
    // The same command line, as one of `lab run`.
    let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
    gdb.arg("--args").args(tool).arg("run").args(own()).arg("--debugged").arg(wanted.join(","));
    if arguments.batch {
        let failed = |e| CheckFailure::file("gdb".as_ref(), e);
        let status = if json {
            let said = gdb.stderr(Stdio::inherit()).output().map_err(failed)?;
            if said.status.success() {
                say!("{}", json!({ "gdb": String::from_utf8_lossy(&said.stdout) }));
            }
            said.status
        } else {
            gdb.status().map_err(failed)?
        };
        return if status.success() {
            Ok(())
        } else {
            Err(CheckFailure::Unavailable("gdb: expected it to run the kernel, it did not".into()))
        };
    }
    // gdb needs the script until it ends, and it ends when this process does.
    let _ = here.keep();
    Err(CheckFailure::file("gdb".as_ref(), gdb.exec()))
}

/// The words behind `debug` that are not of this command alone.
fn own() -> Vec<OsString> {
    let mut words = crate::own::arguments().into_iter();
    let mut all = Vec::new();
    let mut is_first = true;
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        match text.as_str() {
            "debug" if is_first => is_first = false,
            "--thread" | "--blk" | "--ex" => drop(words.next()),
            "--batch" | "--json" => {}
            _ if ["--thread=", "--blk=", "--ex="].iter().any(|o| text.starts_with(o)) => {}
            _ => all.push(word),
        }
    }
    all
}

fn index(option: &str, text: &str) -> Result<Vec<u32>, CheckFailure> {
    let parts: Result<Vec<u32>, _> = text.split(',').map(|p| p.trim().parse::<u32>()).collect();
    match parts {
        Ok(mut parts) if parts.len() <= 3 => {
            parts.resize(3, 0);
            Ok(parts)
        }
        _ => Err(bad(option, "an index such as 3 or 3,0,0", &format!("'{text}'"))),
    }
}

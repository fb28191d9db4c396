//! The tool `lab`.

use std::process::ExitCode;

/// Run before `main`.
// SAFETY: it asks the system about a descriptor, and needs nothing of the standard library's.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_STDOUT: extern "C" fn() = lab_checker::out::look_at_stdout;

fn main() -> ExitCode {
    // `lab list | head` ends quietly, as other tools do.
    // SAFETY: sets a signal's disposition before any thread is started.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    lab::main()
}

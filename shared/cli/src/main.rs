//! The tool `lab`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // `lab list | head` ends quietly, as other tools do.
    // SAFETY: sets a signal's disposition before any thread is started.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    lab::main()
}

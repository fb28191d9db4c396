//! What is printed. A full disk or a reader that has gone ends no work: what cannot be printed is lost, and
//! [`lost`] says so at the end.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static LOST: OnceLock<String> = OnceLock::new();
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Looks whether stdout is closed, as `lab list >&-` closes it. The standard library opens /dev/null in its place before
/// `main` begins: a tool puts this into its section `.init_array`, which is run before that.
pub extern "C" fn look_at_stdout() {
    // SAFETY: asks for the flags of a descriptor, which need not be open.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    IS_CLOSED.store(flags == -1, Ordering::Relaxed);
}

/// A line on stdout.
pub fn line(text: Arguments<'_>) {
    if IS_CLOSED.load(Ordering::Relaxed) {
        let _ = LOST.set("it is closed".to_owned());
    }
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.write_all(b"\n"))
        && error.kind() != ErrorKind::BrokenPipe
    {
        // The first says why.
        let _ = LOST.set(error.to_string());
    }
}

/// A line on stderr. Where that is full, there is no place left to say so.
pub fn note(text: Arguments<'_>) {
    let mut out = std::io::stderr().lock();
    let _ = out.write_fmt(text).and_then(|()| out.write_all(b"\n"));
}

/// Why a part of stdout is missing; none where it is whole, or its reader has had enough.
pub fn lost() -> Option<&'static str> {
    // What stands in its buffer counts.
    if let Err(error) = std::io::stdout().flush()
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = LOST.set(error.to_string());
    }
    LOST.get().map(String::as_str)
}

/// A reader of stdout or stderr that has gone does not end this process.
pub fn outlive_readers() {
    // SAFETY: sets a signal's disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

//! Where a program's own output goes while the report has stdout.

use std::os::fd::AsRawFd;

/// Where stdout went before the program had it.
static STDOUT: std::sync::OnceLock<i32> = std::sync::OnceLock::new();

/// One JSON object is all that stdout gets.
pub(crate) fn output_to_stderr() {
    // SAFETY: descriptors of this process, which nobody uses yet.
    unsafe {
        let _ = STDOUT.set(libc::dup(std::io::stdout().as_raw_fd()));
        libc::dup2(std::io::stderr().as_raw_fd(), std::io::stdout().as_raw_fd());
    }
}

/// Undoes [`output_to_stderr`], if that was called.
pub(crate) fn output_to_stdout() {
    if let Some(&stdout) = STDOUT.get() {
        // SAFETY: both are descriptors of this process, and the copy is closed by nobody.
        unsafe { libc::dup2(stdout, std::io::stdout().as_raw_fd()) };
    }
}

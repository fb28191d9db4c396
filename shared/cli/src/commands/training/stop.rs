//! Ctrl-C during a training.

use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

/// The first Ctrl-C lets the steps under way end and keeps where they ended, the second ends at once.
pub(crate) fn stop_at_ctrl_c() {
    extern "C" fn asked(_: libc::c_int) {
        STOP.store(true, Ordering::Relaxed);
        // SAFETY: may be called in a handler.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    }
    let asked: extern "C" fn(libc::c_int) = asked;
    // SAFETY: the handler only stores a flag and sets a signal's disposition.
    unsafe { libc::signal(libc::SIGINT, asked as libc::sighandler_t) };
}

/// Ends as Ctrl-C ends any program.
pub(crate) fn end_as_asked() {
    // SAFETY: the default disposition of the signal ends the process.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_DFL);
        libc::raise(libc::SIGINT);
    }
}

/// Whether someone has asked for a stop.
pub(crate) fn asked() -> bool {
    STOP.load(Ordering::Relaxed)
}

//! Host code of a file, static initialisers say, that ends the process before its kernel has been launched.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Says why the process ends, with its exit code, and ends it.
type End = fn(String, i32);

/// The process that waits for the launch, and what tells an end that comes before.
static WATCH: OnceLock<(u32, End)> = OnceLock::new();
static OVER: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Tells ends from here on by `end`, which does not return.
pub(crate) fn watch(end: End) {
    if WATCH.set((std::process::id(), end)).is_ok() {
        // SAFETY: a function that takes nothing of this one's.
        unsafe { on_exit(ended, std::ptr::null_mut()) };
    }
}

/// The kernel has been launched, or it is told why not: ends are the tool's own.
pub(crate) fn is_over() {
    OVER.store(true, Ordering::SeqCst);
}

/// The process ends. Does not return where nobody expects that.
pub(crate) fn tell(status: c_int) {
    if let Some((process, end)) = WATCH.get()
        && *process == std::process::id()
        && !OVER.swap(true, Ordering::SeqCst)
    {
        end(
            format!(
                "expected the kernel to be launched, but the file's own code has ended the process, with {status}"
            ),
            status,
        );
    }
}

extern "C" fn ended(status: c_int, _: *mut c_void) {
    tell(status);
}

//! How much memory a program may have.

use std::sync::atomic::{AtomicU64, Ordering};

static DEVICE: AtomicU64 = AtomicU64::new(u64::MAX);

/// Of the device's memory, so many bytes there may be in all.
pub(crate) fn device_memory() -> u64 {
    DEVICE.load(Ordering::Relaxed)
}

/// Lets there be so many bytes of the device's memory.
pub(crate) fn limit_device_memory(bytes: u64) {
    DEVICE.store(bytes, Ordering::Relaxed);
}

/// Lets this process, from now on, have so many bytes on the host beyond those that it has, and so many on
/// the device. An allocation beyond that fails, as it does where there is no more.
///
/// # Errors
/// The system refuses, and says why.
pub fn limit_memory(bytes: u64) -> Result<(), String> {
    // The device's memory is reserved as a whole: that is not to be counted as the host's.
    let first = lab_emulator::allocate(1).map_err(|e| e.to_string())?;
    // SAFETY: allocated above, and used by nobody.
    unsafe { lab_emulator::free(first) };
    DEVICE.store(bytes, Ordering::Relaxed);
    let pages = std::fs::read_to_string("/proc/self/statm").map_err(|e| e.to_string())?;
    let pages: u64 = pages.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let limit = bytes.saturating_add(pages * page);
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: a limit of this process.
    match unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } {
        0 => Ok(()),
        _ => Err(format!("the memory limit: {}", std::io::Error::last_os_error())),
    }
}

//! A compilation that ends when it must: at its time limit, and with this process.
//!
//! The compiler is a process of its own, with more below it. A signal that ends this process would leave them, and the
//! directory that they write to.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Error, Options};

/// So long a compilation may take, whatever the limit of the run is.
const LEAST_TIME: Duration = Duration::from_secs(30);
/// A run has so much time at least, where its limit is so short that it can only be meant for that.
const LEAST_RUN: Duration = Duration::from_secs(1);

/// How long what was begun at `begun`, and is to end `timeout` later, may still run now that it is compiled. A limit
/// shorter than what a compiler gets at least is one for the run: that has up to a second of it, however long compiling took.
pub fn time_to_run(timeout: Duration, begun: Instant) -> Duration {
    let least = if timeout < LEAST_TIME { timeout.min(LEAST_RUN) } else { Duration::ZERO };
    timeout.saturating_sub(begun.elapsed()).max(least)
}
/// So much memory a compiler may have, likewise.
const LEAST_MEMORY: u64 = 2 << 30;
/// How often compilers are ended that begin behind the time limit.
const AGAIN: Duration = Duration::from_millis(50);

const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Where a signal is noted, while there is a compilation.
static NOTED: AtomicI32 = AtomicI32::new(-1);

/// One compilation. Another one in the same process, at the same time, is not watched.
pub(crate) struct Compiling {
    watch: Option<Watch>,
}

struct Watch {
    thread: JoinHandle<()>,
    /// Both ends of a pipe: a signal's number, or 0 at the end.
    ends: [OwnedFd; 2],
    before: Vec<(libc::c_int, libc::sigaction)>,
    memory: Option<libc::rlimit>,
    limit: Option<Duration>,
    is_late: Arc<AtomicBool>,
}

impl Compiling {
    /// Watches what is compiled from now on, into this directory.
    pub(crate) fn begin(scratch: &Path, options: &Options) -> Self {
        let Some(ends) = pipe() else { return Self { watch: None } };
        let free =
            NOTED.compare_exchange(-1, ends[1].as_raw_fd(), Ordering::SeqCst, Ordering::SeqCst);
        if free.is_err() {
            return Self { watch: None };
        }
        let limit = options.timeout.map(|t| t.max(LEAST_TIME));
        let is_late = Arc::new(AtomicBool::new(false));
        let (reader, scratch, late) =
            (ends[0].as_raw_fd(), scratch.to_owned(), Arc::clone(&is_late));
        let thread = std::thread::spawn(move || look(reader, &scratch, limit, &late));
        let before = SIGNALS.iter().filter_map(|&signal| Some((signal, take(signal)?))).collect();
        let memory = options.memory.and_then(|bytes| limit_memory(bytes.max(LEAST_MEMORY)));
        Self { watch: Some(Watch { thread, ends, before, memory, limit, is_late }) }
    }

    /// The outcome, or that there was none in time.
    pub(crate) fn end<T>(self, outcome: Result<T, Error>) -> Result<T, Error> {
        let watch = self.watch.as_ref();
        let is_late = watch.is_some_and(|w| w.is_late.load(Ordering::SeqCst));
        let limit = watch.and_then(|w| w.limit).filter(|_| is_late);
        match (outcome, limit) {
            (Err(_), Some(limit)) => Err(Error::Late { limit }),
            (outcome, _) => outcome,
        }
    }
}

impl Drop for Compiling {
    fn drop(&mut self) {
        let Some(watch) = self.watch.take() else { return };
        for (signal, before) in &watch.before {
            // SAFETY: what was there before.
            unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
        }
        if let Some(before) = watch.memory {
            // SAFETY: a limit of this process.
            unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const before) };
        }
        NOTED.store(-1, Ordering::SeqCst);
        note_down(watch.ends[1].as_raw_fd(), 0);
        let _ = watch.thread.join();
    }
}

fn pipe() -> Option<[OwnedFd; 2]> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which come back as this function's to own.
    unsafe {
        let made = libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) == 0;
        made.then(|| ends.map(|end| OwnedFd::from_raw_fd(end)))
    }
}

fn note_down(end: libc::c_int, signal: libc::c_int) {
    let byte = signal as u8;
    // SAFETY: one byte that is there.
    unsafe { libc::write(end, (&raw const byte).cast(), 1) };
}

extern "C" fn on_signal(signal: libc::c_int) {
    let end = NOTED.load(Ordering::SeqCst);
    if end >= 0 {
        note_down(end, signal);
    }
}

/// Lets a signal be noted that would end the process; what was there before.
fn take(signal: libc::c_int) -> Option<libc::sigaction> {
    // SAFETY: a handler that writes one byte.
    unsafe {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        libc::sigaction(signal, std::ptr::null(), &raw mut before);
        if before.sa_sigaction != libc::SIG_DFL {
            return None;
        }
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        Some(before)
    }
}

/// Lets this process, and so the compilers that it begins, have so many bytes; what was there before.
fn limit_memory(bytes: u64) -> Option<libc::rlimit> {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: limits of this process.
    unsafe {
        let asked = libc::getrlimit(libc::RLIMIT_AS, &raw mut before) == 0;
        let own = libc::rlimit { rlim_cur: bytes.min(before.rlim_max), ..before };
        (asked && libc::setrlimit(libc::RLIMIT_AS, &raw const own) == 0).then_some(before)
    }
}

/// Waits for the end of the compilation, a signal, or the time limit.
fn look(reader: libc::c_int, scratch: &Path, limit: Option<Duration>, is_late: &AtomicBool) {
    let begun = Instant::now();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()).max(AGAIN));
        let mut entry = libc::pollfd { fd: reader, events: libc::POLLIN, revents: 0 };
        let wait = left.map_or(-1, |left| i32::try_from(left.as_millis()).unwrap_or(i32::MAX));
        // SAFETY: one entry.
        if unsafe { libc::poll(&raw mut entry, 1, wait) } > 0 {
            let mut byte = 0u8;
            // SAFETY: room for one byte.
            let count = unsafe { libc::read(reader, (&raw mut byte).cast(), 1) };
            match byte {
                _ if count != 1 => return,
                0 => return,
                signal => end_by(libc::c_int::from(signal), scratch),
            }
        }
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            is_late.store(true, Ordering::SeqCst);
            end_processes_below();
        }
    }
}

/// Ends this process as the signal would have ended it, and leaves nothing behind.
fn end_by(signal: libc::c_int, scratch: &Path) {
    // Once more: a compiler may have begun another while it was looked for.
    for _ in 0..2 {
        end_processes_below();
    }
    let _ = fs::remove_dir_all(scratch);
    // SAFETY: the signal's own effect.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
    }
}

/// Ends the processes that this one has begun, and theirs.
pub(crate) fn end_processes_below() {
    let own = std::process::id();
    let mut parents: Vec<(u32, u32)> = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat: PathBuf = entry.path().join("stat");
        // The name, which may hold anything, stands in parentheses.
        let parent = fs::read_to_string(stat).ok().and_then(|text| {
            text.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
        });
        parents.extend(parent.map(|parent| (process, parent)));
    }
    let mut below = vec![own];
    let mut at = 0;
    while let Some(&parent) = below.get(at) {
        below.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(process, _)| *process));
        at += 1;
    }
    for &process in &below[1..] {
        // SAFETY: a process that this one has begun, directly or not.
        unsafe { libc::kill(process as i32, libc::SIGKILL) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_counts_from_the_beginning() {
        let seconds = Duration::from_secs_f64;
        let left = |timeout, compiled| {
            let begun = Instant::now().checked_sub(seconds(compiled)).unwrap();
            time_to_run(seconds(timeout), begun).as_secs_f64()
        };
        let about = |a: f64, b: f64| (a - b).abs() < 0.5;
        assert!(about(left(35.0, 20.0), 15.0), "35 seconds in all");
        assert!(about(left(35.0, 40.0), 0.0), "and no more");
        assert!(about(left(10.0, 4.0), 6.0));
        assert!(left(0.3, 4.0) >= 0.3, "for the run alone");
        assert!(about(left(10.0, 12.0), 1.0), "compiled too late, and yet it runs");
    }
}

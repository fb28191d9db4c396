//! A signal in a program's host code: its own end, told in one line.
//!
//! Signals of kernels are the emulator's affair, which asks first and passes on what is not a kernel's.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use lab_emulator::Module;

/// What the process makes of it: the line, and the exit code that a shell would tell.
pub(crate) type End = fn(String, c_int);

static PROGRAM: OnceLock<(Arc<Module>, End)> = OnceLock::new();
static HAS_FAULTED: AtomicBool = AtomicBool::new(false);

const SIGNALS: [(c_int, &str); 5] = [
    (libc::SIGSEGV, "an access to an invalid address"),
    (libc::SIGBUS, "an access to an invalid address"),
    (libc::SIGFPE, "an integer division by zero, or of the least integer by -1"),
    (libc::SIGILL, "an illegal instruction"),
    (libc::SIGABRT, "abort() was called"),
];
/// Frames that are looked at.
const DEPTH: usize = 64;
/// So long may the report take: whatever is locked stays locked.
const PATIENCE_SECONDS: u32 = 10;

thread_local! {
    /// Room for the report: a thread that has overflowed its stack has none left there.
    static ALTERNATE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" {
    // Of glibc; the crate libc does not name it.
    fn backtrace(to: *mut *mut c_void, count: c_int) -> c_int;
}

/// Watches this thread and all that the program starts. Before the first launch, and once.
pub(crate) fn watch(module: Arc<Module>, end: End) {
    if PROGRAM.set((module, end)).is_err() {
        return;
    }
    const BYTES: usize = 512 * 1024;
    ALTERNATE.with_borrow_mut(|own| {
        own.resize(BYTES, 0);
        let stack = libc::stack_t { ss_sp: own.as_mut_ptr().cast(), ss_flags: 0, ss_size: BYTES };
        // SAFETY: the memory lives as long as the thread, and nothing else uses it.
        unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) };
    });
    // The first call loads a library, which a handler must not.
    let mut first = [std::ptr::null_mut(); 1];
    // SAFETY: room for one address.
    unsafe { backtrace(first.as_mut_ptr(), 1) };
    for (signal, _) in SIGNALS {
        // SAFETY: a handler with the signature that SA_SIGINFO asks for.
        unsafe {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Return addresses of the functions that this thread is in.
pub(crate) fn frames() -> Vec<usize> {
    let mut frames = [std::ptr::null_mut::<c_void>(); DEPTH];
    // SAFETY: room for as many addresses.
    let count = unsafe { backtrace(frames.as_mut_ptr(), DEPTH as c_int) };
    frames[..(count.max(0) as usize).min(DEPTH)].iter().map(|f| *f as usize).collect()
}

extern "C" fn give_up(_: c_int) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(128 + libc::SIGABRT) }
}

unsafe extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // The report itself has failed.
    if HAS_FAULTED.swap(true, Ordering::SeqCst) {
        give_up(signal);
    }
    // SAFETY: the default mask and a handler that only ends the process.
    unsafe {
        libc::signal(libc::SIGALRM, give_up as *const () as usize);
        libc::alarm(PATIENCE_SECONDS);
    }
    let Some((module, end)) = PROGRAM.get() else { return give_up(signal) };
    let mut frames = [std::ptr::null_mut::<c_void>(); DEPTH];
    // SAFETY: room for as many addresses; the context is the kernel's own.
    let (count, pc, address) = unsafe {
        let count = backtrace(frames.as_mut_ptr(), DEPTH as c_int);
        (count as usize, pc(&*context.cast::<libc::ucontext_t>()), (*info).si_addr() as usize)
    };
    // As a return address, which is the instruction after the call.
    let places =
        std::iter::once(pc + 1).chain(frames[..count.min(DEPTH)].iter().map(|f| *f as usize));
    let place = places.filter(|&p| p != pc).find_map(|p| module.own_source(p));
    let what = SIGNALS.iter().find(|(s, _)| *s == signal).map_or("a signal", |(_, what)| what);
    let at = match signal {
        libc::SIGSEGV | libc::SIGBUS => format!(", {address:#x}"),
        _ => String::new(),
    };
    let place = place.map_or_else(|| "not in a line of its own".into(), |p| format!("at {p}"));
    end(format!("the program's host code: {what}{at}, {place}"), 128 + signal);
    give_up(signal);
}

#[cfg(target_arch = "x86_64")]
fn pc(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
}

#[cfg(target_arch = "aarch64")]
fn pc(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.pc as usize
}

//! Signals and the watchdog: a bad address, a stack overflow or an endless loop inside a kernel
//! ends the launch with a report, never the process and never in a hang.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use corosensei::trap::TrapHandlerRegs;

use crate::hooks;
use crate::thread::{Fault, State, Thread};

/// What the watchdog watches of one launch.
#[derive(Debug)]
pub(crate) struct Watched {
    limit: Duration,
    /// For each of the launch's runners, its turns that were more than polling.
    progress: Mutex<Vec<Arc<AtomicU64>>>,
    abort: AtomicBool,
    stalled: AtomicBool,
    cancel: Option<Cancel>,
    workers: Mutex<Vec<libc::pthread_t>>,
}

impl Watched {
    /// Starts watching a launch; it ends when the last `Arc` goes.
    pub(crate) fn start(limit: Duration) -> Arc<Self> {
        install_handlers();
        let watched = Arc::new(Self {
            limit,
            progress: Mutex::default(),
            abort: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            cancel: CANCEL.with_borrow(Clone::clone),
            workers: Mutex::new(Vec::new()),
        });
        monitor().add(Arc::downgrade(&watched));
        watched
    }

    /// A counter that the watchdog looks at.
    pub(crate) fn counter(&self) -> Arc<AtomicU64> {
        let counter = Arc::default();
        let mut all = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Arc::clone(&counter));
        counter
    }

    /// The sum of all counters. They only grow, so while it stands still nothing moves.
    fn total(&self) -> u64 {
        let all = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|c| c.load(Ordering::Relaxed)).sum()
    }

    /// Whether the launch is to end: somebody failed, or the watchdog gave up on it.
    pub(crate) fn is_aborted(&self) -> bool {
        self.abort.load(Ordering::Relaxed)
    }

    pub(crate) fn abort(&self) {
        self.abort.store(true, Ordering::Relaxed);
    }

    /// Whether it was the watchdog that ended the launch.
    pub(crate) fn stalled(&self) -> Option<Duration> {
        self.stalled.load(Ordering::Relaxed).then_some(self.limit)
    }

    /// Whether somebody has [cancelled](Cancel) the launch.
    pub(crate) fn cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    /// Stops the kernels of a launch that is to end where they stand; again until each has left its own.
    fn interrupt(&self) {
        self.abort();
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        for &worker in workers.iter() {
            // SAFETY: a registered thread is alive: it takes itself off the list, under this lock, before it ends.
            unsafe { libc::pthread_kill(worker, interrupt_signal()) };
        }
    }

    /// Registers this OS thread, which runs the launch's kernels until the guard is dropped.
    pub(crate) fn enlist(self: &Arc<Self>) -> Enlisted {
        // SAFETY: no preconditions.
        let own = unsafe { libc::pthread_self() };
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(own);
        Enlisted { watched: Arc::clone(self), own }
    }
}

pub(crate) struct Enlisted {
    watched: Arc<Watched>,
    own: libc::pthread_t,
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        let mut workers = self.watched.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|&w| w != self.own);
    }
}

/// Ends launches that nobody wants any more: those of work that is done [within](Cancel::within) it.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

thread_local! {
    /// Of the launches that begin on this thread now.
    static CANCEL: RefCell<Option<Cancel>> = const { RefCell::new(None) };
}

impl Cancel {
    /// Ends its launches where they stand, within some tenths of a second, and refuses those to come: each fails with
    /// [`LaunchError::Cancelled`](crate::LaunchError::Cancelled).
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Does work whose launches, as far as they begin on this thread, it can end.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Restored(Option<Cancel>);
        impl Drop for Restored {
            fn drop(&mut self) {
                CANCEL.set(self.0.take());
            }
        }
        let _restored = Restored(CANCEL.replace(Some(self.clone())));
        work()
    }
}

struct Monitor {
    /// Whose thread watches: one that was forked has none of its parent's threads.
    process: u32,
    launches: Mutex<Vec<Weak<Watched>>>,
    some: Condvar,
}

fn monitor() -> &'static Monitor {
    static MONITOR: AtomicPtr<Monitor> = AtomicPtr::new(std::ptr::null_mut());
    let process = std::process::id();
    let known = MONITOR.load(Ordering::Acquire);
    // SAFETY: null, or of a monitor that stays for ever.
    if let Some(monitor) = unsafe { known.as_ref() }
        && monitor.process == process
    {
        return monitor;
    }
    let (launches, some) = (Mutex::new(Vec::new()), Condvar::new());
    let monitor = Box::into_raw(Box::new(Monitor { process, launches, some }));
    let relaxed = Ordering::AcqRel;
    if let Err(other) = MONITOR.compare_exchange(known, monitor, relaxed, Ordering::Acquire) {
        // SAFETY: nobody has seen this one; the other stays for ever.
        return unsafe {
            drop(Box::from_raw(monitor));
            &*other
        };
    }
    // SAFETY: from here on it stays for ever.
    let monitor: &'static Monitor = unsafe { &*monitor };
    // Without the watchdog an endless loop hangs, but everything else still works.
    let _ =
        std::thread::Builder::new().name("emulator-watchdog".into()).spawn(move || monitor.watch());
    monitor
}

impl Monitor {
    fn add(&self, launch: Weak<Watched>) {
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        launches.push(launch);
        if launches.len() == 1 {
            self.some.notify_one();
        }
    }

    fn watch(&self) {
        const STEP: Duration = Duration::from_millis(100);
        // What was last seen of each launch, by its address.
        let mut seen: Vec<(*const Watched, u64, Instant)> = Vec::new();
        loop {
            let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
            launches.retain(|w| w.strong_count() > 0);
            while launches.is_empty() {
                seen.clear();
                launches = self.some.wait(launches).unwrap_or_else(PoisonError::into_inner);
            }
            let alive: Vec<Arc<Watched>> = launches.iter().filter_map(Weak::upgrade).collect();
            drop(launches);
            seen.retain(|s| alive.iter().any(|l| Arc::as_ptr(l) == s.0));
            for launch in &alive {
                if launch.cancelled() {
                    launch.interrupt();
                    continue;
                }
                let progress = launch.total();
                let key = Arc::as_ptr(launch);
                match seen.iter_mut().find(|s| s.0 == key) {
                    Some(s) if s.1 == progress => {
                        if s.2.elapsed() >= launch.limit {
                            launch.stalled.store(true, Ordering::Relaxed);
                            launch.interrupt();
                        }
                    }
                    Some(s) => (s.1, s.2) = (progress, Instant::now()),
                    None => seen.push((key, progress, Instant::now())),
                }
            }
            drop(alive);
            std::thread::sleep(STEP);
        }
    }
}

fn interrupt_signal() -> libc::c_int {
    libc::SIGRTMIN() + 3
}

struct Previous(libc::c_int, libc::sigaction);

thread_local! {
    /// Room for the handlers: a thread that overflowed its stack has none left there.
    static ALTERNATE: RefCell<Option<Box<[u8]>>> = const { RefCell::new(None) };
}

static PREVIOUS: OnceLock<Vec<Previous>> = OnceLock::new();
const CAUGHT: [libc::c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// Gives this OS thread a stack for signal handlers, where it has none.
pub(crate) fn prepare_thread() {
    const BYTES: usize = 64 * 1024;
    ALTERNATE.with_borrow_mut(|own| {
        if own.is_some() {
            return;
        }
        // SAFETY: asks for the present stack, then gives one that lives as long as the thread.
        unsafe {
            let mut present = MaybeUninit::<libc::stack_t>::zeroed().assume_init();
            libc::sigaltstack(std::ptr::null(), &mut present);
            if present.ss_flags & libc::SS_DISABLE == 0 {
                return; // the standard library's own
            }
            let memory = own.insert(vec![0; BYTES].into_boxed_slice());
            let stack =
                libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: BYTES };
            libc::sigaltstack(&stack, std::ptr::null_mut());
        }
    });
}

fn install_handlers() {
    PREVIOUS.get_or_init(|| {
        let mut signals: Vec<libc::c_int> = CAUGHT.to_vec();
        signals.push(interrupt_signal());
        signals
            .into_iter()
            .map(|signal| {
                // SAFETY: a handler with SA_SIGINFO's signature; it only touches its own OS
                // thread's state and passes on what is not a kernel's.
                unsafe {
                    let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                    action.sa_sigaction = handle as *const () as usize;
                    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
                    let mut previous = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                    libc::sigaction(signal, &action, &mut previous);
                    Previous(signal, previous)
                }
            })
            .collect()
    });
}

unsafe extern "C" fn handle(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel's own pointers; the thread is that whose coroutine this signal interrupted, on
    // this very OS thread, and its block's facts outlive it.
    let handled = unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        hooks::interrupted().is_some_and(|(mut thread, facts)| {
            interrupt(thread.as_mut(), (*facts).text, signal, &*info, context)
        })
    };
    if !handled && signal != interrupt_signal() {
        // SAFETY: the handler that was there before, called as the kernel would have.
        unsafe { pass_on(signal, info, context) };
    }
}

/// Ends the interrupted coroutine, if the signal came from the kernel's own code.
///
/// # Safety
/// Called from a signal handler, with the context it interrupted.
unsafe fn interrupt(
    thread: &mut Thread,
    (text_start, text_end): (usize, usize),
    signal: libc::c_int,
    info: &libc::siginfo_t,
    context: &mut libc::ucontext_t,
) -> bool {
    let (pc, sp) = registers(context);
    let Some(trap) = thread.trap else { return false };
    if !trap.stack_ptr_in_bounds(sp) && !thread.guard.contains(&sp) {
        return false;
    }
    let in_kernel = (text_start..text_end).contains(&pc);
    // SAFETY: for the signals caught here the kernel fills in the address.
    let address = unsafe { info.si_addr() } as usize;
    // A non-canonical address raises a general protection fault, which carries none.
    const SI_KERNEL: libc::c_int = 0x80;
    let known = (info.si_code != SI_KERNEL).then_some(address);
    let fault = match signal {
        // Not while the runtime itself runs: it would be left half done. Asked again soon.
        s if s == interrupt_signal() && !in_kernel => return false,
        s if s == interrupt_signal() => {
            Fault::Interrupted { polls: thread.state == State::Polling }
        }
        _ if thread.guard.contains(&address) => Fault::StackOverflow,
        libc::SIGSEGV | libc::SIGBUS => {
            Fault::Signal { name: "access to an invalid address", address: known }
        }
        libc::SIGFPE => Fault::Signal { name: what_divides(context), address: None },
        _ => Fault::Signal { name: "illegal instruction", address: None },
    };
    thread.fault = Some(fault);
    thread.state = State::Failed;
    thread.paused_at = thread.pc;
    thread.pc = pc + 1; // as a return address would be: just past the instruction
    // SAFETY: the stack pointer is inside the coroutine, whose frames own nothing; the registers
    // are set below.
    let target = unsafe { trap.setup_trap_handler(|| ()) };
    set_registers(context, target);
    true
}

/// What x86 stops a division for: a divisor of zero, or a quotient that has no room. Of dividends that are an integer with
/// its sign, only the least has such a quotient.
#[cfg(target_arch = "x86_64")]
fn what_divides(context: &libc::ucontext_t) -> &'static str {
    let register = |which: libc::c_int| context.uc_mcontext.gregs[which as usize];
    let (low, high) = (register(libc::REG_RAX), register(libc::REG_RDX));
    let is_least = |low: i64, high: i64, least: i64| low == least && high == -1;
    let narrow = is_least(i64::from(low as i32), i64::from(high as i32), i64::from(i32::MIN));
    if narrow || is_least(low, high, i64::MIN) {
        "division of the least integer, by -1 or zero: the quotient is no such integer"
    } else {
        "integer division by zero"
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn what_divides(_: &libc::ucontext_t) -> &'static str {
    "integer division by zero"
}

#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> (usize, usize) {
    let r = &context.uc_mcontext.gregs;
    (r[libc::REG_RIP as usize] as usize, r[libc::REG_RSP as usize] as usize)
}

#[cfg(target_arch = "x86_64")]
fn set_registers(context: &mut libc::ucontext_t, target: TrapHandlerRegs) {
    let r = &mut context.uc_mcontext.gregs;
    r[libc::REG_RIP as usize] = target.rip as i64;
    r[libc::REG_RSP as usize] = target.rsp as i64;
    r[libc::REG_RBP as usize] = target.rbp as i64;
    r[libc::REG_RDI as usize] = target.rdi as i64;
    r[libc::REG_RSI as usize] = target.rsi as i64;
}

#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> (usize, usize) {
    (context.uc_mcontext.pc as usize, context.uc_mcontext.sp as usize)
}

#[cfg(target_arch = "aarch64")]
fn set_registers(context: &mut libc::ucontext_t, target: TrapHandlerRegs) {
    let m = &mut context.uc_mcontext;
    m.pc = target.pc;
    m.sp = target.sp;
    m.regs[0] = target.x0;
    m.regs[1] = target.x1;
    m.regs[29] = target.x29;
    m.regs[30] = target.lr;
}

/// # Safety
/// Called from a signal handler, with its own arguments.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = PREVIOUS.get().and_then(|p| p.iter().find(|p| p.0 == signal));
    match previous.map(|p| (p.1.sa_sigaction, p.1.sa_flags)) {
        Some((handler, flags))
            if handler != libc::SIG_DFL
                && handler != libc::SIG_IGN
                && flags & libc::SA_SIGINFO != 0 =>
        {
            // SAFETY: the previous action was installed with this signature.
            unsafe {
                let handler: unsafe extern "C" fn(
                    libc::c_int,
                    *mut libc::siginfo_t,
                    *mut libc::c_void,
                ) = std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
        // SAFETY: back to the default; the instruction faults again and ends the process.
        _ => unsafe {
            libc::signal(signal, libc::SIG_DFL);
        },
    }
}

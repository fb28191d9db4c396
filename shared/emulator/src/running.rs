//! The CUDA thread that runs on this OS thread, as the functions that its kernel calls see it.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::NonNull;

use crate::access::{How, Kind};
use crate::check::BlockCheck;
use crate::cluster::Cluster;
use crate::shared::Extent;
use crate::thread::{Fault, State, Thread};

/// What all threads of a block share and only read.
pub(crate) struct BlockFacts {
    /// Static shared memory.
    pub(crate) fixed_shared: Extent,
    pub(crate) dynamic_shared: *mut u8,
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) cooperative: bool,
    /// Null where the launch has no clusters.
    pub(crate) cluster: *const Cluster,
    /// An asynchronous copy is made when it is issued, not when it is waited for.
    pub(crate) copies_land_early: bool,
    /// Null where the kernel is not checked.
    pub(crate) check: *mut BlockCheck,
    /// For `__activemask`: a word a warp, its lanes that have not exited.
    pub(crate) live_lanes: *const Cell<u32>,
    /// For signal handlers: where the kernel's own instructions are.
    pub(crate) text: (usize, usize),
}

thread_local! {
    static THREAD: Cell<*mut Thread> = const { Cell::new(std::ptr::null_mut()) };
    static BLOCK: Cell<*const BlockFacts> = const { Cell::new(std::ptr::null()) };
}

/// Says whose threads run on this OS thread from now on.
///
/// # Safety
/// The facts, and all that they point to, outlive the block's [`while_running`] calls.
pub(crate) unsafe fn enter_block(facts: *const BlockFacts) {
    BLOCK.set(facts);
}

/// Runs `resume` while `thread`, of the block that was entered last, is the running one.
///
/// # Safety
/// `resume` resumes the thread's coroutine and uses nothing of the thread or of the block's checks.
#[inline(always)]
pub(crate) unsafe fn while_running<R>(thread: *mut Thread, resume: impl FnOnce() -> R) -> R {
    THREAD.set(thread);
    let outcome = resume();
    THREAD.set(std::ptr::null_mut());
    outcome
}

/// The thread that runs on this OS thread, and the facts of its block; `None` outside of kernels.
/// For signal handlers, which interrupt a coroutine and not the scheduler.
pub(crate) fn interrupted() -> Option<(NonNull<Thread>, *const BlockFacts)> {
    NonNull::new(THREAD.get()).map(|thread| (thread, BLOCK.get()))
}

/// The running CUDA thread, seen from a function that its kernel called.
///
/// While the coroutine is suspended the scheduler reads and writes the same [`Thread`] and the same
/// [`BlockCheck`]. So references to either are bound to a borrow of this, and [`Running::suspend`]
/// borrows it mutably: none can be held over a suspension.
pub(crate) struct Running {
    thread: NonNull<Thread>,
    block: *const BlockFacts,
    pc: usize,
}

impl Running {
    /// `None` outside of any thread: a kernel object's constructors run there.
    ///
    /// # Safety
    /// Called once by a function that the kernel has called and that returns to `pc`; what comes back is
    /// dropped before that function returns.
    #[inline(always)]
    pub(crate) unsafe fn enter(pc: *const c_void) -> Option<Self> {
        let (thread, block) = interrupted()?;
        Some(Self { thread, block, pc: pc as usize })
    }

    /// Return address of the kernel's call.
    #[inline(always)]
    pub(crate) fn pc(&self) -> usize {
        self.pc
    }

    #[inline(always)]
    pub(crate) fn thread(&mut self) -> &mut Thread {
        // SAFETY: the promise of `while_running`. Between two suspensions nobody else touches the thread,
        // for one coroutine at a time runs on an OS thread; and this, by the promise of `enter`, is the
        // call's only way to it.
        unsafe { self.thread.as_mut() }
    }

    #[inline(always)]
    pub(crate) fn block(&self) -> &BlockFacts {
        // SAFETY: the promise of `enter_block`; nobody changes them.
        unsafe { &*self.block }
    }

    /// The checks, where the kernel was compiled for them, and the thread for them to look at.
    #[inline(always)]
    pub(crate) fn check(&mut self) -> Option<(&mut BlockCheck, &mut Thread)> {
        let check = self.block().check;
        // SAFETY: as for the thread.
        Some((unsafe { check.as_mut() }?, self.thread()))
    }

    /// The cluster, where the launch has any.
    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        // SAFETY: the promise of `enter_block`.
        unsafe { self.block().cluster.as_ref() }
    }

    /// Lets the checks look at an access that the call at `pc` makes.
    #[inline(always)]
    pub(crate) fn look_at(
        &mut self,
        address: usize,
        bytes: usize,
        kind: Kind,
        how: How,
        pc: usize,
    ) {
        let Some((check, thread)) = self.check() else { return };
        if let Err(finding) = check.access(thread, address, bytes, kind, how, pc) {
            self.pc = pc;
            self.fail(Fault::Found(finding));
        }
    }

    /// Gives the turn back to the scheduler, until it resumes this thread.
    #[inline(always)]
    pub(crate) fn suspend(&mut self, state: State) {
        let marker = 0u8;
        let pc = self.pc;
        let thread = self.thread();
        thread.sp = &raw const marker as usize;
        thread.state = state;
        thread.pc = pc;
        let yielder = thread.yielder;
        // SAFETY: the coroutine's own, which lives as long as it does.
        unsafe { (*yielder).suspend(()) };
    }

    #[cold]
    pub(crate) fn fail(&mut self, fault: Fault) -> ! {
        self.thread().fault = Some(fault);
        self.suspend(State::Failed);
        // A failed launch never resumes any of its coroutines.
        std::process::abort()
    }
}

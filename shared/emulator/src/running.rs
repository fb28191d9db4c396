//! A CUDA thread while it runs, as the functions that its kernel calls see it.

use std::ptr::NonNull;

use crate::access::{How, Kind};
use crate::check::BlockCheck;
use crate::cluster::Cluster;
use crate::completion::Queue;
use crate::shared::{DYNAMIC_ALIGNMENT, Extent};
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
    /// Its copies in flight.
    pub(crate) queue: *mut Queue,
    /// Null where the kernel is not checked.
    pub(crate) check: *mut BlockCheck,
    /// For signal handlers: where the kernel's own instructions are.
    pub(crate) text: (usize, usize),
}

/// So far behind the beginning of shared memory an address may be made.
const GOES_ON: usize = 1 << 20;

impl BlockFacts {
    /// Where the shared window has what lies at this address: static memory comes first.
    pub(crate) fn to_window(&self, address: usize) -> Option<usize> {
        let (fixed, bytes) = self.fixed_shared;
        let dynamic = address.wrapping_sub(self.dynamic_shared as usize);
        match address.wrapping_sub(fixed) {
            place if place < bytes => Some(place),
            _ if dynamic < self.dynamic_shared_bytes as usize => {
                Some(bytes.next_multiple_of(DYNAMIC_ALIGNMENT) + dynamic)
            }
            _ => None,
        }
    }

    /// Where the window would have an address behind the end of static memory, or of dynamic memory, if that went on.
    pub(crate) fn behind_window(&self, address: usize) -> Option<usize> {
        let (fixed, bytes) = self.fixed_shared;
        let dynamic = bytes.next_multiple_of(DYNAMIC_ALIGNMENT);
        let behind = |(base, from, bytes): (usize, usize, usize)| {
            let place = address.wrapping_sub(base);
            (bytes..GOES_ON).contains(&place).then_some(from + place)
        };
        let dynamic = (self.dynamic_shared as usize, dynamic, self.dynamic_shared_bytes as usize);
        self.to_window(address)
            .or_else(|| [dynamic, (fixed, 0, bytes)].into_iter().find_map(behind))
    }

    /// The address of what the shared window has there.
    pub(crate) fn in_window(&self, place: usize) -> Option<usize> {
        let (fixed, bytes) = self.fixed_shared;
        let dynamic = place.wrapping_sub(bytes.next_multiple_of(DYNAMIC_ALIGNMENT));
        match place {
            _ if place < bytes => Some(fixed + place),
            _ if dynamic < self.dynamic_shared_bytes as usize => {
                Some(self.dynamic_shared as usize + dynamic)
            }
            _ => None,
        }
    }
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
    /// # Safety
    /// The coroutine of `thread`, of the block with these facts, has called a function that returns to
    /// `pc`. This is the call's only way to the thread and the block's checks, and is dropped before the
    /// function returns.
    #[inline(always)]
    pub(crate) unsafe fn new(thread: NonNull<Thread>, block: *const BlockFacts, pc: usize) -> Self {
        Self { thread, block, pc }
    }

    /// Return address of the kernel's call.
    #[inline(always)]
    pub(crate) fn pc(&self) -> usize {
        self.pc
    }

    #[inline(always)]
    pub(crate) fn thread(&mut self) -> &mut Thread {
        // SAFETY: the promise of `new`. Between two suspensions nobody else touches the thread, for one
        // coroutine at a time runs on an OS thread.
        unsafe { self.thread.as_mut() }
    }

    #[inline(always)]
    pub(crate) fn block(&self) -> &BlockFacts {
        // SAFETY: the promise of `new`; nobody changes them.
        unsafe { &*self.block }
    }

    /// The checks, where the kernel was compiled for them, and the thread for them to look at.
    #[inline(always)]
    pub(crate) fn check(&mut self) -> Option<(&mut BlockCheck, &mut Thread)> {
        let check = self.block().check;
        // SAFETY: null, or the block's checks, which live as long as it. Between two suspensions nobody else touches them, for one
        // coroutine at a time runs on an OS thread.
        Some((unsafe { check.as_mut() }?, self.thread()))
    }

    /// The block's copies in flight.
    pub(crate) fn queue(&mut self) -> &mut Queue {
        // SAFETY: the block keeps the queue for as long as its facts. Between two suspensions nobody else touches it, for one coroutine
        // at a time runs on an OS thread.
        unsafe { &mut *self.block().queue }
    }

    /// The cluster, where the launch has any.
    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        // SAFETY: the promise of `new`: the facts, and what they point to, outlive the coroutine.
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
        if let Err(mut finding) = check.access(thread, address, bytes, kind, how, pc) {
            let here = 0u8;
            check.name_callers(&mut finding, &raw const here as usize..thread.stack.end, pc);
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

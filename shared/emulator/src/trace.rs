//! What launches did, one event after the other, for whoever wants to show it.
//!
//! One OS thread at a time runs a checked launch. So the events are in the order in which they happened, and are the same
//! at every run with the same [`Order`](crate::Order).

use rustc_hash::FxHashMap as HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::counters::Operation;

/// The longest access of one instruction.
const WIDEST: usize = 16;

/// Takes down the events of the launches that it is given to: [`Options::trace`](crate::Options::trace).
#[derive(Debug, Default)]
pub struct Tracer(Mutex<Trace>);

#[derive(Debug, Default)]
struct Trace {
    events: Vec<Event>,
    /// The store that came last, by its event, address and bytes: an event comes before its access is made, so that
    /// what is stored is in memory when the next one comes.
    storing: Option<(usize, usize, usize)>,
    places: HashMap<usize, Place>,
}

/// Where in the source something happened, each as `file:line:column`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// In whatever file.
    pub inner: Arc<str>,
    /// In the kernel's own file: the call, where the other is in a header.
    pub own: Arc<str>,
}

/// Something that a thread did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The block, by its number in the grid.
    pub block: u32,
    /// The thread, by its number in the block.
    pub thread: u32,
    /// Where.
    pub place: Place,
    /// What.
    pub step: Step,
}

/// What the source calls some memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Array {
    /// Of the parameter, or of the static shared array; empty for all other memory.
    pub name: String,
    /// Of a static shared array.
    pub dims: Vec<usize>,
}

/// What a thread did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It has loaded or stored.
    Access {
        /// Which of the two, and in which memory.
        operation: Operation,
        /// The array that it has accessed.
        array: Array,
        /// The first byte, from the array's start.
        offset: usize,
        /// How many bytes.
        bytes: usize,
        /// What was read, or is there after the store; of wide accesses the first 16 bytes.
        value: Vec<u8>,
    },
    /// It has come to a barrier of its block, its cluster or the grid. If it was the last of its block to come to
    /// the block's, `met` says so: the block goes on.
    Comes {
        /// Whether all threads of the block have come now.
        met: bool,
    },
    /// Something has happened at an mbarrier. The thread is who did it, or has asked for the copy.
    Mbarrier {
        /// The block in whose shared memory it is: in a cluster it may be another one than the thread's.
        home: u32,
        /// The shared array or struct that it is in.
        array: Array,
        /// Of its first byte, from the array's start.
        offset: usize,
        /// What has happened.
        does: Signal,
        /// How the barrier is now: if the phase is complete, in the next one.
        now: Mbarrier,
    },
}

/// What happens at an mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// It is initialised.
    Made,
    /// A thread arrives.
    Arrives {
        /// Bytes that it says are to come.
        expected: u32,
    },
    /// A copy has landed.
    Lands {
        /// Its bytes.
        bytes: usize,
    },
    /// A thread waits, for the phase is not complete.
    Waits {
        /// The phase.
        phase: u32,
    },
    /// A thread goes on, for the phase is complete.
    Passes {
        /// The phase.
        phase: u32,
    },
}

/// An mbarrier in its phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mbarrier {
    /// Complete phases before this one.
    pub phase: u32,
    /// Arrivals so far.
    pub arrived: u32,
    /// Arrivals of a phase.
    pub count: u32,
    /// Bytes that have come.
    pub landed: u32,
    /// Bytes that are expected.
    pub expected: u32,
}

impl Tracer {
    /// What has happened since it was last asked.
    pub fn take(&self) -> Vec<Event> {
        let mut trace = self.lock();
        trace.settle();
        std::mem::take(&mut trace.events)
    }

    fn lock(&self) -> MutexGuard<'_, Trace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a return address, which `find` finds.
    pub(crate) fn place(&self, pc: usize, find: impl FnOnce() -> Place) -> Place {
        self.lock().places.entry(pc).or_insert_with(find).clone()
    }

    /// Something happens, and no access.
    pub(crate) fn tell(&self, event: Event) {
        let mut trace = self.lock();
        trace.settle();
        trace.events.push(event);
    }

    /// An access is about to be made.
    ///
    /// # Safety
    /// There is memory at the address, and will be until the next event or [`Tracer::settle`].
    pub(crate) unsafe fn tell_access(&self, mut event: Event, address: usize, stores: bool) {
        let mut trace = self.lock();
        trace.settle();
        if let Step::Access { bytes, value, .. } = &mut event.step {
            let bytes = (*bytes).min(WIDEST);
            // SAFETY: the caller's promise.
            *value = unsafe { std::slice::from_raw_parts(address as *const u8, bytes) }.to_vec();
            trace.storing = stores.then_some((trace.events.len(), address, bytes));
        }
        trace.events.push(event);
    }

    /// All threads of the block have come to the barrier that the last event is of.
    pub(crate) fn met(&self) {
        if let Some(Event { step: Step::Comes { met }, .. }) = self.lock().events.last_mut() {
            *met = true;
        }
    }

    /// Looks at what was stored last, while its memory is there.
    pub(crate) fn settle(&self) {
        self.lock().settle();
    }
}

impl Trace {
    fn settle(&mut self) {
        let Some((index, address, bytes)) = self.storing.take() else { return };
        if let Some(Event { step: Step::Access { value, .. }, .. }) = self.events.get_mut(index) {
            // SAFETY: the promise of `tell_access`.
            *value = unsafe { std::slice::from_raw_parts(address as *const u8, bytes) }.to_vec();
        }
    }
}

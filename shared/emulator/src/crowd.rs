//! Blocks of a launch that is not cooperative, of which one waits for another that has not begun.
//!
//! Independent blocks run one after the other, each to its end: that is fast, and enough for most kernels. A GPU
//! holds many at once, and some kernels count on that: a block that waits for the sum of a later one, a lock for each
//! tile. So once a block does nothing but poll for a while, the next block begins, on an OS thread of its own, for its
//! static shared memory is that thread's; and so on until one can go on. As many are resident at once as a GPU would
//! hold. Where one OS thread at a time may run, they take turns. What is said of blocks here holds of clusters likewise, whose
//! blocks have an OS thread each: while a cluster has its turn, one of these runs.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use crate::geometry::Geometry;
use crate::watchdog::Watched;

/// Blocks that a cooperative launch may have: each has an OS thread here.
pub const MAX_COOPERATIVE_BLOCKS: u64 = 1024;

/// Polls of a block before another one begins: so many where it may be no poll but heavy use of atomics; one where a thread has
/// only read.
pub(crate) const PATIENCE: u32 = 16;
/// And for how long, where several OS threads run blocks.
pub(crate) const PATIENCE_TIME: Duration = Duration::from_millis(2);

/// An H100 SXM: its SMs, and what each holds at most.
const SMS: u64 = 132;
const BLOCKS_PER_SM: u64 = 32;
const THREADS_PER_SM: u64 = 2048;
const SHARED_PER_SM: u64 = 228 * 1024;
/// Shared memory that the system keeps for each block.
const SHARED_RESERVED: u64 = 1024;

/// Blocks that a GPU holds at once, as far as their threads and shared memory go: at least one a SM.
fn resident_blocks(geometry: &Geometry, fixed_shared: usize) -> u64 {
    let shared = (geometry.dynamic_shared + fixed_shared) as u64 + SHARED_RESERVED;
    let threads = (geometry.threads() as u64).next_multiple_of(32);
    let of_sm = BLOCKS_PER_SM.min(THREADS_PER_SM / threads).min(SHARED_PER_SM / shared).max(1);
    (SMS * of_sm).min(MAX_COOPERATIVE_BLOCKS)
}

/// The OS threads that run a launch's blocks once some of these wait.
pub(crate) struct Crowd {
    state: Mutex<State>,
    capacity: u64,
    /// Whether one at a time runs.
    alternates: bool,
}

#[derive(Default)]
struct State {
    /// Who runs, where one at a time does.
    current: u64,
    /// Those who have slept, by their numbers.
    sleepers: Vec<Option<Thread>>,
    /// The numbers of those who wait for their turn. The last to come goes first. Blocks most often wait for a neighbour in the
    /// order in which they begin, and that one has just ended.
    queue: VecDeque<u64>,
    /// Of these, how many have no block to run at present.
    idle: usize,
    resident: u64,
    begun: u64,
    /// Whether one that waits has had a turn since the last one began.
    has_asked: bool,
}

impl State {
    /// Wakes whose turn it is: of hundreds that sleep, it alone.
    fn wake(&self) {
        if let Some(Some(thread)) = self.sleepers.get(self.current as usize) {
            thread.unpark();
        }
    }
}

/// What a block that polls may do.
pub(crate) enum Turn {
    /// Go on.
    Own,
    /// Let another one begin, by a thread of this number; then wait for the turn.
    Another(u64),
    /// The launch is over.
    Over,
}

impl Crowd {
    /// `workers` OS threads run blocks, or clusters where there are such, to begin with; `alternates`: one at a time.
    pub(crate) fn new(
        geometry: &Geometry,
        fixed_shared: usize,
        workers: u64,
        alternates: bool,
    ) -> Self {
        let of_cluster = u64::from(geometry.cluster.max(1));
        let capacity = (resident_blocks(geometry, fixed_shared) / of_cluster).max(workers);
        let state = State { resident: workers, begun: workers, ..State::default() };
        Self { state: Mutex::new(state), capacity, alternates }
    }

    pub(crate) fn alternates(&self) -> bool {
        self.alternates
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block of thread `me` polls; `more`: others have still to begin. Where one at a time runs, this waits until it
    /// is the turn of `me` again. Of those who wait one is asked before each that begins: to ask all would take a time that
    /// grows with the square of their number.
    pub(crate) fn pass(&self, me: u64, more: bool, watched: &Watched) -> Turn {
        let mut state = self.lock();
        let asked = std::mem::replace(&mut state.has_asked, true) || state.queue.is_empty();
        if more && state.idle == 0 && (asked || !self.alternates) && state.resident < self.capacity
        {
            let new = state.begun;
            (state.begun, state.resident, state.has_asked) = (new + 1, state.resident + 1, false);
            if self.alternates {
                state.queue.push_back(me);
                state.current = new;
            }
            return Turn::Another(new);
        }
        if self.alternates { self.hand_over(state, me, watched) } else { Turn::Own }
    }

    /// Waits for the turn of `me`, which has handed it over.
    pub(crate) fn wait(&self, me: u64, watched: &Watched) -> Turn {
        let mut state = self.lock();
        let own = me as usize;
        if state.sleepers.len() <= own {
            state.sleepers.resize(own + 1, None);
        }
        state.sleepers[own] = Some(std::thread::current());
        while state.current != me {
            if watched.is_aborted() {
                return Turn::Over;
            }
            drop(state);
            // Nobody is told that the launch is over.
            std::thread::park_timeout(Duration::from_millis(50));
            state = self.lock();
        }
        Turn::Own
    }

    /// Thread `me` has no block: its own has ended, or none has begun. Those who wait have a turn before the next one begins.
    pub(crate) fn rest(&self, me: u64, watched: &Watched) -> Turn {
        let mut state = self.lock();
        if state.queue.is_empty() {
            return Turn::Own;
        }
        state.idle += 1;
        let turn = self.hand_over(state, me, watched);
        self.lock().idle -= 1;
        turn
    }

    fn hand_over(&self, mut state: MutexGuard<'_, State>, me: u64, watched: &Watched) -> Turn {
        state.queue.push_front(me);
        state.current = state.queue.pop_back().unwrap_or(me);
        if state.current == me {
            return Turn::Own;
        }
        state.wake();
        drop(state);
        self.wait(me, watched)
    }

    /// Thread `me` runs no more blocks.
    pub(crate) fn leave(&self, me: u64) {
        let mut state = self.lock();
        state.resident -= 1;
        state.queue.retain(|&other| other != me);
        if state.current == me
            && let Some(next) = state.queue.pop_back()
        {
            state.current = next;
        }
        state.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_a_gpu_holds() {
        let of = |threads: u32, dynamic_shared: usize| {
            let (grid, block) = ([1000, 1, 1], [threads, 1, 1]);
            let geometry = Geometry { grid, block, dynamic_shared, cooperative: false, cluster: 0 };
            resident_blocks(&geometry, 0)
        };
        assert_eq!(of(1024, 0), 2 * SMS);
        assert_eq!(of(256, 100 * 1024), 2 * SMS);
        assert_eq!(of(256, 227 * 1024), SMS);
        assert_eq!(of(32, 0), MAX_COOPERATIVE_BLOCKS);
    }
}

//! One block: its threads as coroutines, taking turns until each waits or has exited.

use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use corosensei::{Coroutine, CoroutineResult};

use crate::abi::{BarrierKind, Coordinate};
use crate::access::{How, Kind as AccessKind};
use crate::check::{BlockCheck, LaunchCheck};
use crate::cluster::Cluster;
use crate::completion::descriptor::WINDOW;
use crate::completion::wgmma::{self, WARPS};
use crate::completion::{Flight, Landing, Queue};
use crate::geometry::{Geometry, unravel};
use crate::hooks;
use crate::module::Kernel;
use crate::named::Named;
use crate::order::{Order, Shuffler};
use crate::registers::Registers;
use crate::report::{Access, Finding, Kind, Standing};
use crate::running::BlockFacts;
use crate::shared::{DYNAMIC_ALIGNMENT, DYNAMIC_MARGIN, Extent};
use crate::stack::{Slab, ThreadStack};
use crate::starve::Priorities;
use crate::thread::{Await, Fault, State, Thread};
use crate::warp::{self, LANES, Operand};
use crate::watchdog::Watched;

/// Every byte of shared memory at a block's start. NaN in each float format, −1 in the integers:
/// what nobody wrote must not look like a number.
const POISON: u8 = 0xFF;
/// How many turns in which some thread polls make a block restless, that has not waited before.
const RESTLESS: u32 = 64;
/// How often those who wait at mbarriers are told that it takes a while, before it is a deadlock.
const PATIENCE: u32 = 3;

/// Why a block stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// All threads have exited.
    Done,
    /// All threads wait for the grid.
    GridSync,
    /// All threads wait for the cluster.
    ClusterSync,
    /// Every thread that could run polls memory that somebody else must write.
    Polling,
    /// Some have polled for long, whatever else was done meanwhile: a loop that waits may hold a barrier.
    Restless,
    /// Some wait at an mbarrier, nobody can run and nothing is in flight. Of the cluster's events, so many
    /// had come then.
    Awaiting(u64),
}

#[derive(Debug, Default)]
struct Warp {
    /// Lanes that wait in a collective.
    waiting: u32,
    /// For the checks: where each lane last completed one, and with which mask.
    last: [(usize, u32); LANES],
}

/// Memory of the block's dynamic shared array. On a GPU the lower bits of a generic address of shared memory are its place in the
/// shared window, which no document promises, but code takes them for a matrix descriptor (ThunderKittens): so they are here.
struct Dynamic {
    bytes: Box<[MaybeUninit<u8>]>,
    offset: usize,
    len: usize,
}

impl Dynamic {
    /// Of so many bytes, which have this place in the window.
    fn new(len: usize, place: usize) -> Self {
        // Only what is used is touched: the rest costs addresses, and no memory.
        let apart = if len == 0 { DYNAMIC_ALIGNMENT } else { WINDOW };
        // A kernel may go past either end by this much before the checks lose track of it.
        let mut bytes = Box::new_uninit_slice(len + apart + 2 * DYNAMIC_MARGIN);
        let first = bytes.as_ptr() as usize + DYNAMIC_MARGIN;
        let offset = DYNAMIC_MARGIN + place.wrapping_sub(first) % apart;
        bytes[offset - DYNAMIC_MARGIN..][..len + 2 * DYNAMIC_MARGIN].fill(MaybeUninit::new(POISON));
        Self { bytes, offset, len }
    }
    fn poison(&mut self) {
        self.bytes[self.offset..][..self.len].fill(MaybeUninit::new(POISON));
    }
    fn pointer(&mut self) -> *mut u8 {
        self.bytes[self.offset..].as_mut_ptr().cast()
    }
}

/// This OS thread's static shared memory.
fn fixed_shared(kernel: &Kernel) -> Extent {
    let memory = kernel.module().shared_memory();
    (memory.cast::<u8>() as usize, memory.len())
}

/// Runs blocks of one launch, one after the other, on one OS thread.
pub(crate) struct BlockRunner {
    // Field order: coroutines go before what they point to.
    coroutines: Vec<Coroutine<(), (), (), ThreadStack>>,
    threads: Box<[Thread]>,
    live_lanes: Box<[Cell<u32>]>,
    facts: Box<BlockFacts>,
    /// Copies in flight. Its threads reach it through the facts.
    copies: Box<Queue>,
    check: Option<Box<BlockCheck>>,
    dynamic: Dynamic,
    slab: Option<Arc<Slab>>,
    kernel: Kernel,
    geometry: Geometry,
    order: Order,
    shuffler: Shuffler,
    /// Of an order that is not fair.
    priorities: Option<Priorities>,
    warps: Vec<Warp>,
    queue: Vec<u32>,
    /// Whose turn it is, in `queue`.
    turn: usize,
    next: Vec<u32>,
    /// Threads that wait at an mbarrier.
    parked: Vec<u32>,
    /// Threads at `__activemask()`.
    convening: Vec<u32>,
    /// Threads that wait for wgmma.
    multiplying: Vec<u32>,
    named: Named,
    registers: Registers,
    /// How often they were told since anything happened that it takes a while.
    patience: u32,
    /// What the cluster had told when this block looked last.
    events: u64,
    block: [u32; 3],
    live: usize,
    at_barrier: usize,
    /// Threads that had not exited at the last barrier.
    live_at_barrier: usize,
    at_grid: usize,
    at_cluster: usize,
    cluster_syncs: usize,
    /// Its cluster, and its rank there.
    cluster: Option<(Arc<Cluster>, u32)>,
    /// Whether a thread polled in this turn of all, and in how many turns one did.
    polls: (bool, u32),
    /// Whether it has let others have a turn.
    lets: bool,
    /// Turns that were more than polling.
    progress: u64,
    /// The same for the watchdog to see, at every turn: a block may take long, and is no stall for
    /// that. A counter for each runner, so that no two write the same.
    told: Arc<AtomicU64>,
}

impl BlockRunner {
    /// `arguments` must stay valid while the runner lives, and so must `checks`, which may be null.
    #[allow(clippy::too_many_arguments)] // each of another kind
    pub(crate) fn new(
        kernel: &Kernel,
        geometry: Geometry,
        order: Order,
        landing: Landing,
        arguments: *mut *mut c_void,
        checks: *mut LaunchCheck,
        watched: &Watched,
        cluster: Option<(Arc<Cluster>, u32)>,
    ) -> io::Result<Self> {
        let count = geometry.threads();
        let slab = Slab::take(count)?;
        let live_lanes: Box<[Cell<u32>]> =
            (0..count.div_ceil(LANES)).map(|_| Cell::new(0)).collect();
        let fixed = fixed_shared(kernel);
        let place = fixed.1.next_multiple_of(DYNAMIC_ALIGNMENT);
        let mut dynamic = Dynamic::new(geometry.dynamic_shared, place);
        let mut check = (!checks.is_null()).then(|| {
            let dynamic = (dynamic.pointer() as usize, geometry.dynamic_shared);
            // SAFETY: the caller's promise; one OS thread at a time runs a checked launch.
            Box::new(unsafe { BlockCheck::new(checks, count, fixed, dynamic) })
        });
        let mut copies = Box::new(Queue::new(landing));
        let facts = Box::new(BlockFacts {
            fixed_shared: fixed,
            queue: &raw mut *copies,
            check: check.as_deref_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut),
            dynamic_shared: dynamic.pointer(),
            dynamic_shared_bytes: geometry.dynamic_shared as u32,
            cooperative: geometry.cooperative,
            cluster: cluster.as_ref().map_or(std::ptr::null(), |(c, _)| Arc::as_ptr(c)),
            text: kernel.module().text(),
        });
        let mut threads: Box<[Thread]> = (0..count).map(|_| Thread::new()).collect();
        let call = kernel.trampoline();
        let coroutines = threads
            .iter_mut()
            .enumerate()
            .map(|(index, thread)| {
                let stack = slab.stack(index);
                thread.guard = stack.guard();
                thread.stack = stack.range();
                let thread: *mut Thread = thread;
                let coroutine: Coroutine<(), (), (), _> =
                    Coroutine::with_stack(stack, move |yielder, ()| {
                        // The same coroutine runs this thread of block after block.
                        loop {
                            // SAFETY: the runner keeps the threads in place and alive until
                            // after the coroutines are gone; the arguments match the
                            // trampoline's parameters (the launch checked their number).
                            unsafe {
                                (*thread).yielder = yielder;
                                call(arguments);
                                (*thread).state = State::Exited;
                            }
                            yielder.suspend(());
                        }
                    });
                // SAFETY: the thread lives as long as its coroutine, and nobody else has it while these are made.
                unsafe { (*thread).trap = Some(coroutine.trap_handler()) };
                coroutine
            })
            .collect();
        Ok(Self {
            coroutines,
            threads,
            live_lanes,
            facts,
            copies,
            check,
            dynamic,
            slab: Some(slab),
            kernel: kernel.clone(),
            geometry,
            order,
            shuffler: Shuffler::new(order, 0),
            priorities: None,
            warps: (0..count.div_ceil(LANES)).map(|_| Warp::default()).collect(),
            queue: Vec::with_capacity(count),
            turn: 0,
            next: Vec::with_capacity(count),
            parked: Vec::new(),
            convening: Vec::new(),
            multiplying: Vec::new(),
            named: Named::default(),
            registers: Registers::default(),
            patience: 0,
            events: 0,
            block: [0; 3],
            live: 0,
            at_barrier: 0,
            live_at_barrier: count,
            at_grid: 0,
            at_cluster: 0,
            cluster_syncs: 0,
            cluster,
            polls: (false, 0),
            lets: false,
            progress: 0,
            told: watched.counter(),
        })
    }

    /// Points all threads at the start of block `linear`.
    pub(crate) fn start(&mut self, linear: u64) {
        self.block = self.geometry.block_index(linear);
        self.shuffler = Shuffler::new(self.order, linear + 1);
        self.priorities = Priorities::new(self.order, linear + 1, self.warps.len());
        let (block, geometry) = (self.block, self.geometry);
        for (index, thread) in self.threads.iter_mut().enumerate() {
            let own = unravel(index as u64, geometry.block);
            for (part, values) in
                [own, block, geometry.block, geometry.grid].into_iter().enumerate()
            {
                thread.coordinates[part * 3..part * 3 + 3].copy_from_slice(&values);
            }
            let rank = self.cluster.as_ref().map_or(0, |(_, rank)| *rank);
            thread.coordinates[Coordinate::ClusterRank as usize] = rank;
            thread.coordinates[Coordinate::ClusterSize as usize] = geometry.cluster.max(1);
            thread.lane = (index % LANES) as u32;
            thread.warp = (index / LANES) as u32;
            thread.state = State::Ready;
            thread.restart(linear);
        }
        if let Some(check) = &mut self.check {
            check.start(linear);
        }
        let count = self.threads.len();
        for (w, lanes) in self.live_lanes.iter().enumerate() {
            let left = count - w * LANES;
            lanes.set(if left >= LANES { u32::MAX } else { (1 << left) - 1 });
        }
        self.warps.iter_mut().for_each(|w| *w = Warp::default());
        (self.live, self.live_at_barrier) = (count, count);
        (self.at_barrier, self.at_grid, self.at_cluster) = (0, 0, 0);
        self.dynamic.poison();
        debug_assert_eq!(self.facts.dynamic_shared, self.dynamic.pointer());
        // SAFETY: this OS thread's own copy; no kernel runs on it now.
        unsafe { (*self.kernel.module().shared_memory()).fill(POISON) };
        self.queue.clear();
        self.next.clear();
        self.parked.clear();
        self.multiplying.clear();
        self.named.restart();
        self.registers.restart(count);
        self.patience = 0;
        (self.polls, self.lets) = ((false, 0), false);
        self.copies.restart(linear);
        self.wake_all();
    }

    /// After [`Pause::GridSync`]: the grid has met.
    pub(crate) fn release_grid(&mut self, meeting: u64) {
        self.at_grid = 0;
        if let Some(check) = &mut self.check {
            check.grid_sync(meeting);
        }
        self.wake_all();
    }

    /// Whether a thread polls, and has only read of late: atomics are no sign that one waits. Known of checked kernels alone.
    pub(crate) fn reads_again(&self) -> bool {
        self.threads.iter().any(|t| t.state == State::Polling && !t.polled.is_empty())
    }

    /// Others begin, or have a turn, while this block waits.
    pub(crate) fn lets_others(&mut self) {
        self.lets = true;
        if let Some(check) = &mut self.check {
            check.lets_others();
        }
    }

    /// Tells its cluster where its shared memory is.
    pub(crate) fn join_cluster(&mut self) {
        let Some((cluster, rank)) = &self.cluster else { return };
        let dynamic = (self.dynamic.pointer() as usize, self.dynamic.len);
        let shadow = match &mut self.check {
            Some(check) => {
                check.cluster = Some(cluster.clone());
                &raw mut check.shared
            }
            None => std::ptr::null_mut(),
        };
        cluster.join(*rank, self.facts.fixed_shared, dynamic, shadow);
    }

    /// At [`Pause::ClusterSync`], before the block waits for the others.
    pub(crate) fn bring_to_cluster(&mut self) {
        let (Some(check), Some((cluster, rank))) = (&mut self.check, &self.cluster) else { return };
        cluster.bring(*rank, self.cluster_syncs, check.bring());
    }

    /// After [`Pause::ClusterSync`]: the cluster has met.
    pub(crate) fn release_cluster(&mut self) {
        self.at_cluster = 0;
        if let Some(check) = &mut self.check {
            match &self.cluster {
                Some((cluster, _)) => check.met_cluster(&cluster.brought(self.cluster_syncs)),
                None => check.barrier(),
            }
        }
        self.cluster_syncs += 1;
        self.wake_all();
    }

    /// Runs until the block is done, or cannot go on by itself.
    pub(crate) fn run(&mut self) -> Result<Pause, Box<Finding>> {
        // SAFETY: the runner keeps its facts, checks and cluster; one thread after another runs below.
        unsafe { hooks::enter_block(&*self.facts) };
        loop {
            let events = self.cluster.as_ref().map_or(0, |(cluster, _)| cluster.events());
            if std::mem::replace(&mut self.events, events) != events {
                self.patience = 0;
            }
            let meanwhile = self.copies.meanwhile();
            self.land(meanwhile)?;
            self.wake_parked();
            self.multiply()?;
            self.convene();
            std::mem::swap(&mut self.queue, &mut self.next);
            if self.queue.is_empty() {
                if self.land_at_last()? {
                    continue;
                }
                if let Some(check) = &mut self.check {
                    check.count();
                }
                return match self.live {
                    0 => self.end(),
                    n if n == self.at_grid => Ok(Pause::GridSync),
                    n if n == self.at_cluster => Ok(Pause::ClusterSync),
                    _ if self.parked.is_empty() => Err(self.deadlock()),
                    _ => Ok(Pause::Awaiting(events)),
                };
            }
            let (threads, queue, next) = (&mut self.threads, &mut self.queue, &mut self.next);
            let starves = self.priorities.as_mut().is_some_and(|p| p.choose(threads, queue, next));
            let before = self.progress;
            self.turn = 0;
            while self.turn < self.queue.len() {
                if let Some(&soon) = self.queue.get(self.turn + 2) {
                    self.prefetch(soon as usize);
                }
                self.resume(self.queue[self.turn] as usize)?;
                self.turn += 1;
                self.told.store(self.progress, Ordering::Relaxed);
            }
            self.queue.clear();
            let polls = std::mem::take(&mut self.polls.0);
            self.polls.1 += u32::from(polls);
            let restless = polls && (self.lets || self.polls.1.is_multiple_of(RESTLESS));
            if self.progress == before && !starves && !self.land_at_last()? {
                return Ok(if restless { Pause::Restless } else { Pause::Polling });
            }
            if restless {
                return Ok(Pause::Restless);
            }
        }
    }

    /// Lets those go on whose phase is complete.
    fn wake_parked(&mut self) {
        let first = self.next.len();
        let (threads, next) = (&mut self.threads, &mut self.next);
        self.parked.retain(|&index| {
            let thread = &mut threads[index as usize];
            let over = thread.awaits.over();
            if over {
                (thread.result, thread.state) = (1, State::Ready);
                next.push(index);
            }
            !over
        });
        if self.next.len() > first {
            self.patience = 0;
            self.shuffler.arrange(&mut self.next[first..]);
        }
    }

    /// Tells those at `__activemask()` who is there: the lanes of their warp that have come to the same call.
    /// So once no other lane of the warp can come before it is waited for or polls; a GPU, which promises
    /// nothing, would most often say the same.
    fn convene(&mut self) {
        let warp_of = |index: u32| index as usize / LANES;
        while let Some(&one) = self.convening.first() {
            let runs = |&i: &u32| self.threads[i as usize].state == State::Ready;
            let warp = warp_of(one);
            if self.next.iter().any(|i| warp_of(*i) == warp && runs(i)) {
                // Those of other warps may be complete.
                let ready: Vec<usize> =
                    self.next.iter().filter(|i| runs(i)).map(|&i| warp_of(i)).collect();
                let Some(other) = self.convening.iter().position(|&i| !ready.contains(&warp_of(i)))
                else {
                    return;
                };
                self.convening.swap(0, other);
                continue;
            }
            let pc = self.threads[one as usize].pc;
            let threads = &self.threads;
            let here = |i: &u32| warp_of(*i) == warp && threads[*i as usize].pc == pc;
            let mut group: Vec<u32> = self.convening.extract_if(.., |i| here(i)).collect();
            let mask = group.iter().fold(0u64, |mask, &i| mask | 1 << (i as usize % LANES));
            for &index in &group {
                let thread = &mut self.threads[index as usize];
                (thread.result, thread.state) = (mask, State::Ready);
            }
            self.shuffler.arrange(&mut group);
            self.next.append(&mut group);
        }
    }

    /// Makes the products that are waited for, of warpgroups all of whose lanes have asked for them, and
    /// lets those go on who wait for no more.
    fn multiply(&mut self) -> Result<(), Box<Finding>> {
        let early = self.copies.makes_products_at_once();
        if self.multiplying.is_empty() && !early {
            return Ok(());
        }
        for group in 0..self.threads.len() / (WARPS * LANES) {
            let first = group * WARPS * LANES;
            let members = first..first + WARPS * LANES;
            loop {
                let lanes = &self.threads[members.clone()];
                if lanes.iter().any(|t| t.wgmma.parts.is_empty()) {
                    break;
                }
                let waits = |t: &Thread| t.state == State::Wgmma && t.wgmma.awaited > t.wgmma.made;
                if !early && !lanes.iter().any(waits) {
                    break;
                }
                self.multiply_next(first)?;
            }
        }
        let first = self.next.len();
        let (threads, next) = (&mut self.threads, &mut self.next);
        self.multiplying.retain(|&index| {
            let thread = &mut threads[index as usize];
            let over = thread.wgmma.made >= thread.wgmma.awaited;
            if over {
                thread.state = State::Ready;
                next.push(index);
            }
            !over
        });
        self.shuffler.arrange(&mut self.next[first..]);
        Ok(())
    }

    /// The next product of the warpgroup that begins with thread `first`: all its lanes have asked.
    fn multiply_next(&mut self, first: usize) -> Result<(), Box<Finding>> {
        let part = |l: usize| self.threads[first + l].wgmma.parts[0];
        if let Some(other) = (0..WARPS * LANES).find(|&l| !part(l).agrees(&part(0))) {
            let message = "lanes of one warpgroup ask for two different wgmma";
            let mut finding = Finding::new(Kind::BadCollective, message)
                .fix("all 128 lanes must come to the same ones in the same order, with the same operands");
            let threads = [&self.threads[first], &self.threads[first + other]];
            finding.accesses = [part(0), part(other)]
                .iter()
                .zip(threads)
                .map(|(part, thread)| self.at_place(thread, part.pc, "wgmma.mma_async"))
                .collect();
            return Err(Box::new(finding));
        }
        for warp in 0..WARPS {
            let parts = std::array::from_fn(|l| part(warp * LANES + l));
            let nowhere = [0u8; 16];
            let at = |place| self.facts.in_window(place).unwrap_or(nowhere.as_ptr() as usize);
            // SAFETY: the lanes' own accumulators, on their stacks, while they are suspended; chunks that
            // the window has were looked at when they asked.
            unsafe { wgmma::run(&parts, warp, at) };
            if let Some(check) = &mut self.check {
                let lane = &self.threads[first + warp * LANES];
                check.wgmma_made(lane, &parts[0], warp, |place| self.facts.in_window(place));
            }
        }
        for thread in &mut self.threads[first..first + WARPS * LANES] {
            thread.wgmma.parts.pop_front();
            thread.wgmma.made += 1;
        }
        self.patience = 0;
        Ok(())
    }

    /// Tells those who wait at an mbarrier that it takes a while: they may have something else to do. False
    /// where that has been in vain before.
    pub(crate) fn hurry(&mut self) -> bool {
        if self.patience == PATIENCE {
            return false;
        }
        self.patience += 1;
        self.wake(|awaits| awaits.parity.is_some())
    }

    /// Tells those who wait for somebody to make an mbarrier that nobody will. False where there are none.
    pub(crate) fn disappoint(&mut self) -> bool {
        self.wake(|awaits| awaits.parity.is_none())
    }

    fn wake(&mut self, whom: impl Fn(Await) -> bool) -> bool {
        let (threads, next) = (&mut self.threads, &mut self.next);
        let before = self.parked.len();
        self.parked.retain(|&index| {
            let thread = &mut threads[index as usize];
            let woken = whom(thread.awaits);
            if woken {
                (thread.result, thread.state) = (0, State::Ready);
                next.push(index);
            }
            !woken
        });
        self.parked.len() < before
    }

    /// Makes what can be in flight no longer, for the block cannot go on. False where nothing was.
    fn land_at_last(&mut self) -> Result<bool, Box<Finding>> {
        // Whoever ends with copies under way does not wait for them. Nor does a block that meets others wait for copies that
        // its own barriers count: only this block's threads may wait there.
        if self.live == 0 || self.copies.is_empty() {
            return Ok(false);
        }
        let meets = self.live == self.at_grid || self.live == self.at_cluster;
        let awaited = |address| {
            let waits = |&index: &u32| self.threads[index as usize].awaits.address == address;
            self.parked.iter().any(waits)
        };
        let own = [self.facts.fixed_shared, (self.dynamic.pointer() as usize, self.dynamic.len)];
        let is_own = |barrier| own.iter().any(|&(from, len)| (from..from + len).contains(&barrier));
        let flights = self.copies.at_last(awaited, |barrier| !meets || !is_own(barrier));
        let any = !flights.is_empty();
        self.land(flights)?;
        Ok(any)
    }

    fn land(&mut self, flights: Vec<Flight>) -> Result<(), Box<Finding>> {
        if flights.is_empty() {
            return Ok(());
        }
        for flight in flights {
            // SAFETY: a kernel's own addresses, which a checked one has had looked at.
            unsafe { flight.land(self.check.as_deref_mut()) }?;
        }
        self.patience = 0;
        if let Some((cluster, _)) = &self.cluster {
            cluster.tell();
        }
        Ok(())
    }

    /// All threads have exited.
    fn end(&mut self) -> Result<Pause, Box<Finding>> {
        if let Some(check) = &mut self.check {
            let under_way = self.copies.all().find_map(|flight| check.ends_under(flight));
            if let Some(finding) = under_way {
                return Err(Box::new(finding));
            }
            check.leave();
        }
        while !self.copies.is_empty() {
            let flights = self.copies.at_last(|_| false, |_| true);
            self.land(flights)?;
        }
        Ok(Pause::Done)
    }

    /// Some hundred threads with a few cache lines each overflow the first-level cache: asks for
    /// a thread's lines while another one runs.
    #[inline(always)]
    fn prefetch(&self, index: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let thread = &self.threads[index];
            let stack = thread.sp as *const i8;
            // SAFETY: a prefetch never faults.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>((&raw const self.coroutines[index]).cast());
                for line in -1..4 {
                    _mm_prefetch::<_MM_HINT_T0>(stack.wrapping_offset(line * 64));
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = index;
    }

    #[inline(always)]
    fn resume(&mut self, index: usize) -> Result<(), Box<Finding>> {
        let coroutine = &mut self.coroutines[index];
        let thread = &raw mut self.threads[index];
        // SAFETY: it resumes that thread's coroutine, and the runner waits for it.
        let outcome = unsafe { hooks::while_running(thread, || coroutine.resume(())) };
        if let Some(check) = &mut self.check
            && self.threads[index].stored.bytes != 0
        {
            check.settle(&mut self.threads[index]);
        }
        let state = self.threads[index].state;
        if matches!(outcome, CoroutineResult::Return(())) || state == State::Failed {
            return Err(self.fault(index));
        }
        if !matches!(state, State::Polling | State::Mbarrier) {
            self.progress += 1;
            self.patience = 0;
        }
        match state {
            State::Barrier(_) => {
                self.at_barrier += 1;
                self.threads[index].has_met = true;
                if self.at_barrier == self.live {
                    self.release_barrier()?;
                }
            }
            State::Collective => {
                let w = index / LANES;
                self.warps[w].waiting |= 1 << (index % LANES);
                self.try_collective(w, self.threads[index].operand)?;
            }
            State::GridSync => self.at_grid += 1,
            State::ClusterSync => self.at_cluster += 1,
            State::ActiveMask => self.convening.push(index as u32),
            State::Wgmma => self.multiplying.push(index as u32),
            State::Mbarrier => self.parked.push(index as u32),
            State::Named => {
                let comes = self.threads[index].comes;
                let check = self.check.as_deref_mut();
                let come = self.named.come(index as u32, comes, check);
                let mut free = come.map_err(|wrong| self.at_thread(index, wrong))?;
                if !comes.waits {
                    free.push(index as u32);
                }
                self.free(free);
            }
            State::Registers => {
                let asked = self.registers.ask(index as u32, self.threads[index].asks);
                let free = asked.map_err(|wrong| self.at_thread(index, wrong))?;
                self.free(free);
            }
            State::Polling | State::Ready => {
                self.polls.0 |= state == State::Polling;
                self.next.push(index as u32);
            }
            State::Exited => self.exit(index)?,
            State::Failed => return Err(self.fault(index)),
        }
        Ok(())
    }

    /// These may go on.
    fn free(&mut self, mut threads: Vec<u32>) {
        for &index in &threads {
            self.threads[index as usize].state = State::Ready;
        }
        self.shuffler.arrange(&mut threads);
        self.next.append(&mut threads);
    }

    /// Says of what is wrong where that thread stands.
    fn at_thread(&self, index: usize, mut finding: Box<Finding>) -> Box<Finding> {
        let thread = &self.threads[index];
        finding.accesses.push(self.at_place(thread, thread.pc, "stopped"));
        finding
    }

    fn exit(&mut self, index: usize) -> Result<(), Box<Finding>> {
        if self.slab.as_ref().is_some_and(|slab| slab.canary_broken(index)) {
            let thread = &mut self.threads[index];
            thread.fault = Some(Fault::StackOverflow);
            return Err(self.fault(index));
        }
        self.unread_at_exit(index)?;
        self.land_stores(index)?;
        if self.threads[index].wgmma.leaves()
            && let Some(check) = &mut self.check
        {
            return Err(check.wgmma_left(&self.threads[index]));
        }
        self.live -= 1;
        let w = index / LANES;
        let lanes = &self.live_lanes[w];
        lanes.set(lanes.get() & !(1 << (index % LANES)));
        // Those who waited for this lane may go on without it.
        let mut waiting = self.warps[w].waiting;
        while waiting != 0 {
            let lane = waiting.trailing_zeros() as usize;
            let operand = self.threads[w * LANES + lane].operand;
            self.try_collective(w, operand)?;
            waiting &= self.warps[w].waiting & !(1 << lane);
        }
        if self.live > 0 && self.at_barrier == self.live {
            self.release_barrier()?;
        }
        Ok(())
    }

    /// A thread exits: what it has asked to store is stored, for a grid has not ended before that.
    fn land_stores(&mut self, index: usize) -> Result<(), Box<Finding>> {
        for mut copy in self.threads[index].bulk.take() {
            // SAFETY: a kernel's own addresses, which a checked one has had looked at; those of shared memory
            // are there as long as the block is.
            unsafe { copy.make() };
            if let Some(check) = &mut self.check {
                let how = How { lands: true, ..How::default() };
                let thread = &mut self.threads[index];
                check.access(thread, copy.to, copy.bytes, AccessKind::Landed, how, copy.pc)?;
            }
        }
        Ok(())
    }

    /// A thread exits whose bulk copies may still read the block's shared memory.
    fn unread_at_exit(&mut self, index: usize) -> Result<(), Box<Finding>> {
        let Some(copy) = self.threads[index].bulk.unread() else { return Ok(()) };
        let Some(check) = &mut self.check else { return Ok(()) };
        Err(check.report_unread_copy(&self.threads[index], copy.from, copy.pc))
    }

    fn wake_all(&mut self) {
        let first = self.next.len();
        for (index, thread) in self.threads.iter_mut().enumerate() {
            if thread.state != State::Exited {
                thread.state = State::Ready;
                self.next.push(index as u32);
            }
        }
        self.shuffler.arrange(&mut self.next[first..]);
    }

    fn release_barrier(&mut self) -> Result<(), Box<Finding>> {
        let kinds = || {
            self.threads.iter().filter_map(|t| match t.state {
                State::Barrier(kind) => Some((kind, t.predicate)),
                _ => None,
            })
        };
        let Some((kind, _)) = kinds().next() else { return Ok(()) };
        if kind != BarrierKind::Plain || kinds().any(|(k, _)| k != kind) {
            if kinds().any(|(k, _)| k != kind) {
                let message = "threads of one block meet at different kinds of barrier";
                let finding = Finding::new(Kind::MixedBarriers, message)
                    .standing(self.standing())
                    .fix("let all threads of the block come to the same barrier");
                return Err(Box::new(finding));
            }
            use BarrierKind::{And, Count, Or, Plain};
            let result = match kind {
                Plain => 0,
                Count => kinds().filter(|&(_, p)| p != 0).count() as u64,
                And => u64::from(kinds().all(|(_, p)| p != 0)),
                Or => u64::from(kinds().any(|(_, p)| p != 0)),
            };
            self.threads.iter_mut().for_each(|t| t.result = result);
        }
        self.at_barrier = 0;
        self.checked_barrier();
        self.wake_all();
        Ok(())
    }

    /// What the checks make of a barrier that all threads have reached.
    fn checked_barrier(&mut self) {
        let Some(mut check) = self.check.take() else { return };
        let waiting = || self.threads.iter().filter(|t| t.state != State::Exited).map(|t| t.pc);
        let first = waiting().next().unwrap_or(0);
        if let Some(other) = waiting().find(|&pc| pc != first) {
            check.met_at(|| self.standing(), [first, other], || self.split_warp());
        }
        check.met(first);
        if self.live < self.live_at_barrier {
            let gone = self.threads.iter().filter(|t| t.state == State::Exited && !t.has_met);
            check.passed_by(|| self.standing(), first, gone.map(|t| t.last));
            self.live_at_barrier = self.live;
        }
        check.barrier();
        self.check = Some(check);
    }

    /// Two places where lanes of one warp stand that have not exited, if they do not all stand at the same.
    fn split_warp(&self) -> Option<[usize; 2]> {
        let module = self.kernel.module();
        self.threads.chunks(LANES).find_map(|warp| {
            let mut stand = warp.iter().filter(|t| t.state != State::Exited).map(|t| t.pc);
            let first = stand.next()?;
            // Clones of one call have the same place and callers.
            let other = stand.find(|&pc| pc != first && module.frames(pc) != module.frames(first));
            other.map(|other| [first, other])
        })
    }

    /// Nobody can run, and nobody will.
    pub(crate) fn deadlock(&mut self) -> Box<Finding> {
        let standing = self.standing();
        if self.threads.iter().any(|t| t.state == State::Mbarrier) {
            let message =
                "deadlock: nothing is in flight, and a phase that is waited for is not complete";
            let fix = "look at what is missing: an arrival, bytes, or the other parity";
            let mut finding = Finding::new(Kind::Deadlock, message).standing(standing).fix(fix);
            finding.missing = self.describe_missing_arrivals();
            return Box::new(finding);
        }
        let collective = self.threads.iter().any(|t| t.state == State::Collective);
        let fix = if collective {
            "every lane that a mask names must come to the same collective, with that mask"
        } else {
            "all threads that have not exited must come to the same barrier"
        };
        let finding = Finding::new(Kind::Deadlock, "deadlock: no thread of the block can go on");
        let mut finding = finding.standing(standing).fix(fix);
        finding.missing = self.named.missing().chain(self.registers.missing()).collect();
        if !finding.missing.is_empty() {
            finding = finding.fix("look at what is missing: threads that never come, or registers that nobody gives back");
        }
        Box::new(finding)
    }

    /// What is missing at the barriers that threads wait for, a line or a few each.
    fn describe_missing_arrivals(&mut self) -> Vec<String> {
        let mut awaited: Vec<Await> = Vec::new();
        for thread in self.threads.iter().filter(|t| t.state == State::Mbarrier) {
            if !awaited.contains(&thread.awaits) {
                awaited.push(thread.awaits);
            }
        }
        let mut lines = Vec::new();
        for wait in awaited {
            if let Some(parity) = wait.parity {
                lines.push(format!("waited for: the phase of parity {parity} of"));
            }
            match &mut self.check {
                Some(check) => {
                    let more = check.describe_mbarrier(wait.address);
                    lines.extend(more.into_iter().map(|line| format!("  {line}")));
                }
                None => lines.push(format!("  an mbarrier: {}", wait.describe())),
            }
        }
        lines
    }

    /// Completes the collective that `asked` waits in, if all lanes it names have come.
    fn try_collective(&mut self, w: usize, asked: Operand) -> Result<(), Box<Finding>> {
        if asked.op.of_matrices() {
            self.all_lanes_live(w, asked)?;
        }
        let present = asked.mask & self.live_lanes[w].get();
        let first = w * LANES;
        let lanes = || (0..LANES).filter(|l| present >> l & 1 == 1);
        if self.warps[w].waiting & present != present {
            return Ok(());
        }
        let same = |l: usize| {
            let o = self.threads[first + l].operand;
            o.op == asked.op && o.mask == asked.mask
        };
        if !lanes().all(same) {
            return Ok(());
        }
        let mut operands = [asked; LANES];
        for l in lanes() {
            operands[l] = self.threads[first + l].operand;
        }
        if let Some(check) = &mut self.check {
            let warp = &mut self.warps[w];
            let pc = self.threads[first + present.trailing_zeros() as usize].pc;
            // Whoever is named and not here has exited. Not after it was here, under another mask.
            let gone = |l: &usize| asked.mask & !present & (1 << l) != 0;
            let other = |l: &usize| warp.last[*l].0 == pc && warp.last[*l].1 != asked.mask;
            if let Some(lane) = (0..LANES).filter(gone).find(other) {
                let thread = &self.threads[first + present.trailing_zeros() as usize];
                check.masks_differ(thread, asked, lane, warp.last[lane].1);
            }
            lanes().for_each(|l| warp.last[l] = (pc, asked.mask));
            if asked.op == warp::Collective::Sync {
                check.clock.sync_warp(w, present);
            }
            for l in lanes() {
                if let Some(source) = warp::absent_source(l, &operands[l], present) {
                    check.absent_lane(&self.threads[first + l], source, asked.op.cuda_name());
                }
            }
        }
        if asked.op.of_matrices() {
            self.on_matrices(w, asked.op)?;
        }
        for l in lanes() {
            let thread = &mut self.threads[first + l];
            thread.result = warp::result(l, &operands, present);
            thread.state = State::Ready;
        }
        self.warps[w].waiting &= !present;
        let woken = lanes().map(|l| (first + l) as u32);
        if self.order == Order::Warps {
            let soon = self.turn + 1;
            self.queue.splice(soon..soon, woken);
        } else {
            let start = self.next.len();
            self.next.extend(woken);
            self.shuffler.arrange(&mut self.next[start..]);
        }
        Ok(())
    }

    /// What is spread over 32 lanes cannot do without one of them.
    fn all_lanes_live(&self, w: usize, asked: Operand) -> Result<(), Box<Finding>> {
        let missing = self.live_lanes[w].get().count_zeros();
        if missing == 0 {
            return Ok(());
        }
        let message = format!(
            "{} takes all 32 lanes of a warp, and {missing} of these have exited or never were",
            asked.op.cuda_name()
        );
        let waits = |t: &&Thread| t.state == State::Collective && t.operand.op == asked.op;
        let first = self.threads[w * LANES..].iter().find(waits);
        let mut finding = Finding::new(Kind::BadCollective, message)
            .standing(self.standing())
            .fix("let every lane of the warp come: blocks of whole warps, and no return before it");
        finding.accesses.extend(first.map(|t| self.position_of(t, asked.op.cuda_name())));
        Err(Box::new(finding))
    }

    /// A thread where it stands, as one side of a finding.
    fn position_of(&self, thread: &Thread, what: &str) -> Access {
        self.at_place(thread, thread.pc, what)
    }

    /// The kernel's own place for `pc`. A thread may have been stopped between its kernel and the runtime, in the glue that hands each
    /// access on: then the place of its last access, or where it has last paused.
    fn place_of_kernel(&self, pc: usize, thread: &Thread) -> String {
        let place = self.kernel.module().own_place(pc);
        let is_glue = place.split(':').next().is_some_and(|file| file.ends_with("/glue.cpp"));
        let known = [thread.last, thread.paused_at].into_iter().find(|&pc| pc != 0);
        known.filter(|_| is_glue).map_or(place, |pc| self.kernel.module().own_place(pc))
    }

    /// What a thread did at the call that returns to `pc`.
    fn at_place(&self, thread: &Thread, pc: usize, what: &str) -> Access {
        let (place, within) = self.kernel.module().place_within(pc);
        let [x, y, z, ..] = thread.coordinates;
        Access { what: what.into(), place, within, block: self.block, thread: [x, y, z] }
    }

    /// All lanes of warp `w` have come to `op`.
    fn on_matrices(&mut self, w: usize, op: warp::Collective) -> Result<(), Box<Finding>> {
        let threads = &self.threads[w * LANES..][..LANES];
        // Clones of one call, of an unrolled loop say, have the same place and callers.
        let frames = |pc| self.kernel.module().frames(pc);
        let elsewhere =
            |t: &&Thread| t.pc != threads[0].pc && frames(t.pc) != frames(threads[0].pc);
        if let Some(other) = threads.iter().find(elsewhere) {
            let name = op.cuda_name();
            let message = format!("lanes of one warp come to two different {name}");
            let mut finding = Finding::new(Kind::BadCollective, message)
                .fix("all 32 lanes must come to the same one: move it out of the branch");
            finding.accesses =
                vec![self.position_of(&threads[0], name), self.position_of(other, name)];
            return Err(Box::new(finding));
        }
        if let Some(check) = &mut self.check {
            check.matrices(threads, op)?;
        }
        let operands = std::array::from_fn(|l| threads[l].operand.value as usize);
        // SAFETY: each lane brought the address of its own operand, as glue.cpp lays it out, which
        // lies on its stack, and the lane stays suspended.
        unsafe { crate::matrix::run(op, operands) };
        Ok(())
    }

    fn fault(&mut self, index: usize) -> Box<Finding> {
        let thread = &mut self.threads[index];
        let fault = thread.fault.take().unwrap_or(Fault::Interrupted { polls: false });
        let (place, within) = self.kernel.module().place_within(thread.pc);
        let thread = [thread.coordinates[0], thread.coordinates[1], thread.coordinates[2]];
        let kind = match &fault {
            Fault::Found(finding) => return finding.clone(),
            Fault::Signal { address: Some(_), .. } => Kind::InvalidAddress,
            Fault::Signal { address: None, name } if name.contains("address") => {
                Kind::InvalidAddress
            }
            Fault::Signal { .. } | Fault::Trap(_) => Kind::Stopped,
            Fault::Misaligned { .. } => Kind::Misaligned,
            Fault::StackOverflow => Kind::StackOverflow,
            Fault::Interrupted { .. } => Kind::Stalled,
            Fault::NotInOwnMask { .. } | Fault::BadWidth { .. } | Fault::BadBarrier(_) => {
                Kind::BadCollective
            }
            Fault::GridSyncNotCooperative => Kind::GridSyncNotCooperative,
            Fault::NotMapped(_) => Kind::InvalidAddress,
        };
        let mut finding = Finding::new(kind, fault.to_string());
        if let Fault::Interrupted { polls: false } = fault {
            finding = finding.fix(
                "look at the loop there: it is endless, or takes longer; LAB_EMULATOR_STALL_SECONDS=100 gives it more time",
            );
        }
        let what = String::from("stopped");
        finding.accesses.push(Access { what, place, within, block: self.block, thread });
        Box::new(finding)
    }

    /// Where every thread of the block stands, threads that stand alike taken together.
    pub(crate) fn standing(&self) -> Vec<Standing> {
        let mut groups: Vec<(State, usize, Standing)> = Vec::new();
        for thread in &self.threads {
            let own = [thread.coordinates[0], thread.coordinates[1], thread.coordinates[2]];
            let pc = if thread.state == State::Exited { 0 } else { thread.pc };
            if let Some((.., g)) = groups.iter_mut().find(|g| (g.0, g.1) == (thread.state, pc)) {
                g.count += 1;
                g.last = own;
                continue;
            }
            let (what, place) = match thread.state {
                State::Ready => ("can run", None),
                State::Barrier(kind) => (kind.cuda_name(), Some(pc)),
                State::Collective => (thread.operand.op.cuda_name(), Some(pc)),
                State::GridSync => ("grid.sync()", Some(pc)),
                State::ClusterSync => ("cluster.sync()", Some(pc)),
                State::ActiveMask => ("__activemask()", Some(pc)),
                State::Wgmma => ("wgmma.wait_group", Some(pc)),
                State::Mbarrier => ("waits at an mbarrier", Some(pc)),
                State::Named => ("bar.sync", Some(pc)),
                State::Registers => ("setmaxnreg", Some(pc)),
                State::Polling => ("polls memory", Some(pc)),
                State::Exited => ("exited", None),
                State::Failed => ("stopped", Some(pc)),
            };
            let mask = (thread.state == State::Collective).then_some(thread.operand.mask);
            let standing = Standing {
                block: self.block,
                what,
                place: place.map(|pc| self.place_of_kernel(pc, thread)),
                mask,
                count: 1,
                first: own,
                last: own,
            };
            groups.push((thread.state, pc, standing));
        }
        groups.into_iter().map(|(.., standing)| standing).collect()
    }
}

impl Drop for BlockRunner {
    fn drop(&mut self) {
        for coroutine in &mut self.coroutines {
            // SAFETY: a coroutine is suspended either in its own loop, which owns nothing, or
            // inside a kernel, compiled without exceptions, whose frames need no destructors.
            unsafe { coroutine.force_reset() };
        }
        self.coroutines.clear();
        if let Some(slab) = self.slab.take() {
            slab.give_back();
        }
    }
}

//! The checks: what a kernel that was compiled for it reports of each access, against the shadow.
//!
//! One OS thread at a time runs a checked launch, so a run is the same every time and nothing here
//! needs a lock. Each access goes through [`BlockCheck::access`]: does the memory exist, was it
//! written, and is it ordered after all others that it conflicts with?

mod completion;
mod constants;
mod findings;
mod grids;
mod launch;
mod messages;
mod trace;
mod wgmma;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use launch::LaunchHandle;

use crate::access::{How, Kind, Space, Stored};
use crate::clock::{BlockClock, Knowledge, Scope};
use crate::cluster::{Cluster, Member};
use crate::counters::Pending;
use crate::memory::{self, Whose};
use crate::names::StaticByte;
use crate::report::Finding;
use crate::shadow::{Cell, GRANULE, Granule, INIT_ALL, Uses, bytes_mask};
use crate::shared::{DYNAMIC_MARGIN, Extent, Located, SharedShadow};
use crate::thread::Thread;

pub(crate) use findings::describe;
pub(crate) use launch::LaunchCheck;
pub(crate) use messages::Part;

/// Why GPUs do what is meant, though nothing promises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Formal {
    /// Lanes of a warp use shared memory by volatile accesses.
    InStep,
    /// A counter is set back by who has counted last.
    Reset,
    /// What is read is a guess, which a compare-and-swap tests.
    Guess,
    /// A thread does what another thread does, and keeps it to itself.
    Twin,
    /// A volatile read of shared memory before a volatile write by another warp, or two volatile writes: right where the read,
    /// or that before the second write, is one of a loop that waits; a race like any other where it is not. By the
    /// place of that read.
    Poll(u16),
}

impl Formal {
    fn reason(self) -> &'static str {
        match self {
            Self::InStep => {
                "GPUs before Volta run the lanes of a warp in step; later ones mostly do, and promise nothing"
            }
            Self::Reset => {
                "the thread that writes came last to the atomics before; CUDA's programming guide does the same"
            }
            Self::Poll(_) => "a loop waits for the write",
            Self::Twin => {
                "several threads do the same, and one result counts: compilers of tiles give out a tile so that has fewer \
                 elements than the block has threads"
            }
            Self::Guess => {
                "an aligned word is read in one piece, and atomicCAS tests what was read; CUDA's programming guide does the \
                 same"
            }
        }
    }
}

/// An access that another races with.
#[derive(Clone, Copy, Debug)]
struct Conflict {
    with: Cell,
    formal: Option<Formal>,
    /// Where `with` is a strong write, whose value somebody may have seen: what else there is.
    if_observed: Option<Option<Cell>>,
}

/// Whether two strong accesses that nothing orders, the earlier one first, conflict for one is a volatile write. A flag is set
/// and read like that, and so only what no flag does is told: lanes of a warp that are thought to run in step; a value
/// that several threads read and write back by the same instructions; and a read before the write, if it is not one of a
/// loop that waits.
#[inline(always)]
fn volatile_conflict(earlier: Cell, me: Cell, how: How, before: &[Cell; 3]) -> Option<Formal> {
    let kinds = (earlier.kind(), me.kind());
    let both_strong = kinds.0.strong() && kinds.1.strong();
    let one_volatile = kinds.0 == Kind::VolatileWrite || kinds.1 == Kind::VolatileWrite;
    if !both_strong || !one_volatile || earlier.same_thread(me) {
        return None;
    }
    if how.shared && earlier.same_warp(me) {
        return Some(Formal::InStep);
    }
    match kinds {
        (Kind::VolatileWrite, Kind::VolatileWrite) if earlier.place() == me.place() => {
            let own = |c: &&Cell| c.same_thread(me) && c.kind() == Kind::StrongRead;
            before.iter().find(own).map(|read| Formal::Poll(read.place()))
        }
        (Kind::StrongRead, Kind::VolatileWrite) if how.shared => {
            Some(Formal::Poll(earlier.place()))
        }
        _ => None,
    }
}

/// A bad access, which ends the launch: the memory it would touch is not the kernel's.
pub(crate) type Fatal = Box<Finding>;

/// What is known of the block that a runner runs.
pub(crate) struct BlockCheck {
    launch: LaunchHandle,
    pub(crate) clock: BlockClock,
    /// Its own shared memory, which the other blocks of a cluster may look up, too.
    pub(crate) shared: SharedShadow,
    block: u32,
    arena: (usize, usize),
    pending: Option<Pending>,
    pub(crate) cluster: Option<Arc<Cluster>>,
    /// Whether the cluster has met: before, its other blocks may not have begun.
    met: bool,
    /// As the launch has it.
    overlaps: bool,
    /// Whether nobody counts accesses, and no other grid makes any.
    looks_alone: bool,
    /// Whether the compiler thinks that a local variable may get no value.
    suspects: bool,
    /// Whether several threads may have the same element, as compilers of tiles give them out.
    has_twins: bool,
    /// Whether the race that was found last is formal for that.
    by_twin: bool,
    /// Whether a thread of the block has waited for the grid before.
    waited: bool,
    /// How many blocks had begun when it first let others have a turn.
    let_others: Option<u64>,
    /// Whether all threads that let the next grid begin knew of such a wait; `None` where none did.
    lets_begin_behind_wait: Option<bool>,
}

impl BlockCheck {
    /// # Safety
    /// `launch` outlives this, and nobody else uses it while a method here runs.
    pub(crate) unsafe fn new(
        launch: *mut LaunchCheck,
        threads: usize,
        fixed: Extent,
        dynamic: Extent,
    ) -> Self {
        // SAFETY: the caller's promise.
        let launch = unsafe { LaunchHandle::new(launch) };
        let static_bytes = launch.module().names().static_bytes.clone();
        Self {
            arena: launch.arena.base_and_size(),
            pending: launch.counters.as_ref().map(|_| Pending::new(threads)),
            overlaps: launch.overlaps,
            looks_alone: launch.counters.is_none() && !launch.overlaps && !launch.has_twins,
            suspects: launch.module().has_suspects(),
            has_twins: launch.has_twins,
            by_twin: false,
            waited: false,
            let_others: None,
            lets_begin_behind_wait: None,
            launch,
            clock: BlockClock::new(threads),
            shared: SharedShadow::new(fixed, dynamic, static_bytes),
            block: 0,
            cluster: None,
            met: false,
        }
    }

    pub(crate) fn start(&mut self, linear: u64) {
        self.block = linear as u32;
        (self.waited, self.lets_begin_behind_wait) = (false, None);
        self.let_others = None;
        self.launch.begin(self.block);
        self.clock.start(self.block);
        self.shared.generation += 1;
        self.shared.visits.clear();
        self.shared.arrivals.clear();
        if !self.launch.mbarriers.is_empty() {
            self.forget_mbarriers();
        }
    }

    /// The block waits, and others have a turn meanwhile, or begin.
    pub(crate) fn lets_others(&mut self) {
        let begun = self.launch.let_others();
        self.let_others.get_or_insert(begun);
    }

    /// All threads of the block have met.
    pub(crate) fn barrier(&mut self) {
        if self.clock.barrier() {
            self.forget();
        }
        self.count();
        if let Some(tracer) = self.launch.tracer {
            tracer.met();
        }
    }

    /// All blocks have met.
    pub(crate) fn grid_sync(&mut self, meeting: u64) {
        self.launch.grid_synced(meeting);
        self.barrier();
    }

    /// What this block brings to a sync of its cluster.
    pub(crate) fn bring(&mut self) -> Arc<Knowledge> {
        let (brought, restarted) = self.clock.bring();
        if restarted {
            self.forget();
        }
        self.count();
        brought
    }

    /// All blocks of the cluster have met.
    pub(crate) fn met_cluster(&mut self, brought: &[Arc<Knowledge>]) {
        self.clock.take(brought);
        self.met = true;
    }

    /// Stamps begin again: what carries old ones must not be taken for new.
    fn forget(&mut self) {
        self.forget_who_made_mbarriers();
        self.shared.generation += 1;
        self.launch.forget();
    }

    /// All lanes have come by: what is pending is complete.
    #[inline]
    pub(crate) fn count(&mut self) {
        let launch = &mut *self.launch;
        if let Some(tracer) = launch.tracer {
            tracer.settle();
        }
        let (Some(pending), Some(counters)) = (&mut self.pending, &mut launch.counters) else {
            return;
        };
        let (fixed, dynamic, arena) = (self.shared.fixed, self.shared.dynamic, launch.arena);
        let names = launch.kernel.module().names();
        pending.flush(counters, |address| match arena.owner_of(address) {
            Whose::Live(a) => a.base,
            _ if address.wrapping_sub(fixed.0) < fixed.1 => {
                let array = names.array_at(address - fixed.0);
                fixed.0 + array.map_or(0, |a| a.offset)
            }
            _ => dynamic.0,
        });
    }

    /// A thread has come to a barrier.
    pub(crate) fn barrier_counts(&mut self, thread: u32, pc: usize) {
        let launch = &mut *self.launch;
        if let Some(counters) = &mut launch.counters {
            counters.barrier(launch.places.number(pc));
        }
        if let Some(tracer) = launch.tracer {
            self.trace_barrier(tracer, thread, pc);
        }
    }

    /// A thread has come to a sync of the grid, which no counter has.
    pub(crate) fn grid_sync_comes(&mut self, thread: u32, pc: usize) {
        if let Some(tracer) = self.launch.tracer {
            self.trace_barrier(tracer, thread, pc);
        }
    }

    #[inline(always)]
    fn locate(&mut self, address: usize) -> Option<Located> {
        if let Some(located) = self.shared.locate_fixed(address) {
            return Some(located);
        }
        if address.wrapping_sub(self.arena.0) < self.arena.1 {
            let launch = &*self.launch;
            return Some((launch.arena.granule(address), Space::Global, launch.generation));
        }
        self.shared.locate_dynamic(address)
    }

    /// Where a GPU has what lies at this address, as far as alignment goes: static shared arrays lie side by
    /// side there, and apart here.
    fn place_on_gpu(&self, address: usize, space: Space) -> usize {
        match space {
            Space::Static => {
                let offset = address.wrapping_sub(self.shared.fixed.0);
                let array = self.launch.module().names().array_at(offset);
                array.map_or(address, |a| a.offset_on_gpu + (offset - a.offset))
            }
            _ => address,
        }
    }

    /// Looks at the use of a part of what needs an address that is a multiple of `len`.
    ///
    /// # Errors
    /// It is none.
    #[cold]
    pub(crate) fn part(
        &mut self,
        thread: &Thread,
        address: usize,
        len: usize,
        pc: usize,
    ) -> Result<(), Fatal> {
        // Of local variables another compiler makes what it likes.
        let Some((_, space, _)) = self.locate(address) else { return Ok(()) };
        if self.place_on_gpu(address, space).is_multiple_of(len) {
            return Ok(());
        }
        let place = self.launch.places.number(pc);
        let me = thread.who.at(Kind::Read, 0, place);
        Err(self.report_misaligned(address, len, space, me))
    }

    /// Looks at an address that must be a multiple of `alignment`, however much of it is used.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn aligned(
        &mut self,
        thread: &Thread,
        (address, alignment): (usize, usize),
        kind: Kind,
        pc: usize,
    ) -> Result<(), Fatal> {
        if alignment <= 1 {
            return Ok(());
        }
        let space = self.locate(address).map_or(Space::Global, |located| located.1);
        let me = thread.who.at(kind, 0, self.launch.places.number(pc));
        if !self.place_on_gpu(address, space).is_multiple_of(alignment) {
            return Err(self.report_misaligned(address, alignment, space, me));
        }
        if space == Space::Static {
            let byte = self.shared.static_byte(address - self.shared.fixed.0);
            if byte.exists() && byte.alignment() < alignment {
                self.aligned_by_luck(address, (alignment, byte.alignment()), me);
            }
        }
        Ok(())
    }

    /// Looks at a plain access of one instruction to whole granules, of which nothing is to be said: most are such. False where
    /// there may be more to it; [`BlockCheck::access`] then looks at all of it, also at what is done already.
    #[inline(always)]
    pub(crate) fn usual(
        &mut self,
        thread: &mut Thread,
        address: usize,
        len: usize,
        kind: Kind,
        pc: usize,
    ) -> bool {
        const WIDTHS: u32 = 1 << 4 | 1 << 8 | 1 << 16;
        if len > StaticByte::WIDEST || WIDTHS >> len & 1 == 0 || !self.looks_alone {
            return false;
        }
        if thread.stored.bytes != 0 {
            self.settle(thread);
        }
        let Some((mut granule, space, generation)) = self.locate(address) else {
            let is_aligned = address & (len - 1) == 0;
            let is_own = is_aligned && thread.stack.contains(&address) && thread.wgmma.idle();
            if is_own {
                thread.last = pc;
            }
            return is_own;
        };
        let aligned = match space {
            Space::Static => {
                let offset = address - self.shared.fixed.0;
                let byte = self.shared.static_byte(offset);
                if byte.alignment() < len {
                    return false;
                }
                offset + byte.shift_on_gpu()
            }
            _ => address,
        };
        let Some(place) = self.launch.places.known(pc).filter(|_| aligned & (len - 1) == 0) else {
            return false;
        };
        thread.last = pc;
        let me = thread.who.at(kind, self.clock.stamp(thread.index()), place).of_bytes(INIT_ALL);
        let marks = Granule::marks(kind);
        for _ in 0..len / GRANULE {
            // SAFETY: the shadow of an address that was located; an access that runs past its array's end meets a granule that does not
            // exist, and the arena's has a margin.
            let shadow = unsafe { &mut *granule };
            if !shadow.usual(generation, kind.writes()) {
                return false;
            }
            let done = match kind {
                Kind::Read => self.remember_read(&mut shadow.cells, me),
                _ => self.remember_write(&mut shadow.cells, me),
            };
            if !done {
                return false;
            }
            shadow.mark(INIT_ALL, marks);
            granule = granule.wrapping_add(1);
        }
        if kind == Kind::Write {
            thread.stored = Stored { address, bytes: len as u32, place, race: None };
        }
        true
    }

    /// Looks at one access, before it is made.
    ///
    /// # Errors
    /// The access must not be made.
    #[inline(always)]
    pub(crate) fn access(
        &mut self,
        thread: &mut Thread,
        address: usize,
        len: usize,
        kind: Kind,
        how: How,
        pc: usize,
    ) -> Result<(), Fatal> {
        if thread.stored.bytes != 0 {
            self.settle(thread);
        }
        thread.last = pc;
        // `away`: from memory of another block to the same place in this one's.
        let (granule, space, generation, away) = match self.locate(address) {
            Some((granule, space, generation)) => (granule, space, generation, 0),
            None => match self.access_elsewhere(thread, address, len, (kind, how), pc)? {
                Some(found) => found,
                None => return Ok(()),
            },
        };
        let here = |at: usize| at.wrapping_add(away);
        let index = thread.index();
        let place = self.launch.places.number(pc);
        let me = thread.who.at(kind, self.clock.stamp(index), place);
        let how = How { shared: matches!(space, Space::Static | Space::Dynamic), ..how };
        let (aligned, declared) = match space {
            Space::Static if len <= StaticByte::WIDEST => {
                let offset = here(address).wrapping_sub(self.shared.fixed.0);
                let byte = self.shared.static_byte(offset);
                let declared = if byte.exists() { byte.alignment() } else { len };
                (offset + byte.shift_on_gpu(), declared)
            }
            _ => (self.place_on_gpu(address, space), len),
        };
        // Nearly always a power of two, and then no division; a copy may be of nothing.
        let beyond = match len {
            0 => 0,
            _ if len.is_power_of_two() => aligned & (len - 1),
            _ => aligned % len,
        };
        if how.whole && beyond != 0 {
            return Err(self.report_misaligned(here(address), len, space, me));
        }
        if how.whole && declared < len {
            self.aligned_by_luck(here(address), (len, declared), me);
        }
        let (mut at, mut left, mut granule) = (address, len, granule);
        let marks = Granule::marks(kind);
        let mut in_earlier_grids = self.overlaps && space == Space::Global;
        let mut race = None;
        while left > 0 {
            let offset = at % GRANULE;
            let part = left.min(GRANULE - offset);
            // SAFETY: the shadow of an address that was located; an access that runs past its
            // array's end meets a granule that does not exist, and the arena's has a margin.
            let shadow = unsafe { &mut *granule };
            if shadow.generation() != generation {
                self.refresh(shadow, here(at - offset), space, generation);
            }
            if shadow.special() {
                if shadow.guard() {
                    return Ok(());
                }
                if !how.mbarrier {
                    return Err(self.on_mbarrier(here(at), len, space, me));
                }
            }
            let bytes = bytes_mask(offset, part);
            if bytes & !shadow.exists() != 0 {
                return Err(self.report_outside(here(at), len, space, me));
            }
            if (!kind.writes() || how.updates) && bytes & !shadow.init() != 0 {
                self.report_unwritten(here(at), len, space, me);
            }
            shadow.mark(bytes, marks);
            if kind.writes() && shadow.constant() & bytes != 0 {
                self.constant_written(shadow, me.of_bytes(bytes), (here(at), len));
            }
            if in_earlier_grids {
                let me = me.of_bytes(bytes);
                in_earlier_grids = self.look_at_earlier(granule as usize, me, (here(at), len));
            }
            if how.proxy {
                self.look_at_proxy(shadow, me.of_bytes(bytes), (here(at), len, space));
            }
            let conflict = self.remember(shadow, me.of_bytes(bytes), how);
            if let Some(conflict) = conflict.and_then(|c| self.unless_observed(c, address, me)) {
                race = race.or_else(|| self.race(here(at), len, space, conflict, me));
            }
            at += part;
            left -= part;
            granule = granule.wrapping_add(1);
        }
        if kind == Kind::Write || kind == Kind::VolatileWrite && race.is_some() {
            self.watch(thread, address, len, place, race);
        }
        if let Some(pending) = &mut self.pending
            && !how.lands
            && !how.proxy
            && !how.mbarrier
            && space != Space::Module
        {
            pending.record(index, place, here(address), (kind, how, space), len);
            if let Some(tracer) = self.launch.tracer
                && kind != Kind::AsyncWrite
            {
                self.trace_access(tracer, index, pc, (here(address), len), (kind, how, space));
            }
        }
        Ok(())
    }

    /// A copy of the async proxy, of so many sectors and bytes of device memory, if anybody counts.
    pub(crate) fn bulk(
        &mut self,
        pc: usize,
        stores: bool,
        traffic: impl FnOnce() -> (usize, usize),
    ) {
        let launch = &mut *self.launch;
        if let Some(counters) = &mut launch.counters {
            let (sectors, bytes) = traffic();
            counters.bulk(launch.places.number(pc), stores, sectors, bytes);
        }
    }

    /// An access of the async proxy: plain writes before it must have been fenced.
    fn look_at_proxy(&mut self, granule: &Granule, me: Cell, at: (usize, usize, Space)) {
        let shared = matches!(at.2, Space::Static | Space::Dynamic);
        let plain = |c: &&Cell| {
            c.bytes() & me.bytes() != 0
                && c.kind().writes()
                && !c.kind().in_flight()
                && c.kind() != Kind::Landed
                && !c.by_agent()
                && self.clock.is_ordered(**c, me) // else it is a race
                && !self.clock.is_seen_by_proxy(**c, me.thread(), shared)
        };
        if let Some(&write) = granule.cells.iter().find(plain) {
            self.report_unfenced(at, write, me);
        }
    }

    /// Remembers `me` in the granule; what it races with, if there is something.
    #[inline(always)]
    fn remember(&self, granule: &mut Granule, me: Cell, how: How) -> Option<Conflict> {
        if self.has_twins && matches!(me.kind(), Kind::Read | Kind::Write) {
            return self.remember_twin(granule, me, how);
        }
        if granule.whole() && me.bytes() == INIT_ALL && !how.lands {
            let done = match me.kind() {
                Kind::Read => self.remember_read(&mut granule.cells, me),
                Kind::Write => self.remember_write(&mut granule.cells, me),
                _ => false,
            };
            if done {
                return None;
            }
        }
        self.remember_any(granule, me, how)
    }

    /// Remembers a read of a whole granule, of which all cells are whole and in their order. False where more is to be
    /// looked at: nothing is done then.
    #[inline(always)]
    fn remember_read(&self, cells: &mut [Cell; 3], me: Cell) -> bool {
        let over = |c: Cell| self.clock.over(c, me);
        let [write, first, second] = cells;
        if !over(*write) {
            return self.remember_read_behind(cells, me);
        }
        if over(*first) {
            *first = me;
        } else if first.same_thread(me) {
            // It came by before.
        } else if over(*second) || second.same_warp(*first) && !me.same_warp(*first) {
            *second = me;
        }
        true
    }

    /// The same behind a write that is known otherwise than by a barrier of the block: a copy that has landed, another
    /// block's. As [`BlockCheck::remember_any`] has it.
    #[inline(never)]
    fn remember_read_behind(&self, cells: &mut [Cell; 3], me: Cell) -> bool {
        let [write, first, second] = cells;
        let ordered = |c: &Cell| !c.kind().in_flight() && self.clock.is_ordered(*c, me);
        if !ordered(write) {
            return false;
        }
        let gives_way = |c: &Cell| *c == Cell::NONE || c.kind() == Kind::Read && ordered(c);
        match (gives_way(first), gives_way(second)) {
            (true, true) => (*first, *second) = (me, Cell::NONE),
            (true, false) => *first = me,
            (false, true) => *second = me,
            (false, false) => return false,
        }
        true
    }

    /// Remembers a write, as [`BlockCheck::remember_read`] a read.
    #[inline(always)]
    fn remember_write(&self, cells: &mut [Cell; 3], me: Cell) -> bool {
        let over = |c: &Cell| self.clock.over(*c, me);
        let ordered =
            |c: &Cell| *c == Cell::NONE || !c.kind().in_flight() && self.clock.is_ordered(*c, me);
        let free = cells.iter().all(over) || cells.iter().all(ordered);
        if free {
            *cells = [me, Cell::NONE, Cell::NONE];
        }
        free
    }

    #[inline(never)]
    fn remember_any(&self, granule: &mut Granule, me: Cell, how: How) -> Option<Conflict> {
        let before = granule.cells;
        if how.of_block {
            granule.mark_of_block();
        }
        let of_block = granule.of_block();
        let cells = &mut granule.cells;
        let mut race: Option<Conflict> = None;
        let mut slot = None;
        for (index, cell) in cells.iter_mut().enumerate() {
            let shared = cell.bytes() & me.bytes();
            if shared == 0 {
                if cell.bytes() == 0 {
                    slot = slot.or(Some(index));
                }
                continue;
            }
            let ordered = if cell.kind().in_flight() {
                how.lands && cell.same_thread(me)
            } else {
                self.clock.is_ordered(*cell, me)
            };
            let of_volatile =
                if ordered { None } else { volatile_conflict(*cell, me, how, &before) };
            // Atomics race where one is for a block that the other is not of.
            let beyond_scope = || {
                let strong = cell.kind().strong() && me.kind().strong();
                let writes = cell.kind().writes() || me.kind().writes();
                of_block && strong && writes && !cell.same_block(me)
            };
            let conflicts = cell.kind().conflicts(me.kind()) || of_volatile.is_some();
            if !ordered && (conflicts || beyond_scope()) {
                let observable = cell.kind().strong()
                    && matches!(me.kind(), Kind::Read | Kind::Write)
                    && (!of_block || cell.same_block(me));
                match &mut race {
                    Some(Conflict { if_observed: Some(other @ None), .. }) if !observable => {
                        *other = Some(*cell);
                    }
                    Some(_) => {}
                    None => {
                        let formal = match of_volatile {
                            Some(formal) => Some(formal),
                            None => self.resets(&before, me).then_some(Formal::Reset),
                        };
                        let if_observed = observable.then_some(None);
                        race = Some(Conflict { with: *cell, formal, if_observed });
                    }
                }
            }
            // What is remembered may be forgotten where whoever races with it races with `me` too.
            // A plain write conflicts with everything. Anything else stands for an earlier access
            // only if it came after that, and conflicts with as much.
            let stronger = match (cell.kind(), me.kind()) {
                (_, Kind::Write | Kind::Landed) => true,
                (Kind::Read | Kind::AsyncRead, Kind::Read) => ordered,
                (Kind::StrongRead, Kind::StrongRead) => ordered,
                (
                    Kind::StrongRead | Kind::StrongWrite | Kind::VolatileWrite,
                    Kind::StrongWrite | Kind::VolatileWrite,
                ) => ordered,
                _ => false,
            };
            if stronger {
                let left = cell.bytes() & !me.bytes();
                *cell = if left == 0 { Cell::NONE } else { cell.of_bytes(left) };
                if left == 0 {
                    slot = slot.or(Some(index));
                }
            }
        }
        let slot = slot.or_else(|| self.make_room(cells, me));
        if let Some(slot) = slot {
            cells[slot] = me;
        }
        granule.sort_roles();
        race
    }

    /// As [`BlockCheck::remember_any`], where several threads may have the same element. Each of them loads it by one
    /// instruction, and one stores the result: the others' loads race with that, and nobody sees what they have got. So a
    /// thread's own load stays remembered behind its store, and a load by the same instruction is formal.
    #[inline(never)]
    fn remember_twin(&self, granule: &mut Granule, me: Cell, how: How) -> Option<Conflict> {
        let before = granule.cells;
        let meets = |c: &&Cell| c.bytes() & me.bytes() != 0;
        let has_read = |thread: Cell, place: u16| {
            let own = |c: &Cell| c.kind() == Kind::Read && c.same_thread(thread);
            before.iter().filter(meets).any(|c| own(c) && c.place() == place)
        };
        let found = self.remember_any(granule, me, how);
        let keep = match me.kind() {
            Kind::Write => before.into_iter().find(|c| {
                meets(&c) && c.kind() == Kind::Read && c.same_thread(me) && c.stamp() == me.stamp()
            }),
            _ => Some(me).filter(|me| !granule.cells.contains(me)),
        };
        let slot = |c: &Cell| match me.kind() {
            Kind::Write => *c == Cell::NONE,
            // One of two loads by the same instruction stands for both.
            _ => c.kind() == Kind::Read && c.place() == me.place() && c.same_block(me),
        };
        if let (Some(kept), Some(slot)) = (keep, granule.cells.iter().rposition(slot)) {
            granule.cells[slot] = kept;
            granule.sort_roles();
        }
        let is_formal = |other: Cell| match (other.kind(), me.kind()) {
            // Lanes, or warps that have the same elements, write what each has got of a sum: compilers of tiles let the sums
            // differ in their last bits.
            (Kind::Write, Kind::Write) => how.shared && other.place() == me.place(),
            (Kind::Write, Kind::Read) => !how.shared && has_read(other, me.place()),
            (Kind::Read, Kind::Write) => !how.shared && has_read(me, other.place()),
            _ => false,
        };
        let found = found?;
        if found.formal.is_some() || !found.with.same_block(me) || !is_formal(found.with) {
            return Some(found);
        }
        // Another one may not be.
        let races = |c: &&Cell| {
            meets(c) && c.kind().conflicts(me.kind()) && !self.clock.is_ordered(**c, me)
        };
        match before.iter().filter(races).find(|c| !c.same_block(me) || !is_formal(**c)) {
            Some(&with) => Some(Conflict { with, formal: None, if_observed: None }),
            None => Some(Conflict { formal: Some(Formal::Twin), ..found }),
        }
    }

    /// What is left of a conflict once strong writes are taken away that `me` comes behind, for their values were seen: see
    /// [`BlockClock::observed`].
    #[cold]
    fn unless_observed(&self, found: Conflict, address: usize, me: Cell) -> Option<Conflict> {
        let Some(other) = found.if_observed else { return Some(found) };
        let published = self.launch.published.get(&address);
        if !published.is_some_and(|published| self.clock.observed(published, me)) {
            return Some(found);
        }
        other.map(|with| Conflict { with, formal: None, if_observed: None })
    }

    /// Whether a plain write comes behind atomics alone, the last of them its own thread's: a counter is set back by who
    /// has counted last.
    #[cold]
    fn resets(&self, before: &[Cell; 3], me: Cell) -> bool {
        let of_these = |c: &&Cell| c.bytes() & me.bytes() != 0;
        let own = |c: &Cell| c.kind() == Kind::StrongWrite && c.same_thread(me);
        let harmless = |c: &Cell| c.kind() == Kind::StrongWrite || self.clock.is_ordered(*c, me);
        let mut all = before.iter().filter(of_these);
        me.kind() == Kind::Write && all.clone().any(own) && all.all(harmless)
    }

    /// Strong reads of one address, with no strong write and no barrier of the thread's between: a loop waits.
    pub(crate) fn polls(&mut self, thread: &Thread, address: usize, pcs: [usize; 2]) {
        if let Some(begun) = self.let_others {
            self.waits_for_later(thread, address, begun, pcs[1]);
        }
        for pc in pcs {
            let place = self.launch.places.number(pc);
            self.launch.polls.insert(place);
        }
    }

    /// The thread has tested by a compare-and-swap what it has read before: what it read plainly was only a guess.
    #[cold]
    pub(crate) fn note_compared(&mut self, thread: &Thread, address: usize) {
        let Some((granule, ..)) = self.locate(address) else { return };
        // SAFETY: the access that was looked at located it.
        let cells = unsafe { (*granule).cells };
        let guessed = |c: &Cell| c.kind() == Kind::Read && c.same_thread(thread.who);
        let places = cells.into_iter().filter(guessed).map(Cell::place);
        self.launch.guesses.extend(places);
    }

    /// All cells are taken. A write is always kept. A read takes the place of what a barrier has
    /// ordered; else of reads one of each of several warps stays.
    #[cold]
    fn make_room(&self, cells: &[Cell; 3], me: Cell) -> Option<usize> {
        if let Some(old) = cells.iter().position(|&c| self.clock.before_barrier(c, me)) {
            return Some(old);
        }
        if me.kind().writes() {
            return Some(2);
        }
        let news = cells.iter().all(|&c| c.kind().writes() || !c.same_warp(me));
        let twin = |i: usize| {
            let same = |c: &&Cell| !c.kind().writes() && c.same_warp(cells[i]);
            !cells[i].kind().writes() && cells.iter().filter(same).count() > 1
        };
        (0..3).rev().find(|&i| news && twin(i))
    }

    /// The first access to a granule in this launch, or in this block.
    #[cold]
    #[inline(never)]
    fn refresh(&mut self, granule: &mut Granule, at: usize, space: Space, generation: u32) {
        let launch = &mut *self.launch;
        let within = |start: usize, end: usize| {
            (0..GRANULE).filter(|b| (start..end).contains(&(at + b))).fold(0, |m, b| m | 1u8 << b)
        };
        let mut guard = false;
        let (exists, init) = match space {
            Space::Static => {
                let mut exists = 0;
                for byte in 0..GRANULE {
                    let of_byte = self.shared.static_byte(at + byte - self.shared.fixed.0);
                    exists |= u8::from(of_byte.exists()) << byte;
                    guard |= of_byte.is_guard();
                }
                (exists, 0)
            }
            Space::Dynamic => {
                (within(self.shared.dynamic.0, self.shared.dynamic.0 + self.shared.dynamic.1), 0)
            }
            Space::Module => (INIT_ALL, INIT_ALL),
            Space::Global => {
                let cached = launch.last.filter(|a| (a.base..a.base + a.len).contains(&at));
                let allocation = cached.or_else(|| match launch.arena.owner_of(at) {
                    Whose::Live(a) => Some(a),
                    _ => None,
                });
                launch.last = allocation.or(launch.last);
                match allocation {
                    Some(a) => (within(a.base, a.base + a.len), granule.initialised(&a)),
                    None => (0, 0),
                }
            }
        };
        let uses = match space {
            Space::Global => launch.uses_before(granule),
            _ => Uses::default(),
        };
        granule.renew(generation, exists, init);
        granule.add_uses(uses);
        if guard {
            granule.mark_guard();
        }
    }

    /// An address that is in none of the watched regions.
    #[cold]
    #[inline(never)]
    fn access_elsewhere(
        &mut self,
        thread: &mut Thread,
        address: usize,
        len: usize,
        (kind, how): (Kind, How),
        pc: usize,
    ) -> Result<Option<(*mut Granule, Space, u32, usize)>, Fatal> {
        if thread.stack.contains(&address) {
            if !thread.wgmma.idle() && thread.wgmma.touch(address, len) {
                return Err(self.registers_used(thread, kind, pc));
            }
            let may_split = how.whole && len.is_power_of_two() && len <= StaticByte::WIDEST;
            if may_split && (!address.is_multiple_of(len) || !self.launch.of_locals.is_empty()) {
                self.local_misaligned(thread, (address, len), kind, pc)?;
            }
            return Ok(None);
        }
        if let Some(found) = self.in_cluster(thread, address, len, (kind, how), pc)? {
            return Ok(Some(found));
        }
        let launch = &mut *self.launch;
        if let Some(foreign) = memory::Foreign::find(&launch.foreign, address) {
            let away = foreign.away();
            let granule = launch.arena.granule(address.wrapping_add(away));
            return Ok(Some((granule, Space::Global, launch.generation, away)));
        }
        let (start, end) = launch.module_data;
        if (start..end).contains(&address) {
            if launch.module_shadow.is_empty() {
                launch.module_shadow = vec![Granule::EMPTY; (end - start).div_ceil(GRANULE) + 4];
            }
            let granule = &raw mut launch.module_shadow[(address - start) / GRANULE];
            return Ok(Some((granule, Space::Module, launch.generation, 0)));
        }
        if launch.module().holds(address) && !kind.writes() {
            return Ok(None); // constants
        }
        let index = thread.index();
        let place = launch.places.number(pc);
        let me = Cell::new(kind, index, self.block, self.clock.stamp(index), place);
        Err(self.report_outside(address, len, Space::Global, me))
    }

    /// How far this block's shared memory lies from that of a block of the cluster which has this address.
    fn offset_in_other_block(&self, member: &Member, address: usize) -> Option<usize> {
        let home = |there: (usize, usize), here: (usize, usize)| {
            (address.wrapping_sub(there.0) < there.1).then(|| here.0.wrapping_sub(there.0))
        };
        // A little around dynamic shared memory is watched as well.
        let around =
            |(start, bytes): (usize, usize)| (start - DYNAMIC_MARGIN, bytes + 2 * DYNAMIC_MARGIN);
        home(member.fixed, self.shared.fixed)
            .or_else(|| home(around(member.dynamic), around(self.shared.dynamic)))
    }

    /// An address in shared memory of any block of the cluster, as the same place in this block's.
    fn at_home(&self, address: usize) -> usize {
        let Some(cluster) = &self.cluster else { return address };
        let members = (0..cluster.size()).filter_map(|rank| cluster.member(rank));
        let away =
            members.into_iter().find_map(|member| self.offset_in_other_block(member, address));
        address.wrapping_add(away.unwrap_or(0))
    }

    /// Shared memory of another block of the cluster, and how far this block's own lies from there.
    fn in_cluster(
        &mut self,
        thread: &Thread,
        address: usize,
        len: usize,
        (kind, how): (Kind, How),
        pc: usize,
    ) -> Result<Option<(*mut Granule, Space, u32, usize)>, Fatal> {
        let Some(cluster) = self.cluster.clone() else { return Ok(None) };
        for rank in 0..cluster.size() {
            let Some(member) = cluster.member(rank) else { continue };
            if std::ptr::eq(member.shadow, &raw const self.shared) {
                continue;
            }
            let Some(away) = self.offset_in_other_block(member, address) else { continue };
            let exited = member.exited.load(Ordering::Relaxed);
            let place = self.launch.places.number(pc);
            let me = thread.who.at(kind, self.clock.stamp(thread.index()), place);
            if exited || !self.met {
                return Err(self.report_absent_block(rank, exited, len, me));
            }
            // SAFETY: the other block's runner lives until all of the cluster have ended, and one OS
            // thread at a time runs a checked launch.
            let other = unsafe { &mut *member.shadow };
            if !kind.in_flight() && !how.in_copy {
                other.visited(me, address);
            }
            let located = other.locate_fixed(address).or_else(|| other.locate_dynamic(address));
            return Ok(
                located.map(|(granule, space, generation)| (granule, space, generation, away))
            );
        }
        Ok(None)
    }

    /// A strong access has its say in who knows what.
    pub(crate) fn publish(
        &mut self,
        thread: u32,
        address: usize,
        (reads, writes): (bool, bool),
        (acquires, releases): (bool, bool),
    ) {
        let stamp = self.clock.stamp(thread);
        let me = Cell::new(Kind::StrongRead, thread, self.block, stamp, 0);
        let published = self.launch.published.entry(address).or_default();
        if reads {
            self.clock.strong_read(thread, published, acquires);
        }
        if writes {
            self.clock.strong_write(thread, published, reads, releases);
        }
        self.clock.observe(me, published, (writes, writes && !reads, reads && acquires));
    }

    pub(crate) fn fence(&mut self, thread: u32, scope: Scope) {
        self.clock.fence(thread, scope);
    }
}

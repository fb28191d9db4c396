//! The checks: what a kernel that was compiled for it reports of each access, against the shadow.
//!
//! One OS thread at a time runs a checked launch, so a run is the same every time and nothing here
//! needs a lock. Each access goes through [`BlockCheck::access`]: does the memory exist, was it
//! written, and is it ordered after all others that it conflicts with?

use std::collections::{HashMap, HashSet};

use crate::block::Geometry;
use crate::clock::{BlockClock, Published, Scope};
use crate::counters::{Counters, Pending, Profile};
use crate::hooks::Thread;
use crate::memory::{self, Arena, Whose};
use crate::module::{Kernel, Module};
use crate::report::{Access, Finding, Findings, Kind as What};
use crate::shadow::{Cell, GRANULE, Granule, INIT_ALL, Kind, PLACE_UNKNOWN, Places, bytes_mask};
use crate::warp::{LANES, Operand};

/// Findings that are kept; of more, the number.
const KEPT: usize = 20;
/// Bytes around dynamic shared memory that are watched.
pub(crate) const DYNAMIC_MARGIN: usize = 4096;
/// What g++ fills local variables with: `-ftrivial-auto-var-init=pattern`.
const LOCAL_PATTERN: u8 = 0xFE;

/// Which memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Static,
    Dynamic,
    /// `__device__` variables.
    Module,
}

/// How an access was made, beside its kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    /// By one instruction, which must be aligned.
    pub(crate) whole: bool,
    /// It reads as well as writes.
    pub(crate) updates: bool,
    /// An asynchronous copy lands.
    pub(crate) lands: bool,
}

/// A plain store that is looked at again once it is done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stored {
    pub(crate) address: usize,
    pub(crate) bytes: u32,
    place: u16,
    /// It is one of a race: which finding, and what the memory held before.
    race: Option<(u32, [u8; 16])>,
}

/// A bad access, which ends the launch: the memory it would touch is not the kernel's.
pub(crate) type Fatal = Box<Finding>;

/// What is known of one launch.
pub(crate) struct LaunchCheck {
    kernel: Kernel,
    geometry: Geometry,
    generation: u32,
    /// Grid-wide syncs so far.
    meeting: u64,
    arena: &'static Arena,
    last: Option<memory::Allocation>,
    pub(crate) places: Places,
    pub(crate) counters: Option<Box<Counters>>,
    module_data: (usize, usize),
    module_shadow: Vec<Granule>,
    published: HashMap<usize, Published>,
    /// Pointers among the arguments, with their parameter's number.
    pointers: Vec<(usize, usize)>,
    findings: Vec<Finding>,
    more: u64,
    races: HashMap<(u16, u16), usize>,
    /// Reads of unwritten bytes, by place.
    uninitialised: HashMap<u16, Finding>,
    /// Places of reads that are part of a race.
    raced: HashSet<u16>,
    /// Places that stored a local variable which never got a value.
    locals: HashSet<u16>,
}

impl LaunchCheck {
    pub(crate) fn new(
        kernel: &Kernel,
        geometry: Geometry,
        pointers: Vec<(usize, usize)>,
        count: bool,
    ) -> std::io::Result<Self> {
        let arena = memory::get().ok_or(std::io::ErrorKind::OutOfMemory)?;
        let module = kernel.module();
        Ok(Self {
            kernel: kernel.clone(),
            geometry,
            generation: memory::next_generation(),
            meeting: 0,
            arena,
            last: None,
            places: Places::new(module.text()),
            counters: count.then(Box::default),
            module_data: module.data(),
            module_shadow: Vec::new(),
            published: HashMap::new(),
            pointers,
            findings: Vec::new(),
            more: 0,
            races: HashMap::new(),
            uninitialised: HashMap::new(),
            raced: HashSet::new(),
            locals: HashSet::new(),
        })
    }

    fn module(&self) -> &Module {
        self.kernel.module()
    }

    fn keep(&mut self, finding: Finding) -> Option<usize> {
        if self.findings.len() >= KEPT {
            self.more += 1;
            return None;
        }
        self.findings.push(finding);
        Some(self.findings.len() - 1)
    }

    /// All blocks have met for the `meeting`-th time (each block tells): what was before is ordered
    /// before what comes.
    fn grid_synced(&mut self, meeting: u64) {
        if self.meeting != meeting {
            self.meeting = meeting;
            self.generation = memory::next_generation();
        }
    }

    /// What was counted.
    pub(crate) fn profile(&mut self) -> Profile {
        match self.counters.take() {
            Some(counters) => counters.profile(|number| self.place(number)),
            None => Profile::default(),
        }
    }

    /// What was found, `fatal` last. A read of unwritten bytes that raced with their write is a
    /// race and nothing else.
    pub(crate) fn finish(&mut self, fatal: Option<Finding>) -> Option<Findings> {
        let mut unwritten: Vec<_> = self.uninitialised.drain().collect();
        unwritten.sort_by_key(|u| u.0);
        for (place, finding) in unwritten {
            if !self.raced.contains(&place) {
                self.keep(finding);
            }
        }
        self.findings.retain(|f| f.count > 0);
        self.findings.extend(fatal);
        (!self.findings.is_empty())
            .then(|| Findings { all: std::mem::take(&mut self.findings), more: self.more })
    }

    fn place(&self, number: u16) -> String {
        match self.places.address(number) {
            Some(pc) => self.module().place(pc),
            None => "a place that was not kept".into(),
        }
    }

    fn by(&self, what: String, cell: Cell) -> Access {
        let block = self.geometry.block_index(u64::from(cell.block()));
        let thread = self.geometry.thread_index(cell.thread());
        let (place, within) = match self.places.address(cell.place()) {
            Some(pc) => self.module().place_within(pc),
            None => ("a place that was not kept".into(), Vec::new()),
        };
        Access { what, place, within, block, thread }
    }

    /// `x[17] (f32)`: memory by its name.
    fn name(&self, space: Space, address: usize, block: &BlockCheck) -> String {
        let names = self.module().names();
        match space {
            Space::Static => match names.array_at(address - block.fixed.0) {
                Some(a) => format!(
                    "{} (shared memory, {})",
                    a.index(address - block.fixed.0 - a.offset),
                    a.element
                ),
                None => "shared memory between two arrays".into(),
            },
            Space::Dynamic => {
                let offset = address as isize - block.dynamic.0 as isize;
                format!("byte {offset} of dynamic shared memory")
            }
            Space::Module => format!("the __device__ variable at {address:#x}"),
            Space::Global => match self.arena.whose(address) {
                Whose::Live(a) => self.name_in(a.base, a.len, address),
                _ => format!("address {address:#x}"),
            },
        }
    }

    /// Global memory by the parameter that points to it.
    fn name_in(&self, base: usize, len: usize, address: usize) -> String {
        let found = self.pointers.iter().find(|p| (base..=base + len).contains(&p.1));
        let Some(&(index, pointer)) = found else {
            return format!("byte {} of an allocation of {len} bytes", address - base);
        };
        let function = self.kernel.function();
        let names = self.module().names();
        let name = names.parameters(function).get(index).filter(|n| !n.is_empty());
        let name = name.cloned().unwrap_or_else(|| format!("parameter {index}"));
        let dtype = self.kernel.parameters()[index].type_name;
        let dtype = dtype.trim_start_matches("const ").trim_end_matches('*');
        let size = match dtype {
            "f64" | "i64" | "u64" => 8,
            "f32" | "i32" | "u32" => 4,
            "f16" | "bf16" | "i16" | "u16" => 2,
            _ => 1,
        };
        let distance = address as isize - pointer as isize;
        let elements = (len - (pointer - base)) / size as usize;
        match (dtype, size) {
            (_, 1) if dtype != "u8" && dtype != "i8" => {
                format!("byte {distance} of {name} ({len} bytes)")
            }
            _ => format!("{name}[{}] ({dtype}, {elements} elements)", distance.div_euclid(size)),
        }
    }
}

/// What is known of the block that a runner runs.
pub(crate) struct BlockCheck {
    launch: *mut LaunchCheck,
    pub(crate) clock: BlockClock,
    /// Static and dynamic shared memory: where it begins, and bytes.
    pub(crate) fixed: (usize, usize),
    pub(crate) dynamic: (usize, usize),
    fixed_shadow: Vec<Granule>,
    dynamic_shadow: Vec<Granule>,
    /// Shared memory's own: it lives as long as a block.
    generation: u32,
    block: u32,
    arena: (usize, usize),
    pending: Option<Pending>,
}

impl BlockCheck {
    /// # Safety
    /// `launch` outlives this, and nobody else uses it while a method here runs.
    pub(crate) unsafe fn new(
        launch: *mut LaunchCheck,
        threads: usize,
        fixed: (usize, usize),
        dynamic: (usize, usize),
    ) -> Self {
        // One granule more, for what a wide access at the end reaches.
        let shadow = |bytes: usize| vec![Granule::EMPTY; bytes.div_ceil(GRANULE) + 4];
        // SAFETY: the caller's promise.
        let (arena, pending) = unsafe {
            let launch = &*launch;
            (launch.arena.range(), launch.counters.as_ref().map(|_| Pending::new(threads)))
        };
        Self {
            launch,
            clock: BlockClock::new(threads),
            fixed,
            dynamic,
            fixed_shadow: shadow(fixed.1),
            dynamic_shadow: shadow(dynamic.1 + 2 * DYNAMIC_MARGIN),
            generation: 0,
            block: 0,
            arena,
            pending,
        }
    }

    // With a lifetime of its own: block and launch are used side by side, each by itself.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    fn launch<'a>(&self) -> &'a mut LaunchCheck {
        // SAFETY: see `new`; the two do not overlap, and one OS thread at a time is in here.
        unsafe { &mut *self.launch }
    }

    pub(crate) fn start(&mut self, linear: u64) {
        self.block = linear as u32;
        self.clock.start(self.block);
        self.generation += 1;
    }

    /// All threads of the block have met.
    pub(crate) fn barrier(&mut self) {
        if self.clock.barrier() {
            // Stamps begin again: what carries old ones must not be taken for new.
            self.generation += 1;
            self.launch().generation = memory::next_generation();
        }
        self.count();
    }

    /// All blocks have met.
    pub(crate) fn grid_sync(&mut self, meeting: u64) {
        self.launch().grid_synced(meeting);
        self.barrier();
    }

    /// All lanes have come by: what is pending is complete.
    #[inline]
    pub(crate) fn count(&mut self) {
        let launch = self.launch();
        let (Some(pending), Some(counters)) = (&mut self.pending, &mut launch.counters) else {
            return;
        };
        let (fixed, dynamic, arena) = (self.fixed, self.dynamic, launch.arena);
        pending.flush(counters, |address| match arena.whose(address) {
            Whose::Live(a) => a.base,
            _ if address.wrapping_sub(fixed.0) < fixed.1 => fixed.0,
            _ => dynamic.0,
        });
    }

    /// A thread has come to a barrier.
    pub(crate) fn barrier_counts(&mut self, pc: usize) {
        let launch = self.launch();
        if let Some(counters) = &mut launch.counters {
            counters.barrier(launch.places.number(pc));
        }
    }

    #[inline(always)]
    fn locate(&mut self, address: usize) -> Option<(*mut Granule, Space, u32)> {
        let offset = address.wrapping_sub(self.fixed.0);
        if offset < self.fixed.1 {
            let granule = &raw mut self.fixed_shadow[offset / GRANULE];
            return Some((granule, Space::Static, self.generation));
        }
        if address.wrapping_sub(self.arena.0) < self.arena.1 {
            let launch = self.launch();
            return Some((launch.arena.granule(address), Space::Global, launch.generation));
        }
        let start = self.dynamic.0 - DYNAMIC_MARGIN;
        let offset = address.wrapping_sub(start);
        if self.dynamic.1 > 0 && offset < self.dynamic.1 + 2 * DYNAMIC_MARGIN {
            let granule = &raw mut self.dynamic_shadow[offset / GRANULE];
            return Some((granule, Space::Dynamic, self.generation));
        }
        None
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
        let (granule, space, generation) = match self.locate(address) {
            Some(found) => found,
            None => match self.elsewhere(thread, address, len, kind, pc)? {
                Some(found) => found,
                None => return Ok(()),
            },
        };
        let index = thread.index();
        let place = self.launch().places.number(pc);
        let me = thread.who.at(kind, self.clock.stamp(index), place);
        if how.whole && !address.is_multiple_of(len) {
            return Err(self.misaligned(address, len, space, me));
        }
        let (mut at, mut left, mut granule) = (address, len, granule);
        let mut race = None;
        while left > 0 {
            let offset = at % GRANULE;
            let here = left.min(GRANULE - offset);
            // SAFETY: the shadow of an address that was located; an access that runs past its
            // array's end meets a granule that does not exist, and the arena's has a margin.
            let shadow = unsafe { &mut *granule };
            if shadow.generation() != generation {
                self.refresh(shadow, at - offset, space, generation);
            }
            if shadow.guard() {
                return Ok(());
            }
            let bytes = bytes_mask(offset, here);
            if bytes & !shadow.exists() != 0 {
                return Err(self.outside(at, len, space, me));
            }
            if (!kind.writes() || how.updates) && bytes & !shadow.init() != 0 {
                self.unwritten(at, len, space, me);
            }
            if kind.writes() && (kind != Kind::AsyncWrite) {
                shadow.mark_written(bytes);
            }
            if let Some(other) = self.remember(shadow, me.of_bytes(bytes), how) {
                race = race.or_else(|| self.race(at, len, space, other, me));
            }
            at += here;
            left -= here;
            granule = granule.wrapping_add(1);
        }
        if kind == Kind::Write {
            self.watch(thread, address, len, place, race);
        }
        if let Some(pending) = &mut self.pending
            && !how.lands
            && space != Space::Module
        {
            pending.record(index, place, address, (kind, how, space), len);
        }
        Ok(())
    }

    /// Remembers `me` in the granule; the access that it races with, if there is one.
    #[inline(always)]
    fn remember(&self, granule: &mut Granule, me: Cell, how: How) -> Option<Cell> {
        if granule.whole() && me.bytes() == INIT_ALL {
            let cells = &mut granule.cells;
            let over = |c: Cell| self.clock.over(c, me);
            match me.kind() {
                Kind::Read if over(cells[0]) => {
                    let [_, first, second] = cells;
                    if over(*first) {
                        *first = me;
                    } else if first.same_thread(me) {
                        // It came by before.
                    } else if over(*second) || second.same_warp(*first) && !me.same_warp(*first) {
                        *second = me;
                    }
                    return None;
                }
                Kind::Write if cells.iter().all(|&c| over(c)) && !how.lands => {
                    *cells = [me, Cell::NONE, Cell::NONE];
                    return None;
                }
                _ => {}
            }
        }
        self.remember_any(granule, me, how)
    }

    #[inline(never)]
    fn remember_any(&self, granule: &mut Granule, me: Cell, how: How) -> Option<Cell> {
        let cells = &mut granule.cells;
        let mut race = None;
        let mut slot = None;
        for (index, cell) in cells.iter_mut().enumerate() {
            let shared = cell.bytes() & me.bytes();
            if shared == 0 {
                if cell.bytes() == 0 {
                    slot = slot.or(Some(index));
                }
                continue;
            }
            let ordered = match cell.kind().in_flight() {
                true => how.lands && cell.same_thread(me),
                false => self.clock.ordered(*cell, me),
            };
            if !ordered && cell.kind().conflicts(me.kind()) {
                race = race.or(Some(*cell));
            }
            // What is remembered may be forgotten where whoever races with it races with `me` too.
            // A plain write conflicts with everything. Anything else stands for an earlier access
            // only if it came after that, and conflicts with as much.
            let stronger = match (cell.kind(), me.kind()) {
                (_, Kind::Write) => true,
                (Kind::Read | Kind::AsyncRead, Kind::Read) => ordered,
                (Kind::StrongRead, Kind::StrongRead) => ordered,
                (Kind::StrongRead | Kind::StrongWrite, Kind::StrongWrite) => ordered,
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
        let launch = self.launch();
        let within = |start: usize, end: usize| {
            (0..GRANULE).filter(|b| (start..end).contains(&(at + b))).fold(0, |m, b| m | 1u8 << b)
        };
        let mut guard = false;
        let (exists, init) = match space {
            Space::Static => {
                let names = launch.module().names();
                let mut exists = 0;
                for byte in 0..GRANULE {
                    let Some(array) = names.array_at(at + byte - self.fixed.0) else { continue };
                    exists |= 1 << byte;
                    guard |= array.is_guard();
                }
                (exists, 0)
            }
            Space::Dynamic => (within(self.dynamic.0, self.dynamic.0 + self.dynamic.1), 0),
            Space::Module => (INIT_ALL, INIT_ALL),
            Space::Global => {
                let cached = launch.last.filter(|a| (a.base..a.base + a.len).contains(&at));
                let allocation = cached.or_else(|| match launch.arena.whose(at) {
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
        granule.renew(generation, exists, init);
        if guard {
            granule.mark_guard();
        }
    }

    /// An address that is in none of the watched regions.
    #[cold]
    #[inline(never)]
    fn elsewhere(
        &mut self,
        thread: &Thread,
        address: usize,
        len: usize,
        kind: Kind,
        pc: usize,
    ) -> Result<Option<(*mut Granule, Space, u32)>, Fatal> {
        if thread.stack.contains(&address) {
            return Ok(None);
        }
        let launch = self.launch();
        let (start, end) = launch.module_data;
        if (start..end).contains(&address) {
            if launch.module_shadow.is_empty() {
                launch.module_shadow = vec![Granule::EMPTY; (end - start).div_ceil(GRANULE) + 4];
            }
            let granule = &raw mut launch.module_shadow[(address - start) / GRANULE];
            return Ok(Some((granule, Space::Module, launch.generation)));
        }
        if launch.module().holds(address) && !kind.writes() {
            return Ok(None); // constants
        }
        let index = thread.index();
        let place = launch.places.number(pc);
        let me = Cell::new(kind, index, self.block, self.clock.stamp(index), place);
        Err(self.outside(address, len, Space::Global, me))
    }

    // ---- findings ---------------------------------------------------------------------------

    #[cold]
    fn misaligned(&mut self, address: usize, len: usize, space: Space, me: Cell) -> Fatal {
        let launch = self.launch();
        let name = launch.name(space, address, self);
        let mut finding = Finding::new(
            What::Misaligned,
            format!("misaligned address: {name} is not at a multiple of {len} bytes"),
        )
        .fix("a vector access needs an address that is a multiple of its size: handle the ends by single elements");
        finding.accesses.push(launch.by(describe(me.kind(), len), me));
        Box::new(finding)
    }

    /// An index past the end of an array whose size the compiler knows.
    #[cold]
    pub(crate) fn index(&mut self, thread: &Thread, array: &str, index: i64, pc: usize) -> Fatal {
        let launch = self.launch();
        let me = thread.who.at(Kind::Read, 0, launch.places.number(pc));
        let message = format!("out of bounds: index {index} of an array {array}");
        let mut finding = Finding::new(What::OutOfBounds, message)
            .fix("an array has the indices below its size: look at the loop's end");
        finding.accesses.push(launch.by("use".into(), me));
        Box::new(finding)
    }

    #[cold]
    fn outside(&mut self, address: usize, len: usize, space: Space, me: Cell) -> Fatal {
        let launch = self.launch();
        let names = launch.module().names();
        let beyond = |name: &str, start: usize, bytes: usize| {
            let (distance, side) = match address < start {
                true => (start - address, "before the start"),
                false => (address.saturating_sub(start + bytes), "past the end"),
            };
            format!("out of bounds: {distance} bytes {side} of {name}, which has {bytes} bytes")
        };
        let mut kind = What::OutOfBounds;
        let message = match space {
            Space::Static => match names.nearest_array(address - self.fixed.0) {
                Some(a) => {
                    beyond(&format!("shared array {}", a.name), self.fixed.0 + a.offset, a.bytes)
                }
                None => "out of bounds: the kernel has no static shared memory".into(),
            },
            Space::Dynamic => beyond("dynamic shared memory", self.dynamic.0, self.dynamic.1),
            Space::Module | Space::Global => match launch.arena.whose(address) {
                Whose::Freed(base, bytes) => {
                    kind = What::UseAfterFree;
                    format!("use after free: byte {} of {bytes}", address - base)
                }
                _ => match launch.arena.nearest(address) {
                    Some(a) if address.abs_diff(a.base) < (1 << 40) => {
                        let first = launch.name_in(a.base, a.len, a.base);
                        let name = first.split(['[', ' ']).next().unwrap_or(&first).to_owned();
                        let name = if first.starts_with("byte ") { "an allocation" } else { &name };
                        beyond(name, a.base, a.len)
                    }
                    _ => format!("out of bounds: address {address:#x} belongs to no allocation"),
                },
            },
        };
        let fix = match kind {
            What::UseAfterFree => "keep the buffer alive until the kernel has run",
            _ => "guard the index, or make the array larger",
        };
        let mut finding = Finding::new(kind, message).fix(fix);
        finding.accesses.push(launch.by(describe(me.kind(), len), me));
        Box::new(finding)
    }

    #[cold]
    #[inline(never)]
    fn unwritten(&mut self, address: usize, len: usize, space: Space, me: Cell) {
        let launch = self.launch();
        if let Some(finding) = launch.uninitialised.get_mut(&me.place()) {
            finding.count += 1;
            return;
        }
        let name = launch.name(space, address, self);
        let mut finding = Finding::new(
            What::Uninitialised,
            format!("uninitialised: {name} is read, and nobody has written it"),
        )
        .fix("write it before, or do not read it: a guard may let too much through");
        finding.accesses.push(launch.by(describe(me.kind(), len), me));
        launch.uninitialised.insert(me.place(), finding);
    }

    #[cold]
    #[inline(never)]
    fn race(
        &mut self,
        address: usize,
        len: usize,
        space: Space,
        other: Cell,
        me: Cell,
    ) -> Option<usize> {
        let launch = self.launch();
        for cell in [other, me] {
            if !cell.kind().writes() {
                launch.raced.insert(cell.place());
            }
        }
        if let Some(&known) = launch.races.get(&(other.place(), me.place())) {
            if let Some(finding) = launch.findings.get_mut(known) {
                finding.count += 1;
            }
            return Some(known);
        }
        let name = launch.name(space, address, self);
        let (kind, message) = match other.kind() {
            Kind::AsyncWrite => (
                What::CopyInFlight,
                format!("race on {name}: used while an asynchronous copy into it is under way"),
            ),
            Kind::AsyncRead => (
                What::CopyInFlight,
                format!("race on {name}: written while an asynchronous copy of it is under way"),
            ),
            _ => (What::Race, format!("race on {name}")),
        };
        let mut finding = Finding::new(kind, message).fix(remedy(other, me, space));
        finding.accesses = vec![
            launch.by(verb(other.kind()).into(), other),
            launch.by(describe(me.kind(), len), me),
        ];
        let index = launch.keep(finding).unwrap_or(usize::MAX);
        launch.races.insert((other.place(), me.place()), index);
        Some(index)
    }

    /// Notes a plain store, to be looked at once it is done.
    #[inline(always)]
    fn watch(
        &mut self,
        thread: &mut Thread,
        address: usize,
        len: usize,
        place: u16,
        race: Option<usize>,
    ) {
        if !(2..=16).contains(&len) && race.is_none() {
            return;
        }
        let mut stored = Stored { address, bytes: len.min(16) as u32, place, race: None };
        if let Some(index) = race {
            let mut before = [0; 16];
            // SAFETY: the access was found to be inside of memory that exists.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    address as *const u8,
                    before.as_mut_ptr(),
                    stored.bytes as usize,
                );
            }
            stored.race = Some((index as u32, before));
        }
        thread.stored = stored;
    }

    /// The store that `thread` made last is done: was it the pattern of a variable that never got a
    /// value? Did it race, but with the same value?
    #[inline(always)]
    pub(crate) fn settle(&mut self, thread: &mut Thread) {
        let stored = std::mem::take(&mut thread.stored);
        let mut now = [0u8; 16];
        let bytes = stored.bytes as usize;
        // SAFETY: as in `watch`; the launch, and so its memory, is alive.
        unsafe {
            std::ptr::copy_nonoverlapping(stored.address as *const u8, now.as_mut_ptr(), bytes);
        }
        if let Some((index, before)) = stored.race {
            self.same_value(index as usize, before[..bytes] == now[..bytes]);
        }
        if now[0] == LOCAL_PATTERN && now[..bytes].iter().all(|&b| b == LOCAL_PATTERN) {
            self.local(thread, &stored);
        }
    }

    /// All threads that race here write what is there already: whoever comes last, the result is
    /// the same.
    #[cold]
    fn same_value(&mut self, index: usize, same: bool) {
        if let Some(finding) = self.launch().findings.get_mut(index)
            && same
            && finding.accesses.iter().all(|a| a.what.starts_with("write"))
        {
            finding.count -= 1;
        }
    }

    #[cold]
    fn local(&mut self, thread: &Thread, stored: &Stored) {
        let launch = self.launch();
        let suspects = launch.module().suspects();
        // Two bytes may hold the pattern by chance; not where the compiler suspects no variable.
        if stored.bytes < 4 && suspects.is_empty() || !launch.locals.insert(stored.place) {
            return;
        }
        let space = self.locate(stored.address).map_or(Space::Global, |l| l.1);
        let name = launch.name(space, stored.address, self);
        let me = Cell::new(Kind::Write, thread.index(), self.block, 0, stored.place);
        let mut finding = Finding::new(
            What::UninitialisedLocal,
            format!("uninitialised: what is written to {name} is a local variable that never got a value"),
        )
        .fix("give the variable a value where it is declared");
        finding.suspects = suspects;
        finding.accesses.push(launch.by(describe(Kind::Write, stored.bytes as usize), me));
        launch.keep(finding);
    }

    // ---- synchronisation ----------------------------------------------------------------------

    /// A strong access has its say in who knows what.
    pub(crate) fn publish(
        &mut self,
        thread: u32,
        address: usize,
        (reads, writes): (bool, bool),
        (acquires, releases): (bool, bool),
    ) {
        let published = self.launch().published.entry(address).or_default();
        if reads {
            self.clock.strong_read(thread, published, acquires);
        }
        if writes {
            self.clock.strong_write(thread, published, reads, releases);
        }
    }

    pub(crate) fn fence(&mut self, thread: u32, scope: Scope) {
        self.clock.fence(thread, scope);
    }

    /// The threads of a block have met at a barrier, each at its own place.
    pub(crate) fn met_at(
        &mut self,
        standing: impl Fn() -> Vec<crate::report::Standing>,
        pcs: [usize; 2],
    ) {
        let launch = self.launch();
        let (a, b) = (launch.places.number(pcs[0]), launch.places.number(pcs[1]));
        // Clones of one call, of an unrolled loop say, have the same place and callers.
        let [first, other] = pcs.map(|pc| launch.module().frames(pc));
        if first == other || launch.races.contains_key(&(a, b)) {
            return;
        }
        let finding = Finding::new(
            What::DivergentBarrier,
            "divergent barrier: threads of one block meet at barriers of different places",
        )
        .standing(standing())
        .fix("let all threads of the block come to the same __syncthreads(): move it out of the branch");
        let index = launch.keep(finding).unwrap_or(usize::MAX);
        launch.races.insert((a, b), index);
    }

    /// Lanes of a warp came to the same collective with different masks.
    pub(crate) fn masks_differ(&mut self, thread: &Thread, own: Operand, lane: usize, mask: u32) {
        let message = format!(
            "{} with mask {:#010x} names lane {lane}, which came to it with mask {mask:#010x}",
            own.op.name(),
            own.mask
        );
        let fix = "all lanes that a mask names must pass the same mask";
        self.at_collective(thread, What::BadCollective, message, fix, own.op.name());
    }

    /// A shuffle that reads a lane which does not take part.
    pub(crate) fn absent_lane(&mut self, thread: &Thread, source: usize, op: &'static str) {
        let message =
            format!("{op} reads lane {source}, which does not take part: the value is undefined");
        let fix = "name the lane in the mask and let it come, or do not read from it";
        self.at_collective(thread, What::AbsentLane, message, fix, op);
    }

    /// One finding for each place.
    fn at_collective(
        &mut self,
        thread: &Thread,
        kind: What,
        message: String,
        fix: &str,
        op: &'static str,
    ) {
        let launch = self.launch();
        let place = launch.places.number(thread.pc);
        if launch.races.contains_key(&(place, PLACE_UNKNOWN)) {
            return;
        }
        let me = thread.who.at(Kind::Read, 0, place);
        let mut finding = Finding::new(kind, message).fix(fix);
        finding.accesses.push(launch.by(op.to_owned(), me));
        let index = launch.keep(finding).unwrap_or(usize::MAX);
        launch.races.insert((place, PLACE_UNKNOWN), index);
    }
}

fn verb(kind: Kind) -> &'static str {
    match kind {
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::StrongRead => "volatile or acquire read",
        Kind::StrongWrite => "atomic or volatile write",
        Kind::AsyncWrite => "asynchronous copy to here",
        Kind::AsyncRead => "asynchronous copy from here",
    }
}

fn describe(kind: Kind, bytes: usize) -> String {
    format!("{} of {bytes} bytes", verb(kind))
}

/// What would order the two.
fn remedy(other: Cell, me: Cell, space: Space) -> String {
    let strong = other.kind().strong() || me.kind().strong();
    let same_warp = other.thread() as usize / LANES == me.thread() as usize / LANES;
    if other.kind().in_flight() {
        return "async_wait for the copy, then a barrier, before the memory is used".into();
    }
    match (other.same_block(me), strong) {
        (true, true) => "make both accesses atomic, or put a barrier between them".into(),
        (true, false) if same_warp => {
            "lanes of a warp do not run in step: __syncwarp() between the two, or __syncthreads()"
                .into()
        }
        (true, false) => "__syncthreads() between the two".into(),
        (false, true) => {
            "make both accesses atomic, or publish by __threadfence() before the flag \
                          is set and __threadfence() after it is seen"
                .into()
        }
        (false, false) if space == Space::Global => {
            "blocks run in any order: let one block own it, use an atomic, publish it by \
             __threadfence() and a flag with __threadfence() after the flag is seen, or split the \
             kernel in two"
                .into()
        }
        (false, false) => String::new(),
    }
}

//! What is known of a launch, and what memory and places are called in its findings.

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::Formal;
use super::findings::{Needs, OF_BLOCK, OF_WARP};
use super::messages::Messages;
use crate::access::Space;
use crate::clock::Published;
use crate::completion::record::Record;
use crate::counters::{Counters, Profile};
use crate::geometry::Geometry;
use crate::grids::{self, Earlier, Grid, Waiting};
use crate::memory::{self, Arena, Whose};
use crate::module::{Kernel, Module};
use crate::report::{Access, Finding, Findings};
use crate::shadow::{Cell, Granule, PLACE_UNKNOWN, Places, Uses};
use crate::shared::SharedShadow;
use crate::trace::Tracer;

/// Findings that are kept; of more, the number.
const KEPT: usize = 20;

/// Where each of a function's variables begins, from the end of its frame on, and its bytes.
type Locals = Arc<[(i64, usize)]>;

/// What is known of one launch.
pub(crate) struct LaunchCheck {
    pub(super) kernel: Kernel,
    pub(super) geometry: Geometry,
    pub(super) generation: u32,
    /// All of its generations.
    generations: Vec<u32>,
    /// It may begin before those before it have ended.
    pub(super) overlaps: bool,
    /// Whether several threads may have the same element: the module says so.
    pub(super) has_twins: bool,
    /// Those.
    pub(super) earlier: Earlier,
    pub(super) waiting: Waiting,
    /// Uses that an earlier grid's conflict with: by place, and that grid's launch.
    pub(super) unordered: HashMap<(u16, u64), usize>,
    /// Blocks that have begun; and of those that did while another one waited, behind how many.
    begun: u64,
    begun_late: Option<HashMap<u32, u64>>,
    /// Places that wait for a block which had not begun.
    pub(super) later: HashSet<u16>,
    /// Grid-wide syncs so far.
    pub(super) meeting: u64,
    pub(super) arena: &'static Arena,
    pub(super) foreign: Vec<memory::Foreign>,
    pub(super) last: Option<memory::Allocation>,
    pub(super) places: Places,
    pub(super) counters: Option<Box<Counters>>,
    /// Who is told what happens.
    pub(super) tracer: Option<&'static Tracer>,
    pub(super) module_data: (usize, usize),
    pub(super) module_shadow: Vec<Granule>,
    pub(super) published: HashMap<usize, Published>,
    /// Volatile accesses that hand on more than a flag.
    pub(super) messages: Messages,
    /// By address.
    pub(super) mbarriers: HashMap<usize, Record>,
    /// How many were made.
    pub(super) mbarriers_made: u32,
    /// By place, who last issued a copy there that has landed: block and thread.
    pub(super) issuers: HashMap<u16, (u32, u32)>,
    /// Places of wgmma.
    pub(super) products: HashSet<u16>,
    /// Pointers among the arguments, with their parameter's number.
    pub(super) pointers: Vec<(usize, usize)>,
    pub(super) findings: Vec<Finding>,
    pub(super) more: u64,
    pub(super) races: HashMap<(u16, u16), usize>,
    /// What would order the pairs of a race.
    pub(super) needs: HashMap<usize, Needs>,
    /// Plain writes that asynchronous accesses may not see, by the places of both.
    pub(super) unfenced: HashMap<(u16, u16), usize>,
    /// Barriers of a block that were come to: where they return to.
    pub(super) barriers: Vec<usize>,
    /// By an instruction: what was left of its first address in local memory, divided by its size.
    pub(super) of_locals: HashMap<usize, usize>,
    /// Where the function of an instruction has its variables, by what its call returns to: see [`Module::locals`].
    pub(super) frames: HashMap<usize, Option<Locals>>,
    /// Places of barriers, and of accesses of threads that have ended without, that were looked at.
    pub(super) passed: HashSet<(u16, u16)>,
    /// Reads by `__ldg` and writes of one place, by the places of both.
    pub(super) constants: HashMap<(u16, u16), usize>,
    /// A compiler has chosen what is read as constant: a thread's own write behind its read is none of the kernel's mistakes.
    pub(super) compiled_constants: bool,
    /// Wide accesses of arrays that are declared for narrow ones, by place.
    pub(super) lucky: HashMap<u16, usize>,
    /// How often a race was formal, why, and of a guess and of a loop that waits the places that read.
    pub(super) formal: HashMap<usize, (u64, Formal, HashSet<u16>)>,
    /// Places of volatile reads in loops that wait.
    pub(super) polls: HashSet<u16>,
    /// Places of plain reads whose value a compare-and-swap has tested.
    pub(super) guesses: HashSet<u16>,
    /// Places of accesses to blocks that may exit before.
    pub(super) unheard: HashSet<u16>,
    /// Reads of unwritten bytes, by place.
    pub(super) uninitialised: HashMap<u16, Finding>,
    /// Places of reads that are part of a race.
    pub(super) raced: HashSet<u16>,
    /// Places that stored a local variable which never got a value.
    pub(super) locals: HashSet<u16>,
    /// Stores of what has perhaps grown from such a variable, by place.
    pub(super) grown: HashMap<u16, Finding>,
    /// Places that stored anything else as well; empty where the compiler suspects no variable.
    pub(super) stored_others: Vec<bool>,
}

/// A block's way to what is known of its launch. A reference lasts as long as a borrow of the handle.
pub(super) struct LaunchHandle(NonNull<LaunchCheck>);

impl LaunchHandle {
    /// # Safety
    /// `launch` is not null and outlives this. Nobody else uses it while a reference that this gives
    /// is alive: blocks of one launch have a handle each, and one of them at a time runs.
    pub(super) unsafe fn new(launch: *mut LaunchCheck) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { NonNull::new_unchecked(launch) })
    }
}

impl Deref for LaunchHandle {
    type Target = LaunchCheck;
    #[inline(always)]
    fn deref(&self) -> &LaunchCheck {
        // SAFETY: it outlives this, and nobody else uses it while the reference is alive: that is the contract of `new`.
        unsafe { self.0.as_ref() }
    }
}

impl DerefMut for LaunchHandle {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut LaunchCheck {
        // SAFETY: it outlives this, and nobody else uses it while the reference is alive: that is the contract of `new`.
        unsafe { self.0.as_mut() }
    }
}

impl LaunchCheck {
    /// `earlier`: the grids that may run when it begins; none, unless it overlaps.
    pub(crate) fn new(
        kernel: &Kernel,
        geometry: Geometry,
        pointers: Vec<(usize, usize)>,
        (count, tracer): (bool, Option<&'static Tracer>),
        earlier: Earlier,
        overlaps: bool,
    ) -> std::io::Result<Self> {
        let arena = memory::get().ok_or(std::io::ErrorKind::OutOfMemory)?;
        let foreign = memory::foreign();
        let own = |address| {
            let found = memory::Foreign::find(&foreign, address);
            found.map_or(address, |f| address.wrapping_add(f.away()))
        };
        let pointers = pointers.into_iter().map(|(index, at)| (index, own(at))).collect();
        let module = kernel.module();
        let generation = memory::next_generation();
        Ok(Self {
            kernel: kernel.clone(),
            geometry,
            generation,
            generations: vec![generation],
            overlaps,
            has_twins: module.symbol("emu_has_twins").is_some(),
            earlier,
            waiting: Waiting::default(),
            unordered: HashMap::default(),
            begun: 0,
            begun_late: None,
            later: HashSet::default(),
            meeting: 0,
            arena,
            foreign,
            last: None,
            places: Places::new(module.text()),
            counters: count.then(Box::default),
            tracer: tracer.filter(|_| count),
            module_data: module.data(),
            module_shadow: Vec::new(),
            published: HashMap::default(),
            messages: Messages::default(),
            mbarriers: HashMap::default(),
            mbarriers_made: 0,
            issuers: HashMap::default(),
            products: HashSet::default(),
            pointers,
            findings: Vec::new(),
            more: 0,
            races: HashMap::default(),
            needs: HashMap::default(),
            unfenced: HashMap::default(),
            barriers: Vec::new(),
            of_locals: HashMap::default(),
            frames: HashMap::default(),
            passed: HashSet::default(),
            constants: HashMap::default(),
            compiled_constants: false,
            lucky: HashMap::default(),
            formal: HashMap::default(),
            guesses: HashSet::default(),
            polls: HashSet::default(),
            unheard: HashSet::default(),
            uninitialised: HashMap::default(),
            raced: HashSet::default(),
            locals: HashSet::default(),
            grown: HashMap::default(),
            stored_others: if module.has_suspects() {
                vec![false; 1 + usize::from(PLACE_UNKNOWN)]
            } else {
                Vec::new()
            },
        })
    }

    pub(super) fn module(&self) -> &Module {
        self.kernel.module()
    }

    /// A block begins.
    pub(super) fn begin(&mut self, block: u32) {
        self.begun += 1;
        if let Some(late) = &mut self.begun_late {
            late.insert(block, self.begun);
        }
    }

    /// A block waits, and lets others have a turn. How many have begun.
    pub(super) fn let_others(&mut self) -> u64 {
        self.begun_late.get_or_insert_default();
        self.begun
    }

    /// How many had begun when a block did that began while another one waited; 0 of others.
    pub(super) fn began_behind(&self, block: u32) -> u64 {
        self.begun_late.as_ref().and_then(|late| late.get(&block)).copied().unwrap_or(0)
    }

    pub(super) fn keep(&mut self, finding: Finding) -> Option<usize> {
        if self.findings.len() >= KEPT {
            self.more += 1;
            return None;
        }
        self.findings.push(finding);
        Some(self.findings.len() - 1)
    }

    /// Notes that a race was seen once more, between these two, and whether it is formal.
    pub(super) fn note_formal(&mut self, race: usize, formal: Option<Formal>, [a, b]: [Cell; 2]) {
        let Some(formal) = formal else { return };
        let reader = if a.kind().writes() { b } else { a };
        let read = match formal {
            Formal::Poll(read) => read,
            _ => reader.place(),
        };
        let known = self.formal.entry(race).or_insert((0, formal, HashSet::default()));
        // Two reasons for one finding are none.
        known.0 += u64::from(std::mem::discriminant(&known.1) == std::mem::discriminant(&formal));
        known.2.insert(read);
    }

    /// A formal race is none: the same value was written.
    pub(super) fn forget_formal(&mut self, race: usize) {
        if let Some(known) = self.formal.get_mut(&race) {
            known.0 = known.0.saturating_sub(1);
        }
    }

    /// All blocks have met for the `meeting`-th time (each block tells): what was before is ordered
    /// before what comes.
    pub(super) fn grid_synced(&mut self, meeting: u64) {
        if self.meeting != meeting {
            self.meeting = meeting;
            self.forget();
        }
    }

    /// What is remembered of global memory counts no more.
    pub(super) fn forget(&mut self) {
        self.messages.forget();
        self.generation = memory::next_generation();
        self.generations.push(self.generation);
    }

    /// What a granule of device memory, which this generation has not seen, says of this launch; what it says
    /// of those before is kept.
    pub(super) fn uses_before(&mut self, granule: &Granule) -> Uses {
        let generation = granule.generation();
        // Most were touched by no launch, or by one long ago.
        if generation >= self.generations[0] && self.generations.binary_search(&generation).is_ok()
        {
            return granule.uses();
        }
        if self.overlaps {
            self.earlier.keep(granule);
        }
        Uses::default()
    }

    /// What is left of the launch when it is over.
    pub(crate) fn grid(&self) -> Grid {
        Grid {
            kernel: self.kernel.clone(),
            geometry: self.geometry,
            generations: self.generations.clone(),
            places: self.places.addresses().to_vec(),
            issuers: self.issuers.clone(),
            pointers: self.pointers.clone(),
            number: 0,
            outlasts_wait: false,
        }
    }

    /// What may not have ended when the next launch begins.
    pub(crate) fn into_earlier(self) -> Earlier {
        let last = self.grid();
        self.earlier.then(last, self.waiting)
    }

    /// What was counted.
    pub(crate) fn profile(&mut self) -> Profile {
        match self.counters.take() {
            Some(counters) => counters.profile(|number| self.place(number)),
            None => Profile::default(),
        }
    }

    /// Where a line needs a barrier of the block for one finding, another of that line asks for no less.
    fn ask_for_one_barrier(&mut self) {
        let line = |access: &Access| match access.place.rsplit_once(':') {
            Some((line, _column)) => line.to_owned(),
            None => access.place.clone(),
        };
        let of_block = self.findings.iter().filter(|f| f.fix == OF_BLOCK);
        let lines: HashSet<String> = of_block.flat_map(|f| f.accesses.iter().map(line)).collect();
        for finding in self.findings.iter_mut().filter(|f| f.fix == OF_WARP) {
            if finding.accesses.iter().map(line).any(|line| lines.contains(&line)) {
                finding.fix = OF_BLOCK.to_owned();
            }
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
        self.ask_for_one_barrier();
        for (index, others) in self.needs.drain().filter_map(|(i, n)| Some((i, n.others()?))) {
            if let Some(finding) = self.findings.get_mut(index) {
                finding.fix += &others;
            }
        }
        let mut grown: Vec<_> = self.grown.drain().collect();
        grown.sort_by_key(|g| g.0);
        for (place, finding) in grown {
            if !self.stored_others[usize::from(place)] && !self.locals.contains(&place) {
                self.keep(finding);
            }
        }
        // Once seen otherwise, a race is one.
        for (index, (count, formal, reads)) in self.formal.drain() {
            let holds = match formal {
                Formal::Guess => reads.is_subset(&self.guesses),
                Formal::Poll(_) => reads.is_subset(&self.polls),
                Formal::InStep | Formal::Reset | Formal::Twin => true,
            };
            let Some(finding) = self.findings.get_mut(index) else { continue };
            match (finding.count == count && holds, formal) {
                (true, Formal::Poll(_)) => finding.count = 0,
                (true, _) => finding.formal = Some(formal.reason()),
                (false, _) => {}
            }
        }
        // Who waits for the data itself needs no order.
        for index in self.messages.findings_waited_for(&self.polls) {
            if let Some(finding) = self.findings.get_mut(index) {
                finding.count = 0;
            }
        }
        self.findings.retain(|f| f.count > 0);
        self.findings.extend(fatal);
        (!self.findings.is_empty())
            .then(|| Findings { all: std::mem::take(&mut self.findings), more: self.more })
    }

    pub(super) fn place(&self, number: u16) -> String {
        match self.places.address(number) {
            Some(pc) => self.module().place(pc),
            None => "a place that was not kept".into(),
        }
    }

    /// The place in the kernel's own file, where that number is one in a header.
    pub(super) fn own_place(&self, number: u16) -> String {
        match self.places.address(number) {
            Some(pc) => self.module().own_place(pc),
            None => self.place(number),
        }
    }

    /// The place in the kernel, where that number is one in a function that it calls.
    pub(super) fn outer_place(&self, number: u16) -> String {
        let Some(pc) = self.places.address(number) else { return self.place(number) };
        let (place, within) = self.module().place_within(pc);
        within.into_iter().last().unwrap_or(place)
    }

    /// Whether the first of two places lies behind the other in the text of the same kernel.
    pub(super) fn is_behind(&self, pc: usize, other: usize) -> bool {
        // In the kernel itself, of what is inlined into it.
        let place = |pc| {
            let frames = self.module().frames(pc);
            let file = self.module().own_place(pc);
            let file = file.split(':').next().unwrap_or_default().to_owned();
            let outermost = frames.iter().rev().find(|f| f.split(':').next() == Some(&file))?;
            let mut parts = outermost.split(':').skip(1).map(|n| n.parse::<u32>().ok());
            Some((file, (parts.next()??, parts.next()??)))
        };
        match (place(pc), place(other)) {
            (Some((file, at)), Some((same, barrier))) => file == same && at > barrier,
            _ => false,
        }
    }

    /// Remembers an instruction in [`Self::of_locals`]; the remainder that the same one of an unrolled loop had before.
    pub(super) fn remember_local(&mut self, pc: usize, remainder: usize) -> usize {
        let frames = self.module().frames(pc);
        let same = self.of_locals.iter().find(|(other, _)| self.module().frames(**other) == frames);
        let first = same.map_or(remainder, |(_, first)| *first);
        self.of_locals.insert(pc, first);
        first
    }

    /// Whether of these two places of a race, of which the first stands before the other in the text, a barrier stands between:
    /// then it orders them in one turn of a loop, and the first is come to in the next turn.
    pub(super) fn is_of_next_turn(&self, first: u16, last: u16) -> bool {
        let pcs = (self.places.address(first), self.places.address(last));
        let (Some(first), Some(last)) = pcs else { return false };
        let between =
            |&barrier: &usize| self.is_behind(barrier, first) && self.is_behind(last, barrier);
        self.barriers.iter().any(between)
    }

    pub(super) fn by(&self, what: String, cell: Cell) -> Access {
        let issuer = self.issuers.get(&cell.place()).filter(|_| cell.by_agent());
        let pc = self.places.address(cell.place());
        grids::access(&self.kernel, self.geometry, pc, issuer.copied(), what, cell)
    }

    /// `x[17] (f32)`: memory by its name.
    pub(super) fn name(&self, space: Space, address: usize, shared: &SharedShadow) -> String {
        let names = self.module().names();
        match space {
            Space::Static => match names.array_at(address - shared.fixed.0) {
                Some(a) => format!(
                    "{} (shared memory, {})",
                    a.index(address - shared.fixed.0 - a.offset),
                    a.element
                ),
                None => "shared memory between two arrays".into(),
            },
            Space::Dynamic => {
                let offset = address as isize - shared.dynamic.0 as isize;
                format!("byte {offset} of dynamic shared memory")
            }
            Space::Module => {
                let place = self.module().offset(address);
                match names.variable_at(place) {
                    Some(v) => format!("{} (__device__, {})", v.index(place - v.offset), v.element),
                    None => format!("the __device__ variable at {address:#x}"),
                }
            }
            Space::Global => match self.arena.owner_of(address) {
                Whose::Live(a) => self.name_in(a.base, a.len, address),
                _ => format!("address {address:#x}"),
            },
        }
    }

    /// As [`Self::name`]; dynamic shared memory, whose types nobody knows, by elements of `len` bytes as well.
    pub(super) fn name_of(
        &self,
        space: Space,
        address: usize,
        len: usize,
        shared: &SharedShadow,
    ) -> String {
        let name = self.name(space, address, shared);
        let offset = address.wrapping_sub(shared.dynamic.0);
        match space {
            Space::Dynamic if len > 1 && offset.is_multiple_of(len) => {
                format!("{name} (element {} of {len} bytes)", offset / len)
            }
            _ => name,
        }
    }

    /// The parameters that are null.
    pub(super) fn null_parameters(&self) -> Vec<String> {
        let null = self.pointers.iter().filter(|p| p.1 == 0);
        null.map(|p| self.kernel.parameter(p.0)).collect()
    }

    /// Of an address that is in no allocation, and far from the nearest, which begins at `nearest`: how far it is from what other
    /// parameters point to. It may come from any of them.
    pub(super) fn or_of_others(&self, address: usize, nearest: usize) -> String {
        const FAR: usize = 1 << 20;
        let mut others: Vec<(usize, &str, usize, usize)> = Vec::new();
        for &(index, pointer) in &self.pointers {
            let Whose::Live(a) = self.arena.owner_of(pointer) else { continue };
            let (distance, side) = match address.checked_sub(a.base) {
                Some(offset) => (offset.saturating_sub(a.len), "past the end"),
                None => (a.base - address, "before the start"),
            };
            let is_known = a.base == nearest || others.iter().any(|other| other.3 == a.base);
            if !is_known && distance <= FAR.max(a.len) {
                others.push((distance, side, index, a.base));
            }
        }
        others.sort_unstable_by_key(|other| other.0);
        let each = others.iter().take(2).map(|&(distance, side, index, _)| {
            format!(" or {distance} bytes {side} of {}", self.kernel.parameter(index))
        });
        let all: String = each.collect();
        if all.is_empty() {
            all
        } else {
            format!(";{all}: which pointer it comes from is not known")
        }
    }

    /// Global memory by the parameter that points to it.
    pub(super) fn name_in(&self, base: usize, len: usize, address: usize) -> String {
        grids::name_in(&self.kernel, &self.pointers, (base, len), address)
    }
}

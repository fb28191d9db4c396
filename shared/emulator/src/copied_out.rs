//! What the host has copied out of device memory though nobody had written it there.
//!
//! The copy alone is no mistake: a buffer may be larger than what a kernel has put into it. Reading it is one. Host code that
//! was compiled for the checks calls the same hooks as kernels do, so what came of such a copy is watched until the host
//! reads it or writes over it. What others write there (a library that reads a file) calls no hook: so the bytes must still be
//! those that were copied. A variable of a function that has returned is watched no more.
//!
//! A copy of which the host has read nothing at all when it ends, or gives the memory back, is told as well, as formal: how
//! much of it would have been used nobody can say.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::check::describe;
use crate::grids::Grid;
use crate::memory::{self, Allocation, Whose};
use crate::report::{Access, Finding, Kind as What};
use crate::shadow::{Cell, GRANULE};

/// Who is told, with the name of the kernel that should have written.
type Told = fn(&str, Finding);

static TOLD: OnceLock<Told> = OnceLock::new();
/// Whether writes are remembered.
static KEEPS: AtomicBool = AtomicBool::new(false);
static WATCHED: Mutex<Watched> = Mutex::new(Watched {
    marks: BTreeMap::new(),
    copies: BTreeMap::new(),
    made: 0,
    grids: VecDeque::new(),
});
/// All watched copies lie between these; nearly every access of the host's is outside, and looks at nothing more.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// The lowest mark on a stack.
static LOWEST_LOCAL: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Launches whose writes are known.
const GRIDS: usize = 64;
/// Copies that are watched.
const COPIES: usize = 64;
/// Of one copy, so many bytes are watched, and so many pieces of it; of so many pieces the nearest write is looked for.
const BYTES: usize = 16 << 20;
const PIECES: usize = 1 << 16;
const PLACED: usize = 64;
/// A stack is as large.
const STACK: usize = 8 << 20;
/// Granules to both sides, in which a write is looked for.
const NEIGHBOURS: usize = 1 << 14;

/// A write by a known grid, and its address.
type Write = (Arc<Grid>, usize, Cell);

/// Bytes of the host's, by the first one's address.
struct Mark {
    end: usize,
    /// Where they come from.
    from: usize,
    /// What was copied: what differs from it was written since.
    bytes: Vec<u8>,
    /// The number of the copy.
    copy: u64,
    /// The write that is nearest to where they come from.
    near: Option<Write>,
}

/// One copy that has brought such bytes.
struct Copied {
    start: usize,
    end: usize,
    /// The allocation that it is of.
    of: Allocation,
    /// Bytes of it that nobody wrote.
    unwritten: usize,
    /// Whether the host has read any of it.
    is_read: bool,
}

struct Watched {
    marks: BTreeMap<usize, Mark>,
    /// By their numbers.
    copies: BTreeMap<u64, Copied>,
    /// How many there were.
    made: u64,
    /// The latest last.
    grids: VecDeque<Arc<Grid>>,
}

fn watched() -> MutexGuard<'static, Watched> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tell(found: impl IntoIterator<Item = (String, Finding)>) {
    if let Some(told) = TOLD.get() {
        found.into_iter().for_each(|(kernel, finding)| told(&kernel, finding));
    }
}

/// From now on `told` hears of each copy to the host that has brought what nobody wrote, when the host reads that. For a process
/// whose host code was compiled for the checks.
pub fn watch_host(told: fn(&str, Finding)) {
    // Whoever came first is told.
    let _ = TOLD.set(told);
    keep_writes();
}

/// From now on launches are remembered, for [`write_beside`].
pub fn keep_writes() {
    KEEPS.store(true, Relaxed);
}

/// Whether they are.
pub(crate) fn keeps() -> bool {
    KEEPS.load(Relaxed)
}

/// The write of a launch that is remembered which is nearest to an address in device memory: it may have been to write there, too.
pub fn write_beside(address: *const u8) -> Option<Access> {
    let Whose::Live(of) = memory::get()?.owner_of(address as usize) else { return None };
    let near = watched().write_near(address as usize, &of)?;
    Some(access(&near, &of))
}

fn access((grid, address, cell): &Write, of: &Allocation) -> Access {
    let name = grid.name_in(of.base, of.len, *address);
    grid.access(format!("{} beside it, of {name},", describe(cell.kind(), GRANULE)), *cell)
}

/// Remembers what a grid has written, and where.
pub(crate) fn remember(grid: Grid) {
    let mut watched = watched();
    watched.grids.push_back(Arc::new(grid));
    if watched.grids.len() > GRIDS {
        watched.grids.pop_front();
    }
}

/// Tells the checks that the host has copied these bytes to its own memory.
///
/// # Safety
/// So many bytes are there at `to`.
pub unsafe fn host_copied_out(from: *const u8, to: *const u8, bytes: usize) {
    host_overwrote(to, bytes);
    if TOLD.get().is_none() {
        return;
    }
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let (mut unwritten, mut left) = (0, BYTES);
    memory::for_each_unwritten(from, bytes, |at| {
        unwritten += 1;
        if left == 0 {
            return;
        }
        let pieces = runs.len();
        match runs.last_mut() {
            Some((_, end)) if *end == at => *end += 1,
            _ if pieces < PIECES => runs.push((at, at + 1)),
            _ => return,
        }
        left -= 1;
    });
    let Some(arena) = memory::get().filter(|_| !runs.is_empty()) else { return };
    let Whose::Live(of) = arena.owner_of(from as usize) else { return };
    let here = 0u8;
    let is_local = (to as usize).wrapping_sub(&raw const here as usize) < STACK;
    let mut watched = watched();
    watched.made += 1;
    let copy = watched.made;
    let mut near = None;
    for (number, &(first, end)) in runs.iter().enumerate() {
        let (start, from) = (to as usize + first, from as usize + first);
        if number < PLACED {
            near = watched.write_near(from, &of);
        }
        // SAFETY: the caller's promise.
        let own = unsafe { std::slice::from_raw_parts(to.add(first), end - first) };
        let end = to as usize + end;
        watched
            .marks
            .insert(start, Mark { end, from, bytes: own.to_vec(), copy, near: near.clone() });
        if is_local {
            LOWEST_LOCAL.fetch_min(start, Relaxed);
        }
    }
    let (start, end) = (to as usize, to as usize + bytes);
    watched.copies.insert(copy, Copied { start, end, of, unwritten, is_read: false });
    if watched.copies.len() > COPIES
        && let Some((oldest, _)) = watched.copies.pop_first()
    {
        watched.marks.retain(|_, mark| mark.copy != oldest);
    }
    watched.bound();
}

/// Tells the checks that the host has written its own memory by a way that calls no hook.
pub fn host_overwrote(address: *const u8, bytes: usize) {
    let start = address as usize;
    if may_meet(start, bytes) {
        watched().cut(start, start.saturating_add(bytes));
    }
}

/// Tells the checks that the host reads this memory of its own no more: it gives it back, or ends.
pub fn host_gave_back(address: *const u8, bytes: usize) {
    let start = address as usize;
    let end = start.saturating_add(bytes);
    if may_meet(start, bytes) {
        let found = watched().unread(start, end);
        tell(found);
        watched().cut(start, end);
    }
}

#[inline(always)]
fn may_meet(address: usize, bytes: usize) -> bool {
    address < HIGHEST.load(Relaxed) && address.saturating_add(bytes) > LOWEST.load(Relaxed)
}

/// Forgets variables of functions that have returned: they lie below the stack of the function that runs.
#[inline(always)]
fn leave_functions() {
    let lowest = LOWEST_LOCAL.load(Relaxed);
    let here = 0u8;
    let here = &raw const here as usize;
    if lowest < here {
        forget_locals(lowest, here);
    }
}

#[cold]
fn forget_locals(lowest: usize, here: usize) {
    // Those of another thread's stack lie further away.
    if here - lowest < STACK {
        host_gave_back(lowest as *const u8, here - lowest);
        LOWEST_LOCAL.store(usize::MAX, Relaxed);
    }
}

/// The host writes: what was copied there is gone.
#[inline(always)]
pub(crate) fn host_writes(address: usize, bytes: usize) {
    leave_functions();
    host_overwrote(address as *const u8, bytes);
}

/// The host reads, by the instruction that returns to `pc`; `uses`: it is no copy of several words, which uses none of them.
#[inline(always)]
pub(crate) fn host_reads(address: usize, bytes: usize, uses: bool, pc: usize) {
    leave_functions();
    if may_meet(address, bytes) {
        let found = watched().read(address, bytes, uses, pc);
        tell(found);
    }
}

impl Watched {
    /// Sets the bounds anew, and forgets copies without a mark.
    fn bound(&mut self) {
        if self.marks.is_empty() {
            self.copies.clear();
        }
        let ends = self
            .copies
            .values()
            .fold((usize::MAX, 0), |(low, high), copy| (copy.start.min(low), copy.end.max(high)));
        LOWEST.store(ends.0, Relaxed);
        HIGHEST.store(ends.1, Relaxed);
    }

    /// Forgets these bytes.
    fn cut(&mut self, start: usize, end: usize) {
        let mut is_changed = false;
        while let Some((&first, _)) =
            self.marks.range(..end).next_back().filter(|(_, mark)| mark.end > start)
        {
            let Some(mut mark) = self.marks.remove(&first) else { break };
            is_changed = true;
            if mark.end > end {
                let gone = end - first;
                let bytes = mark.bytes.split_off(gone);
                let near = mark.near.clone();
                self.marks.insert(end, Mark { from: mark.from + gone, bytes, near, ..mark });
            }
            if first < start {
                mark.bytes.truncate(start - first);
                self.marks.insert(first, Mark { end: start, ..mark });
            }
        }
        if is_changed {
            self.bound();
        }
    }

    /// What a read of the host's finds: only where nobody has written any of its bytes. A struct has gaps, and is copied whole.
    fn read(
        &mut self,
        address: usize,
        bytes: usize,
        uses: bool,
        pc: usize,
    ) -> Option<(String, Finding)> {
        let met = |c: &&mut Copied| c.start < address + bytes && address < c.end;
        self.copies.values_mut().filter(met).for_each(|copy| copy.is_read = true);
        if !uses {
            return None;
        }
        let (&first, mark) = self.marks.range(..=address).next_back()?;
        if mark.end < address + bytes {
            return None;
        }
        let offset = address - first;
        // SAFETY: the host reads them next.
        let now = unsafe { std::slice::from_raw_parts(address as *const u8, bytes) };
        if now != &mark.bytes[offset..offset + bytes] {
            self.cut(address, address + bytes);
            return None;
        }
        let number = mark.copy;
        let found = self.finding(mark.from + offset, mark, Some(pc));
        // One finding tells of the whole copy.
        self.marks.retain(|_, mark| mark.copy != number);
        self.copies.remove(&number);
        self.bound();
        found
    }

    /// What is left of copies to this memory of which the host has read nothing.
    fn unread(&self, start: usize, end: usize) -> Vec<(String, Finding)> {
        let meets = |c: &Copied| !c.is_read && c.start < end && start < c.end;
        let unread = self.copies.iter().filter(|(_, copy)| meets(copy));
        let found = unread.filter_map(|(number, _)| {
            // Where no kernel has written beside it, there is no line to look at.
            let is_told = |mark: &&Mark| mark.copy == *number && mark.near.is_some();
            let mark = self.marks.values().find(is_told)?;
            let (kernel, mut finding) = self.finding(mark.from, mark, None)?;
            finding.formal =
                Some("in this run no read of what was copied is seen: perhaps nobody uses it");
            Some((kernel, finding))
        });
        found.collect()
    }

    /// What is told of an address of device memory that nobody wrote; nothing where no kernel is known that may have been to
    /// write it. `pc`: who reads it.
    fn finding(&self, from: usize, mark: &Mark, pc: Option<usize>) -> Option<(String, Finding)> {
        let copy = self.copies.get(&mark.copy)?;
        let of_argument =
            || self.grids.iter().rev().find(|grid| grid.points_into(copy.of.base, copy.of.len));
        let grid = mark.near.as_ref().map(|near| &near.0).or_else(of_argument)?;
        let name = |address| grid.name_in(copy.of.base, copy.of.len, address);
        let module = grid.kernel.module();
        let how = match pc {
            Some(pc) if module.holds(pc) => {
                format!("read by the host at {}", module.place_within(pc).0)
            }
            Some(_) => "read by the host".into(),
            None => "copied to the host".into(),
        };
        let others = match copy.unwritten.saturating_sub(GRANULE) {
            0 => String::new(),
            _ => format!(
                "; of the {} bytes that were copied nobody has written {}",
                copy.end - copy.start,
                copy.unwritten
            ),
        };
        let message =
            format!("uninitialised: {} is {how}, and nobody has written it{others}", name(from));
        let mut finding = Finding::new(What::Uninitialised, message).fix(
            "write every element that the host uses: a guard may stop too early, or an index begin too late",
        );
        finding.accesses.extend(mark.near.as_ref().map(|near| access(near, &copy.of)));
        Some((grid.kernel.name().to_owned(), finding))
    }

    /// The nearest granule of an allocation that a known grid has written, and that write.
    fn write_near(&self, address: usize, of: &Allocation) -> Option<Write> {
        let arena = memory::get()?;
        let granule = address / GRANULE * GRANULE;
        let written = |at: usize| {
            if !(of.base..of.base + of.len).contains(&at) {
                return None;
            }
            // SAFETY: it is of an allocation, in the arena; no kernel runs while the host copies what it has written.
            let shadow = unsafe { &*arena.granule(at) };
            let grid = self.grids.iter().rev().find(|grid| grid.has(shadow.generation()))?;
            let cell =
                shadow.cells.iter().find(|cell| cell.bytes() != 0 && cell.kind().writes())?;
            Some((Arc::clone(grid), at, *cell))
        };
        (1..NEIGHBOURS).find_map(|distance| {
            let away = distance * GRANULE;
            granule.checked_sub(away).and_then(written).or_else(|| written(granule + away))
        })
    }
}

//! Device memory: one reserved range of addresses, with a shadow beside it.
//!
//! Allocations lie at least [`RED_ZONE`] apart, and a freed one is not handed out again before
//! [`QUARANTINE_BYTES`] of others were freed after it: an address that a kernel gets wrong mostly
//! belongs to nobody, and the checks can say so. The shadow lies at a fixed place for each address,
//! takes memory only where a checked kernel touched something, and is cleared nowhere: each granule
//! says of which launch it speaks.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::shadow::{GRANULE, Granule, INIT_ALL, bytes_mask};

/// Alignment of an allocation, as of `cudaMalloc`.
const ALIGNMENT: usize = 256;
/// Bytes behind each allocation that belong to nobody.
const RED_ZONE: usize = 1024;
/// Freed bytes that are kept from being handed out again.
const QUARANTINE_BYTES: usize = 1 << 28;
/// Of these, how many may be memory that the system has not got back: that of small allocations.
const RESIDENT_BYTES: usize = 1 << 24;
/// The pages of a freed allocation of so many bytes are worth a call that hands them back to the system.
const GIVEN_UP: usize = 1 << 20;
/// Address space that is asked for, largest first; a system that accounts for every mapping grants
/// less.
const SIZES: [usize; 4] = [1 << 40, 1 << 37, 1 << 34, 1 << 31];

/// What the host last did with a whole allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostState {
    Written,
    Unwritten,
}

/// One allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) state: HostState,
    /// The generation in which `state` became true.
    pub(crate) since: u32,
}

#[derive(Debug, Default)]
struct Book {
    live: BTreeMap<usize, Allocation>,
    /// Where untouched addresses begin.
    next: usize,
    quarantine: VecDeque<(usize, usize)>,
    quarantined: usize,
    /// Of the quarantined bytes, those whose pages the system has not got back.
    resident: usize,
    /// By the room that they take.
    free: BTreeMap<usize, Vec<usize>>,
    foreign: Vec<Foreign>,
}

/// Memory of the process that kernels may use: see [`adopt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    start: usize,
    len: usize,
    /// The allocation whose shadow, state and bounds are its own. Its memory is never touched.
    stand_in: usize,
    /// How often it was adopted.
    users: usize,
}

impl Foreign {
    /// Bytes around it that the checks take for its red zone.
    const MARGIN: usize = RED_ZONE / 2;

    /// Bytes between an address and the region.
    fn distance(&self, address: usize) -> usize {
        let past = (address + 1).saturating_sub(self.start + self.len);
        self.start.saturating_sub(address).max(past)
    }

    /// What is added to an address in it for that of the stand-in.
    pub(crate) fn away(&self) -> usize {
        self.stand_in.wrapping_sub(self.start)
    }

    /// The one of these that an address lies in, or just past.
    pub(crate) fn find(all: &[Self], address: usize) -> Option<&Self> {
        let nearest = all.iter().min_by_key(|f| f.distance(address));
        nearest.filter(|f| f.distance(address) < Self::MARGIN)
    }
}

/// Memory that cannot be adopted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotAdopted {
    /// A part of it is adopted already.
    #[error("memory that overlaps {len} bytes at {start:#x}, which are in use already")]
    Overlap {
        /// Where that part begins.
        start: usize,
        /// Its length.
        len: usize,
    },
    /// It is an allocation of the emulator's own.
    #[error("memory of the emulator's own")]
    Own,
    /// There is no room for what the checks remember of it.
    #[error("no address space for its shadow: {0}")]
    Memory(#[from] io::Error),
}

impl Book {
    /// The address itself, or that of what stands in for it.
    fn own(&self, address: usize) -> usize {
        let foreign = self.foreign.iter().find(|f| f.start == address);
        foreign.map_or(address, |f| f.stand_in)
    }
}

/// The memory of the emulated device.
#[derive(Debug)]
pub(crate) struct Arena {
    base: usize,
    size: usize,
    shadow: usize,
    /// What holds its bytes, where another process has them too.
    file: Option<OwnedFd>,
    book: Mutex<Book>,
}

/// Where device memory lies, and the file that another process maps to have it at the same addresses: see [`share`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The first address.
    pub base: usize,
    /// Bytes.
    pub size: usize,
    /// The file, from its beginning on. It is open as long as this process is.
    pub file: RawFd,
}

/// Set before the arena is made.
static IS_SHARED: AtomicBool = AtomicBool::new(false);
/// Where memory of several processes is asked for: far from where the system puts programs, libraries and stacks.
const SHARED_BASE: usize = 0x3000_0000_0000;

/// Launches and host writes, in the order in which they came.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// A generation later than all before.
pub(crate) fn next_generation() -> u32 {
    GENERATION.fetch_add(1, Ordering::Relaxed) + 1
}

/// Where an address lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose {
    Live(Allocation),
    /// In what was the allocation at this address, of this length.
    Freed(usize, usize),
    Nobody,
}

fn reserve(bytes: usize, base: usize) -> io::Result<usize> {
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let base = unsafe { libc::mmap(base as *mut _, bytes, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: advice about that mapping, which a core dump would otherwise walk through.
    unsafe { libc::madvise(base, bytes, libc::MADV_DONTDUMP) };
    Ok(base as usize)
}

fn arena() -> io::Result<&'static Arena> {
    static ARENA: OnceLock<Result<Arena, i32>> = OnceLock::new();
    let made = ARENA.get_or_init(|| {
        let mut last = 0;
        let is_shared = IS_SHARED.load(Ordering::SeqCst);
        let at = if is_shared { SHARED_BASE } else { 0 };
        for size in SIZES {
            let made = reserve(size * (1 + Granule::BYTES / GRANULE), at).and_then(|base| {
                Ok((base, if is_shared { Some(put_file(base, size)?) } else { None }))
            });
            match made {
                Ok((base, file)) => {
                    let book = Mutex::new(Book { next: base + ALIGNMENT, ..Book::default() });
                    return Ok(Arena { base, size, shadow: base + size, file, book });
                }
                Err(error) => last = error.raw_os_error().unwrap_or(libc::ENOMEM),
            }
        }
        Err(last)
    });
    made.as_ref().map_err(|&code| io::Error::from_raw_os_error(code))
}

/// Puts a file in the place of reserved memory.
fn put_file(base: usize, size: usize) -> io::Result<OwnedFd> {
    // SAFETY: a file that nobody else has; the mapping replaces a part of one that was just made and that nobody uses.
    unsafe {
        let file = libc::memfd_create(c"device memory".as_ptr(), libc::MFD_CLOEXEC);
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        let file = OwnedFd::from_raw_fd(file);
        if libc::ftruncate(file.as_raw_fd(), size as libc::off_t) != 0 {
            return Err(io::Error::last_os_error());
        }
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
        );
        let mapped = libc::mmap(base as *mut _, size, protection, flags, file.as_raw_fd(), 0);
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::madvise(mapped, size, libc::MADV_DONTDUMP);
        Ok(file)
    }
}

/// Keeps device memory where a process that this one starts can have it at the same addresses. To be asked before anything is
/// allocated.
///
/// # Errors
/// Something was allocated before, or the system refuses.
pub fn share() -> io::Result<Shared> {
    IS_SHARED.store(true, Ordering::SeqCst);
    let arena = arena()?;
    let file =
        arena.file.as_ref().ok_or_else(|| io::Error::other("device memory is in use already"))?;
    Ok(Shared { base: arena.base, size: arena.size, file: file.as_raw_fd() })
}

/// Gives whole pages of device memory back to the system: they read as zeros when they are touched again. Whether they
/// do.
///
/// # Safety
/// The pages lie in one allocation, whose bytes nobody needs.
pub unsafe fn forget_pages(address: *mut u8, bytes: usize) -> bool {
    let is_shared = arena().is_ok_and(|arena| arena.file.is_some());
    let advice = if is_shared { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
    // SAFETY: whole pages of one allocation, whose bytes nobody needs, as this function's caller says.
    unsafe { libc::madvise(address.cast(), bytes, advice) == 0 }
}

/// The arena, if anything was ever allocated.
pub(crate) fn get() -> Option<&'static Arena> {
    arena().ok()
}

/// Room that an allocation takes, red zone included: one of few sizes, at most an eighth more than it needs, so that what was
/// freed is taken again by others of about its size.
fn room(bytes: usize) -> usize {
    let least = bytes + RED_ZONE;
    least.next_multiple_of(((least / 2 + 1).next_power_of_two() / 8).max(ALIGNMENT))
}

/// Bytes of device memory, at a multiple of 256, unwritten.
///
/// # Errors
/// The address space, or what the system grants of it, is used up.
pub fn allocate(bytes: usize) -> io::Result<*mut u8> {
    let arena = arena()?;
    let mut book = arena.book();
    let room = room(bytes);
    let reused = book.free.get_mut(&room).and_then(Vec::pop);
    let base = match reused {
        Some(base) => base,
        None if room <= arena.base + arena.size - book.next => {
            book.next += room;
            book.next - room
        }
        None => return Err(io::Error::from_raw_os_error(libc::ENOMEM)),
    };
    let since = next_generation();
    book.live.insert(base, Allocation { base, len: bytes, state: HostState::Unwritten, since });
    Ok(base as *mut u8)
}

/// Lets kernels use memory of the process that somebody else owns. The checks then know its bounds;
/// it counts as written. The same memory may be adopted more than once.
///
/// # Errors
/// [`NotAdopted`].
///
/// # Safety
/// The bytes are there until [`disown`], and while a kernel runs nobody else touches them.
pub unsafe fn adopt(address: *mut u8, bytes: usize) -> Result<(), NotAdopted> {
    let arena = arena()?;
    let start = address as usize;
    if start.wrapping_sub(arena.base) < arena.size {
        return Err(NotAdopted::Own);
    }
    let mut book = arena.book();
    if let Some(same) = book.foreign.iter_mut().find(|f| (f.start, f.len) == (start, bytes)) {
        same.users += 1;
        return Ok(());
    }
    let meets = |f: &&Foreign| f.start < start + bytes && start < f.start + f.len;
    if let Some(&Foreign { start, len, .. }) = book.foreign.iter().find(meets) {
        return Err(NotAdopted::Overlap { start, len });
    }
    drop(book);
    let stand_in = allocate(bytes)? as usize;
    host_wrote(stand_in as *const u8, true);
    arena.book().foreign.push(Foreign { start, len: bytes, stand_in, users: 1 });
    Ok(())
}

/// Ends what [`adopt`] began, once for each time.
pub fn disown(address: *const u8) {
    let Ok(arena) = arena() else { return };
    let mut book = arena.book();
    let Some(at) = book.foreign.iter().position(|f| f.start == address as usize) else { return };
    book.foreign[at].users -= 1;
    if book.foreign[at].users == 0 {
        let Foreign { stand_in, .. } = book.foreign.swap_remove(at);
        drop(book);
        // SAFETY: allocated by `adopt`, freed once.
        unsafe { free(stand_in as *mut u8) };
    }
}

/// What is adopted now.
pub(crate) fn foreign() -> Vec<Foreign> {
    arena().map(|arena| arena.book().foreign.clone()).unwrap_or_default()
}

/// Gives an allocation back.
///
/// # Safety
/// The address came from [`allocate`] and was not freed since; nobody uses it any more (a checked
/// kernel that does is told so).
pub unsafe fn free(address: *mut u8) {
    let Ok(arena) = arena() else { return };
    let mut book = arena.book();
    let Some(allocation) = book.live.remove(&(address as usize)) else { return };
    arena.give_up(address as usize, allocation.len);
    let resident = |len: usize| if len < GIVEN_UP { room(len) } else { 0 };
    book.quarantine.push_back((allocation.base, allocation.len));
    book.quarantined += room(allocation.len);
    book.resident += resident(allocation.len);
    while book.quarantined > QUARANTINE_BYTES || book.resident > RESIDENT_BYTES {
        let Some((base, len)) = book.quarantine.pop_front() else { break };
        let room = room(len);
        book.quarantined -= room;
        book.resident -= resident(len);
        book.free.entry(room).or_default().push(base);
    }
}

/// Tells the checks that the host has written all of an allocation, or (`written` false) that what
/// it holds counts as unwritten.
pub fn host_wrote(address: *const u8, written: bool) {
    let Ok(arena) = arena() else { return };
    let mut book = arena.book();
    let address = book.own(address as usize);
    if let Some(allocation) = book.live.get_mut(&address) {
        allocation.state = if written { HostState::Written } else { HostState::Unwritten };
        allocation.since = next_generation();
    }
}

/// Tells the checks that the host has copied one allocation to another: what was unwritten stays
/// so, byte for byte.
pub fn host_copied(from: *const u8, to: *const u8) {
    let Ok(arena) = arena() else { return };
    let mut book = arena.book();
    let (from, to) = (book.own(from as usize), book.own(to as usize));
    let Some(&source) = book.live.get(&from) else { return };
    let Some(target) = book.live.get_mut(&to) else { return };
    target.since = next_generation();
    let (target, generation) = (*target, next_generation());
    for offset in (0..target.len.min(source.len)).step_by(GRANULE) {
        // SAFETY: both lie in the arena, each in its allocation; no kernel runs on buffers that the host copies, which `launch`
        // asks for.
        unsafe {
            let init = (*arena.granule(source.base + offset)).initialised(&source);
            (*arena.granule(target.base + offset)).set_initialised(init, generation);
        }
    }
}

/// Tells the checks that the host has written these bytes, which may be a part of an allocation: what lies behind its end is
/// not looked at.
pub fn host_wrote_bytes(address: *const u8, bytes: usize) {
    let Ok(arena) = arena() else { return };
    let start = arena.book().own(address as usize);
    let Whose::Live(allocation) = arena.owner_of(start) else { return };
    if bytes >= allocation.len && start == allocation.base {
        return host_wrote(address, true);
    }
    let end = start.saturating_add(bytes).min(allocation.base + allocation.len);
    let generation = next_generation();
    for granule in (start / GRANULE * GRANULE..end).step_by(GRANULE) {
        let written = bytes_in(granule, start, end);
        // SAFETY: it is of an allocation, in the arena; no kernel runs on what the host writes, which `launch` asks for.
        let shadow = unsafe { &mut *arena.granule(granule) };
        shadow.set_initialised(shadow.initialised(&allocation) | written, generation);
    }
}

/// Tells the checks that these bytes, which may be a part of an allocation, hold nothing any more, as if nobody had written them.
pub fn host_took_bytes(address: *const u8, bytes: usize) {
    let Ok(arena) = arena() else { return };
    let start = arena.book().own(address as usize);
    let Whose::Live(allocation) = arena.owner_of(start) else { return };
    let end = start.saturating_add(bytes).min(allocation.base + allocation.len);
    let generation = next_generation();
    for granule in (start / GRANULE * GRANULE..end).step_by(GRANULE) {
        let taken = bytes_in(granule, start, end);
        // SAFETY: it is of an allocation, in the arena; no kernel runs on what the host takes, which `launch` asks for.
        let shadow = unsafe { &mut *arena.granule(granule) };
        shadow.set_initialised(shadow.initialised(&allocation) & !taken, generation);
    }
}

/// Tells the checks that the host has copied these bytes of device memory: what was unwritten stays so.
pub fn host_copied_bytes(from: *const u8, to: *const u8, bytes: usize) {
    host_wrote_bytes(to, bytes);
    let Ok(arena) = arena() else { return };
    let [from, to] = [from, to].map(|a| arena.book().own(a as usize));
    let (Whose::Live(source), Whose::Live(target)) = (arena.owner_of(from), arena.owner_of(to))
    else {
        return;
    };
    let generation = next_generation();
    let is_written = |at: usize| {
        // SAFETY: it is of an allocation, in the arena; no kernel runs on what the host copies, which `launch` asks for.
        let init = unsafe { (*arena.granule(at)).initialised(&source) };
        init >> (at % GRANULE) & 1 == 1
    };
    // Neither allocation may end before so many bytes.
    let bytes = bytes.min(source.base + source.len - from).min(target.base + target.len - to);
    let end = to + bytes;
    for granule in (to / GRANULE * GRANULE..end).step_by(GRANULE) {
        let unwritten = (granule.max(to)..(granule + GRANULE).min(end))
            .filter(|at| !is_written(from + (at - to)))
            .fold(0, |mask, at| mask | 1 << (at - granule));
        if unwritten != 0 {
            // SAFETY: it is of the other allocation; no kernel runs on that either.
            let shadow = unsafe { &mut *arena.granule(granule) };
            shadow.set_initialised(shadow.initialised(&target) & !unwritten, generation);
        }
    }
}

/// The bytes of a granule that lie from `start` to `end`, a bit each.
fn bytes_in(granule: usize, start: usize, end: usize) -> u8 {
    let first = granule.max(start) - granule;
    bytes_mask(first, (granule + GRANULE).min(end) - granule - first)
}

/// Of so many bytes from an address on, those that neither the host nor a checked kernel has written: where the
/// first is, counted from that address, and how many. `None` where there are none, or no allocation is there.
pub fn never_written(address: *const u8, bytes: usize) -> Option<(usize, usize)> {
    let (mut first, mut count) = (None, 0);
    for_each_unwritten(address, bytes, |at| {
        first.get_or_insert(at);
        count += 1;
    });
    first.map(|first| (first, count))
}

/// Calls `each` with each such byte, counted from that address, in order.
pub(crate) fn for_each_unwritten(address: *const u8, bytes: usize, mut each: impl FnMut(usize)) {
    let Ok(arena) = arena() else { return };
    let start = arena.book().own(address as usize);
    let Whose::Live(allocation) = arena.owner_of(start) else { return };
    let end = start.saturating_add(bytes).min(allocation.base + allocation.len);
    for granule in (start / GRANULE * GRANULE..end).step_by(GRANULE) {
        // SAFETY: it lies in the arena; no kernel runs on what the host looks at.
        let init = unsafe { (*arena.granule(granule)).initialised(&allocation) };
        if init == INIT_ALL {
            continue;
        }
        for at in granule.max(start)..(granule + GRANULE).min(end) {
            if init >> (at - granule) & 1 == 0 {
                each(at - start);
            }
        }
    }
}

impl Arena {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it begins, and its bytes.
    pub(crate) fn base_and_size(&self) -> (usize, usize) {
        (self.base, self.size)
    }

    /// The shadow of the granule that holds `address`, which must lie in the arena.
    #[inline(always)]
    pub(crate) fn granule(&self, address: usize) -> *mut Granule {
        let index = (address - self.base) / GRANULE;
        (self.shadow + index * Granule::BYTES) as *mut Granule
    }

    pub(crate) fn owner_of(&self, address: usize) -> Whose {
        let book = self.book();
        if let Some((_, &a)) = book.live.range(..=address).next_back()
            && address < a.base + a.len
        {
            return Whose::Live(a);
        }
        let freed = book.quarantine.iter().rev().find(|(b, l)| (*b..b + l).contains(&address));
        freed.map_or(Whose::Nobody, |&(base, len)| Whose::Freed(base, len))
    }

    /// The live allocation that ends or begins nearest to `address`.
    pub(crate) fn nearest(&self, address: usize) -> Option<Allocation> {
        let book = self.book();
        let below = book.live.range(..=address).next_back().map(|(_, a)| *a);
        let above = book.live.range(address..).next().map(|(_, a)| *a);
        let gap = |a: &Allocation| {
            if address < a.base { a.base - address } else { address.saturating_sub(a.base + a.len) }
        };
        [below, above].into_iter().flatten().min_by_key(gap)
    }

    /// Hands the pages of a large allocation, and of its shadow, back to the system.
    fn give_up(&self, base: usize, len: usize) {
        const PAGE: usize = 4096;
        let scale = Granule::BYTES / GRANULE;
        let shadow = self.granule(base) as usize;
        // What a file holds goes with a part of the file alone.
        let advice = if self.file.is_some() { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
        for (start, len, advice) in
            [(base, len, advice), (shadow, len * scale, libc::MADV_DONTNEED)]
        {
            let (first, end) = (start.next_multiple_of(PAGE), (start + len) / PAGE * PAGE);
            if end > first && end - first >= GIVEN_UP - 2 * PAGE {
                // SAFETY: whole pages of the arena that no live allocation has a part in. They
                // read as zero afterwards: a granule of generation 0 knows nothing.
                unsafe { libc::madvise(first as *mut _, end - first, advice) };
            }
        }
    }
}

impl Granule {
    /// Which of its bytes were written, given its allocation.
    pub(crate) fn initialised(&self, allocation: &Allocation) -> u8 {
        if allocation.since <= self.generation() {
            return self.init();
        }
        match allocation.state {
            HostState::Written => INIT_ALL,
            HostState::Unwritten => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small allocations of all sizes, as calls of a framework make them: the memory that they take stays small.
    #[test]
    fn what_is_freed_is_taken_again() {
        let (mut first, mut last) = (usize::MAX, 0);
        for n in 0..100_000 {
            let address = allocate(n * 37 % 5000).unwrap();
            first = first.min(address as usize);
            last = last.max(address as usize);
            // SAFETY: allocated here, freed once.
            unsafe { free(address) };
        }
        assert!(last - first < 4 * RESIDENT_BYTES, "{} bytes", last - first);
    }

    #[test]
    fn a_room_has_a_red_zone_and_wastes_little() {
        for bytes in (0..1 << 16).chain([1 << 20, (1 << 20) + 1, 1 << 33, (1 << 33) + 7]) {
            let least = bytes + RED_ZONE;
            let room = room(bytes);
            assert!(room >= least && room.is_multiple_of(ALIGNMENT), "{bytes}: {room}");
            assert!(room < least + (least / 8).max(ALIGNMENT), "{bytes}: {room}");
        }
    }
}

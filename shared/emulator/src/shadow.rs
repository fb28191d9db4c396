//! What is remembered of each granule of memory: which bytes exist, which were written, and who
//! came by since.
//!
//! A granule is 4 bytes, and has 32 bytes of shadow: 8 a byte. Each of its three cells is one
//! access, in 64 bits:
//!
//! ```text
//! bytes of the granule   4    an access to half of it leaves the other half alone
//! kind                   3    read, write, strong read, strong write, asynchronous write
//! thread in its block   10
//! block                 20    its low bits; the highest: a copy of an mbarrier's, see `clock`
//! stamp                 13    of the thread's clock: see `clock`
//! place                 14    which instruction: see `Places`
//! ```
//!
//! Beside the cells a granule has four bits for each byte: how the launch has used it, whatever the cells
//! have forgotten since. The next launch may ask (see `grids`).
//!
//! Three cells are enough in most cases. A write that is ordered after all that was before takes
//! their place; of reads by several threads, two or three of different warps stand for all.

use crate::access::Kind;

/// Bytes of a granule.
pub(crate) const GRANULE: usize = 4;
/// All bytes of a granule.
pub(crate) const INIT_ALL: u8 = 0xF;

/// One remembered access; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Cell(u64);

const KIND_SHIFT: u32 = 4;
const THREAD_SHIFT: u32 = 7;
const BLOCK_SHIFT: u32 = 17;
const STAMP_SHIFT: u32 = 37;
const PLACE_SHIFT: u32 = 50;
const BLOCK_BITS: u32 = 20;
/// Added to a block's number: not one of its threads, but the asynchronous copies that one of its
/// mbarriers counts. See `clock`.
pub(crate) const AGENT: u32 = 1 << (BLOCK_BITS - 1);
/// One more than the largest stamp.
pub(crate) const STAMPS: u32 = 1 << 13;
/// One more than the largest number of a place.
pub(crate) const PLACES: u32 = 1 << 14;

impl Cell {
    pub(crate) const NONE: Self = Self(0);

    /// All of an access but the bytes.
    #[inline(always)]
    pub(crate) fn new(kind: Kind, thread: u32, block: u32, stamp: u32, place: u16) -> Self {
        let block = block & (AGENT - 1);
        Self(
            (kind as u64) << KIND_SHIFT
                | u64::from(thread) << THREAD_SHIFT
                | u64::from(block) << BLOCK_SHIFT
                | u64::from(stamp) << STAMP_SHIFT
                | u64::from(place) << PLACE_SHIFT,
        )
    }
    /// The access of this cell's thread and block, otherwise as given, to whole granules.
    #[inline(always)]
    pub(crate) fn at(self, kind: Kind, stamp: u32, place: u16) -> Self {
        Self(
            self.0
                | (kind as u64) << KIND_SHIFT
                | u64::from(stamp) << STAMP_SHIFT
                | u64::from(place) << PLACE_SHIFT,
        )
    }
    /// A thread of a block, for [`Cell::at`].
    pub(crate) fn who(thread: u32, block: u32) -> Self {
        Self::new(Kind::Read, thread, block, 0, 0)
    }
    /// What a copy has done that landed in this phase of a block's mbarrier of this number.
    pub(crate) fn agent(block: u32, barrier: u32, phase: u32, kind: Kind, place: u16) -> Self {
        let mut cell = Self::new(kind, barrier % 1024, block, phase.min(STAMPS - 2), place);
        cell.0 |= u64::from(AGENT) << BLOCK_SHIFT;
        cell
    }
    /// Whether an agent made it.
    pub(crate) fn by_agent(self) -> bool {
        self.block() & AGENT != 0
    }
    #[inline(always)]
    pub(crate) fn of_bytes(self, bytes: u8) -> Self {
        Self(self.0 & !0xF | u64::from(bytes))
    }
    #[inline(always)]
    pub(crate) fn bytes(self) -> u8 {
        (self.0 & 0xF) as u8
    }
    #[inline(always)]
    pub(crate) fn kind(self) -> Kind {
        Kind::ALL[(self.0 >> KIND_SHIFT & 7) as usize]
    }
    #[inline(always)]
    pub(crate) fn thread(self) -> u32 {
        (self.0 >> THREAD_SHIFT & 0x3FF) as u32
    }
    #[inline(always)]
    pub(crate) fn block(self) -> u32 {
        (self.0 >> BLOCK_SHIFT) as u32 & ((1 << BLOCK_BITS) - 1)
    }
    #[inline(always)]
    pub(crate) fn stamp(self) -> u32 {
        (self.0 >> STAMP_SHIFT) as u32 & (STAMPS - 1)
    }
    #[inline(always)]
    pub(crate) fn place(self) -> u16 {
        (self.0 >> PLACE_SHIFT) as u16
    }
    /// Whether thread and block are the same.
    #[inline(always)]
    pub(crate) fn same_thread(self, other: Self) -> bool {
        const MASK: u64 = (1 << STAMP_SHIFT) - (1 << THREAD_SHIFT);
        (self.0 ^ other.0) & MASK == 0
    }
    /// Whether it is an access of the same kind, thread, block and place, whatever its time and bytes.
    pub(crate) fn same_access(self, other: Self) -> bool {
        self.same_thread(other) && (self.kind(), self.place()) == (other.kind(), other.place())
    }
    /// Whether warp and block are the same.
    #[inline(always)]
    pub(crate) fn same_warp(self, other: Self) -> bool {
        const MASK: u64 = (1 << STAMP_SHIFT) - (1 << (THREAD_SHIFT + 5));
        (self.0 ^ other.0) & MASK == 0
    }
    #[inline(always)]
    pub(crate) fn same_block(self, other: Self) -> bool {
        const MASK: u64 = (1 << STAMP_SHIFT) - (1 << BLOCK_SHIFT);
        (self.0 ^ other.0) & MASK == 0
    }
}

/// The shadow of one granule. All zero: nothing is known.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct Granule {
    /// Generation in the upper half; below it 4 bits of written bytes, 4 bits of existing bytes,
    /// whether the granule is used as a whole (see `whole`), two more marks, 20 bits of [`Uses`], and one more mark.
    meta: u64,
    pub(crate) cells: [Cell; 3],
}

const WHOLE: u64 = 1 << 8;
const GUARD: u64 = 1 << 9;
const MBARRIER: u64 = 1 << 10;
const USES_SHIFT: u32 = 11;
const USES: u32 = (1 << 20) - 1;
const CONSTANT_SHIFT: u32 = USES_SHIFT + 16;
const OF_BLOCK: u64 = 1 << 31;

/// How the bytes of a granule were used in one launch: 4 bits for each of [`Uses::CLASSES`], and 4 for
/// those that were taken for constant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses(u32);

impl Uses {
    const CLASSES: [Kind; 4] = [Kind::Read, Kind::Write, Kind::StrongRead, Kind::StrongWrite];

    /// The bytes whose use conflicts with an access of this kind.
    pub(crate) fn conflicting_bytes(self, kind: Kind) -> u8 {
        let classes = Self::CLASSES.iter().enumerate().filter(|(_, c)| c.conflicts(kind));
        classes.fold(0, |bytes, (class, _)| bytes | self.of(class))
    }

    /// The bytes that were written.
    pub(crate) fn written(self) -> u8 {
        self.of(1) | self.of(3)
    }

    fn of(self, class: usize) -> u8 {
        (self.0 >> (4 * class)) as u8 & INIT_ALL
    }
}

impl Granule {
    pub(crate) const BYTES: usize = size_of::<Self>();
    pub(crate) const EMPTY: Self = Self { meta: 0, cells: [Cell::NONE; 3] };

    #[inline(always)]
    pub(crate) fn generation(&self) -> u32 {
        (self.meta >> 32) as u32
    }
    #[inline(always)]
    pub(crate) fn init(&self) -> u8 {
        (self.meta & 0xF) as u8
    }
    #[inline(always)]
    pub(crate) fn exists(&self) -> u8 {
        (self.meta >> 4 & 0xF) as u8
    }
    /// Whether no plain access has a meaning here.
    #[inline(always)]
    pub(crate) fn special(&self) -> bool {
        self.meta & (GUARD | MBARRIER) != 0
    }
    /// Whether it is the compiler's own: see [`crate::names::Array::is_guard`].
    pub(crate) fn guard(&self) -> bool {
        self.meta & GUARD != 0
    }
    /// Says whether it is part of an mbarrier.
    pub(crate) fn mark_mbarrier(&mut self, is: bool) {
        self.meta = if is { self.meta | MBARRIER } else { self.meta & !MBARRIER };
    }
    pub(crate) fn mark_guard(&mut self) {
        self.meta |= GUARD;
    }
    /// Whether all cells are of the whole granule, the first none or a write, the others none or
    /// reads.
    #[inline(always)]
    pub(crate) fn whole(&self) -> bool {
        self.meta & WHOLE != 0
    }
    /// Puts the cells in that order, if they are such.
    #[inline]
    pub(crate) fn sort_roles(&mut self) {
        const WRITE: u8 = 0;
        const READ: u8 = 1;
        let role = |c: Cell| (u8::from(c.bytes() == 0) << 1) | u8::from(!c.kind().writes());
        let mut roles = self.cells.map(role);
        let cells = &mut self.cells;
        if roles[0] > roles[1] || roles[1] > roles[2] {
            // Three are sorted by three exchanges.
            for (a, b) in [(0, 1), (1, 2), (0, 1)] {
                if roles[b] < roles[a] {
                    cells.swap(a, b);
                    roles.swap(a, b);
                }
            }
        }
        if roles[0] == READ {
            // Reads alone: the first is for a write.
            cells.rotate_right(1);
            roles.rotate_right(1);
        }
        let whole = |c: &Cell| c.bytes() == 0 || c.bytes() == INIT_ALL;
        let in_place = roles[0] != READ && roles[1] != WRITE && roles[2] != WRITE;
        if in_place && cells.iter().all(whole) {
            self.meta |= WHOLE;
        } else {
            self.meta &= !WHOLE;
        }
    }
    /// Whether it is of this generation, of no special use, all there and whole; for a read also written, for a write
    /// taken for constant nowhere.
    #[inline(always)]
    pub(crate) fn usual(&self, generation: u32, writes: bool) -> bool {
        const ALL: u64 = INIT_ALL as u64;
        let (looked_at, expected) = if writes { (ALL << CONSTANT_SHIFT, 0) } else { (ALL, ALL) };
        let looked_at = u64::from(u32::MAX) << 32 | GUARD | MBARRIER | WHOLE | ALL << 4 | looked_at;
        let expected = u64::from(generation) << 32 | WHOLE | ALL << 4 | expected;
        self.meta & looked_at == expected
    }
    #[inline(always)]
    pub(crate) fn mark_written(&mut self, bytes: u8) {
        self.meta |= u64::from(bytes);
    }
    /// What an access of this kind leaves behind: a factor for [`Granule::mark`].
    #[inline(always)]
    pub(crate) fn marks(kind: Kind) -> u64 {
        let class = u32::from(kind.writes()) + 2 * u32::from(kind.strong());
        // What a copy under way writes is not there yet.
        let written = kind.writes() && kind != Kind::AsyncWrite;
        1 << (USES_SHIFT + 4 * class) | u64::from(written)
    }
    /// These bytes were accessed so.
    #[inline(always)]
    pub(crate) fn mark(&mut self, bytes: u8, marks: u64) {
        self.meta |= u64::from(bytes) * marks;
    }
    /// How the launch of its generation has used it.
    pub(crate) fn uses(&self) -> Uses {
        Uses((self.meta >> USES_SHIFT) as u32 & USES)
    }
    /// These bytes are taken for constant by this launch.
    pub(crate) fn mark_constant(&mut self, bytes: u8) {
        self.meta |= u64::from(bytes) << CONSTANT_SHIFT;
    }
    /// The bytes that are.
    #[inline(always)]
    pub(crate) fn constant(&self) -> u8 {
        (self.meta >> CONSTANT_SHIFT) as u8 & INIT_ALL
    }
    /// Whether an atomic was for threads of one block alone.
    pub(crate) fn of_block(&self) -> bool {
        self.meta & OF_BLOCK != 0
    }
    pub(crate) fn mark_of_block(&mut self) {
        self.meta |= OF_BLOCK;
    }
    /// Adds what the same launch did in a generation before.
    pub(crate) fn add_uses(&mut self, uses: Uses) {
        self.meta |= u64::from(uses.0) << USES_SHIFT;
    }
    /// Starts over, with nobody's accesses.
    pub(crate) fn renew(&mut self, generation: u32, exists: u8, init: u8) {
        self.meta = u64::from(generation) << 32 | WHOLE | u64::from(exists) << 4 | u64::from(init);
        self.cells = [Cell::NONE; 3];
    }
    /// Between launches: which bytes were written.
    pub(crate) fn set_initialised(&mut self, init: u8, generation: u32) {
        self.renew(generation, 0, init);
    }
}

/// The bytes of a granule from `offset` on that an access of `len` bytes touches.
#[inline(always)]
pub(crate) fn bytes_mask(offset: usize, len: usize) -> u8 {
    let end = (offset + len).min(GRANULE);
    ((1u32 << end) - (1u32 << offset)) as u8
}

/// Numbers for instructions, given when first seen; a cell has no room for addresses.
pub(crate) struct Places {
    start: usize,
    /// By offset from `start`: the number, 0 where none was given yet.
    numbers: Vec<u16>,
    addresses: Vec<usize>,
}

/// Where numbers have run out.
pub(crate) const PLACE_UNKNOWN: u16 = (PLACES - 1) as u16;

impl Places {
    /// For the instructions of this range.
    pub(crate) fn new((start, end): (usize, usize)) -> Self {
        Self { start, numbers: vec![0; end - start + 1], addresses: vec![0] }
    }
    #[inline(always)]
    pub(crate) fn number(&mut self, pc: usize) -> u16 {
        match self.numbers.get(pc.wrapping_sub(self.start)) {
            Some(&n) if n != 0 => n,
            _ => self.give(pc),
        }
    }
    /// The number of an instruction that has one.
    #[inline(always)]
    pub(crate) fn known(&self, pc: usize) -> Option<u16> {
        self.numbers.get(pc.wrapping_sub(self.start)).copied().filter(|&n| n != 0)
    }
    #[cold]
    fn give(&mut self, pc: usize) -> u16 {
        let Some(slot) = self.numbers.get_mut(pc.wrapping_sub(self.start)) else {
            return PLACE_UNKNOWN;
        };
        if self.addresses.len() >= usize::from(PLACE_UNKNOWN) {
            return PLACE_UNKNOWN;
        }
        *slot = self.addresses.len() as u16;
        self.addresses.push(pc);
        *slot
    }
    /// The instructions by their numbers, 0 where there is none.
    pub(crate) fn addresses(&self) -> &[usize] {
        &self.addresses
    }
    /// The instruction of a number.
    pub(crate) fn address(&self, number: u16) -> Option<usize> {
        self.addresses.get(usize::from(number)).copied().filter(|&a| a != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_keeps_each_part() {
        let cell = Cell::new(Kind::StrongWrite, 1023, 0x5BCDE, STAMPS - 1, 0x3FFE).of_bytes(0b0110);
        assert_eq!((cell.bytes(), cell.kind()), (0b0110, Kind::StrongWrite));
        assert_eq!((cell.thread(), cell.block()), (1023, 0x5BCDE));
        assert_eq!((cell.stamp(), cell.place()), (STAMPS - 1, 0x3FFE));
        let other = Cell::new(Kind::StrongWrite, 1023, 0x5BCDE, 7, 1);
        assert!(cell.same_thread(other) && cell.same_block(other));
        assert!(!cell.same_thread(Cell::new(Kind::StrongWrite, 1022, 0x5BCDE, 7, 1)));
        assert_eq!(Granule::BYTES, 8 * GRANULE);
    }

    #[test]
    fn uses_outlive_the_cells() {
        let mut granule = Granule::EMPTY;
        granule.renew(7, INIT_ALL, 0);
        granule.mark(0b0011, Granule::marks(Kind::Write));
        granule.mark(0b0100, Granule::marks(Kind::Read));
        granule.mark(0b1000, Granule::marks(Kind::StrongWrite));
        assert_eq!((granule.generation(), granule.exists(), granule.init()), (7, 0xF, 0b1011));
        let uses = granule.uses();
        granule.renew(8, INIT_ALL, 0);
        assert_eq!(granule.uses(), Uses::default());
        granule.add_uses(uses);
        for (kind, bytes) in [
            (Kind::Read, 0b1011),
            (Kind::Write, 0b1111),
            (Kind::StrongRead, 0b0011),
            (Kind::StrongWrite, 0b0111),
            (Kind::AsyncRead, 0b1011),
        ] {
            assert_eq!(granule.uses().conflicting_bytes(kind), bytes, "{kind:?}");
        }
        assert!(granule.whole() && granule.init() == 0, "nothing else is touched");
        assert_eq!((granule.uses().written(), granule.constant()), (0b1011, 0));
        granule.mark_constant(0b0110);
        let uses = granule.uses();
        granule.renew(9, INIT_ALL, 0);
        assert_eq!(granule.constant(), 0);
        granule.add_uses(uses);
        assert_eq!((granule.uses().written(), granule.constant()), (0b1011, 0b0110));
        assert!(!granule.of_block() && granule.generation() == 9);
    }

    #[test]
    fn masks_of_bytes() {
        assert_eq!(bytes_mask(0, 4), 0xF);
        assert_eq!(bytes_mask(2, 2), 0b1100);
        assert_eq!(bytes_mask(3, 8), 0b1000);
        assert_eq!(bytes_mask(1, 1), 0b0010);
    }
}

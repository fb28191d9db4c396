//! Boxes of tensors: what a tensor map says, and which bytes a copy of a box moves.
//!
//! The layout in shared memory, the bytes that are counted, what happens at a tensor's edges: PTX ISA,
//! "Tensors", and CUDA's driver API, `cuTensorMapEncodeTiled`. What neither says was read off an H200:
//! the NaN that fills is the halfword 0x7FF7 again and again; with a swizzle rows are a span apart,
//! however short they are; the step of the innermost dimension is ignored; a store ends at a multiple
//! of 16 bytes, even if the tensor's row does not.

use crate::abi::TENSOR_MAP;
use crate::counters::sectors_of;

/// The unit in which tensor copies move bytes, and swizzles permute them.
pub(crate) const CHUNK: usize = 16;
/// A halfword of the NaN that fills.
const NAN: [u8; 2] = 0x7FF7u16.to_le_bytes();
/// Most dimensions.
const RANK: usize = 5;

/// How a tensor in device memory and a box of it in shared memory lie: what
/// `cp.async.bulk.tensor` is told. On a GPU its driver writes this down; here this does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Where the tensor begins.
    pub address: u64,
    /// Bytes of an element.
    pub element: u32,
    /// Elements along each dimension, the innermost first.
    pub sizes: Vec<u64>,
    /// Bytes from one to the next along each dimension but the innermost.
    pub strides: Vec<u64>,
    /// The box, as `sizes`.
    pub extents: Vec<u32>,
    /// Along each dimension, how far apart the elements are that are copied; the innermost's is ignored.
    pub steps: Vec<u32>,
    /// Bytes of the swizzle's span: 32, 64, 128, or 0 for none.
    pub span: u32,
    /// What lies outside of the tensor is NaN, not zero.
    pub fills_nan: bool,
}

impl TensorMap {
    /// As a kernel takes it. The lengths of all lists are taken from `sizes`, which has 1 to 5.
    pub fn encode(&self) -> [u64; 16] {
        let mut words = [0; 16];
        let rank = self.sizes.len();
        words[0] = TENSOR_MAP;
        words[1] = self.address;
        let flags = u64::from(self.fills_nan) << 32 | u64::from(self.span) << 16;
        words[2] = flags | u64::from(self.element) << 8 | rank as u64;
        words[3..3 + rank].copy_from_slice(&self.sizes);
        words[8..7 + rank].copy_from_slice(&self.strides);
        for d in 0..rank {
            words[12] |= u64::from(self.extents[d] - 1) << (8 * d);
            words[13] |= u64::from(self.steps[d] - 1) << (8 * d);
        }
        words
    }

    /// What these words say; `None` where they are no map.
    pub(crate) fn decode(words: &[u64; 16]) -> Option<Self> {
        let rank = (words[2] & 0xFF) as usize;
        if words[0] != TENSOR_MAP || !(1..=RANK).contains(&rank) {
            return None;
        }
        let bytes =
            |word: u64| (0..rank).map(|d| (word >> (8 * d) & 0xFF) as u32 + 1).collect::<Vec<_>>();
        Some(Self {
            address: words[1],
            element: (words[2] >> 8 & 0xFF) as u32,
            sizes: words[3..3 + rank].to_vec(),
            strides: words[8..7 + rank].to_vec(),
            extents: bytes(words[12]),
            steps: bytes(words[13]),
            span: (words[2] >> 16 & 0xFFFF) as u32,
            fills_nan: words[2] >> 32 & 1 != 0,
        })
    }

    /// Dimensions.
    pub(crate) fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// Bytes of a row of the box.
    fn row(&self) -> usize {
        (self.extents[0] * self.element) as usize
    }

    /// From one row of the box to the next in shared memory.
    fn pitch(&self) -> usize {
        if self.span == 0 { self.row() } else { self.span as usize }
    }

    /// How many elements of the box are copied along a dimension.
    fn count(&self, d: usize) -> usize {
        self.extents[d].div_ceil(self.steps[d]) as usize
    }

    fn rows(&self) -> usize {
        (1..self.rank()).map(|d| self.count(d)).product()
    }

    /// Bytes of a box, as its barrier counts them.
    pub(crate) fn bytes(&self) -> usize {
        self.row() * self.rows()
    }

    /// What is copied of the box at these coordinates, row by row: places in the shared window from
    /// `tile` on, and addresses.
    pub(crate) fn rows_at(&self, at: &[i32], tile: usize, stores: bool) -> Vec<Row> {
        let span = self.sizes[0] * u64::from(self.element);
        // The hardware stores whole chunks.
        let end = if stores { span.next_multiple_of(CHUNK as u64) } else { span } as i64;
        let first = i64::from(at[0]) * i64::from(self.element);
        let row = |n: usize| {
            let mut rest = n;
            let mut address = self.address as i64 + first;
            let mut inside = true;
            for (d, &from) in at.iter().enumerate().skip(1) {
                let index = rest % self.count(d);
                rest /= self.count(d);
                let index = i64::from(from) + (index * self.steps[d] as usize) as i64;
                inside &= (0..self.sizes[d] as i64).contains(&index);
                address = address.wrapping_add(index.wrapping_mul(self.strides[d - 1] as i64));
            }
            // Which bytes of the row the tensor has.
            let from = (-first).clamp(0, self.row() as i64) as usize;
            let to = (end - first).clamp(from as i64, self.row() as i64) as usize;
            let has = if inside { from..to } else { 0..0 };
            Row { place: tile + n * self.pitch(), address: address as usize, has }
        };
        (0..self.rows()).map(row).collect()
    }

    /// Sectors and bytes of device memory that a copy of the box at these coordinates moves. What a load
    /// fills, because it is outside of the tensor, is among the sectors: so Nsight Compute counts.
    pub(crate) fn traffic(&self, at: &[i32], stores: bool) -> (usize, usize) {
        let mut sum = (0, 0);
        for row in self.rows_at(at, 0, stores) {
            let has = row.has.clone();
            let filled = if stores { [0, 0] } else { [has.start, self.row() - has.end] };
            let moved = row.address.wrapping_add(has.start)..row.address.wrapping_add(has.end);
            sum.0 +=
                sectors_of(moved) + filled.map(|bytes| sectors_of(0..bytes)).iter().sum::<usize>();
            sum.1 += has.len();
        }
        sum
    }

    /// The row's chunks.
    pub(crate) fn chunks(&self, row: &Row) -> impl Iterator<Item = Chunk> {
        let mask = (self.span as usize / CHUNK).saturating_sub(1);
        let (place, address, has) = (row.place, row.address, row.has.clone());
        (0..self.row()).step_by(CHUNK).map(move |byte| {
            let plain = place + byte;
            // Chunks begin inside or outside: coordinates are multiples of 16 bytes.
            let valid = if has.contains(&byte) { (has.end - byte).min(CHUNK) } else { 0 };
            Chunk {
                place: plain ^ (((plain / 128) & mask) * CHUNK),
                address: address.wrapping_add(byte),
                valid,
            }
        })
    }
}

/// A row of a box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Where in the shared window, before the swizzle.
    pub(crate) place: usize,
    /// Of its first byte, be it inside of the tensor or not.
    pub(crate) address: usize,
    /// Its bytes that the tensor has.
    pub(crate) has: std::ops::Range<usize>,
}

/// 16 bytes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Where in the shared window.
    pub(crate) place: usize,
    pub(crate) address: usize,
    /// How many of its bytes are the tensor's: the first ones.
    pub(crate) valid: usize,
}

/// What is copied together: the first `valid` bytes lie at `global`, the others outside of the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) shared: usize,
    pub(crate) global: usize,
    pub(crate) valid: usize,
    pub(crate) bytes: usize,
}

impl Move {
    /// The same with neighbours made one.
    pub(crate) fn merge(all: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut merged: Vec<Self> = Vec::new();
        for one in all {
            match merged.last_mut() {
                Some(last) if last.goes_on_with(&one) => {
                    last.valid += one.valid;
                    last.bytes += one.bytes;
                }
                _ => merged.push(one),
            }
        }
        merged
    }

    fn goes_on_with(&self, next: &Self) -> bool {
        let whole = self.valid == self.bytes && self.global + self.bytes == next.global;
        self.shared + self.bytes == next.shared && (whole || self.valid + next.valid == 0)
    }
}

/// A box on its way to shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Tile {
    pub(crate) moves: Vec<Move>,
    /// What lies outside of the tensor becomes NaN, not zero.
    pub(crate) nan: bool,
}

impl Tile {
    /// Makes the copy.
    ///
    /// # Safety
    /// The addresses are a kernel's own, and there.
    pub(crate) unsafe fn make(&self) {
        let fill = if self.nan { NAN } else { [0; 2] };
        for m in &self.moves {
            let to = m.shared as *mut u8;
            // SAFETY: the caller's promise.
            unsafe {
                std::ptr::copy(m.global as *const u8, to, m.valid);
                (m.valid..m.bytes).for_each(|byte| *to.add(byte) = fill[byte % 2]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> TensorMap {
        TensorMap {
            address: 1 << 20,
            element: 2,
            sizes: vec![20, 5, 3],
            strides: vec![48, 240],
            extents: vec![16, 3, 2],
            steps: vec![1, 1, 2],
            span: 64,
            fills_nan: true,
        }
    }

    #[test]
    fn what_is_written_down_is_read_again() {
        assert_eq!(TensorMap::decode(&map().encode()), Some(map()));
        assert_eq!(TensorMap::decode(&[0; 16]), None);
    }

    #[test]
    fn rows_are_cut_at_the_edges() {
        let map = map();
        assert_eq!((map.bytes(), map.pitch()), (32 * 3, 64));
        let rows = map.rows_at(&[8, 3, 0], 1024, false);
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[0], Row { place: 1024, address: (1 << 20) + 16 + 144, has: 0..24 });
        assert_eq!((rows[1].has.clone(), rows[2].has.clone()), (0..24, 0..0));
        assert_eq!(map.rows_at(&[8, 3, 0], 1024, true)[0].has, 0..32, "whole chunks");
        assert_eq!(map.rows_at(&[-8, 0, 2], 1024, false)[0].has, 16..32);
        let places: Vec<_> = map.chunks(&rows[2]).map(|c| (c.place, c.valid)).collect();
        assert_eq!(places, [(1024 + 144, 0), (1024 + 128, 0)]);
        assert_eq!(map.chunks(&rows[0]).map(|c| c.valid).collect::<Vec<_>>(), [16, 8]);
    }
}

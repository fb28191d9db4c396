//! Where scratch lies: pieces that no step needs at the same time share memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Where one piece of scratch begins in memory that holds all of it: a multiple of this.
pub(crate) const SCRATCH_ALIGNMENT: usize = 256;

/// Where each piece of scratch begins in memory that holds all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScratchLayout {
    /// In bytes, by the index of its slot.
    pub(crate) starts: BTreeMap<usize, usize>,
    /// Of all.
    pub(crate) bytes: usize,
}

/// A piece that has its place: which bytes it has, and when it is needed.
struct Placed {
    bytes: Range<usize>,
    life: Range<usize>,
}

/// A piece of scratch.
pub(crate) struct Piece {
    /// The index of its slot.
    pub(crate) slot: usize,
    pub(crate) bytes: usize,
    /// The steps that need it.
    pub(crate) life: Range<usize>,
}

impl ScratchLayout {
    /// The largest pieces first, each at the first place that nothing has which is needed at one of its steps.
    pub(crate) fn of(mut pieces: Vec<Piece>) -> Self {
        pieces.iter_mut().for_each(|p| p.bytes = p.bytes.next_multiple_of(SCRATCH_ALIGNMENT));
        pieces.sort_by_key(|piece| (std::cmp::Reverse(piece.bytes), piece.slot));
        let mut placed: Vec<Placed> = Vec::with_capacity(pieces.len());
        let mut starts = BTreeMap::new();
        for Piece { slot, bytes, life } in pieces {
            let start = first_gap(&placed, &life, bytes);
            starts.insert(slot, start);
            let at = placed.partition_point(|other| other.bytes.start < start);
            placed.insert(at, Placed { bytes: start..start + bytes, life });
        }
        let bytes = placed.iter().map(|piece| piece.bytes.end).max().unwrap_or(0);
        Self { starts, bytes }
    }
}

/// Where `bytes` bytes are free in all of these steps, of pieces in the order of their first bytes. A plan of many layers has
/// thousands, each of which is held against all that lie before its place.
fn first_gap(placed: &[Placed], life: &Range<usize>, bytes: usize) -> usize {
    let mut start = 0;
    for other in placed {
        if other.life.start >= life.end || life.start >= other.life.end {
            continue;
        }
        if start + bytes <= other.bytes.start {
            break;
        }
        start = start.max(other.bytes.end);
    }
    start
}

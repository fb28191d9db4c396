//! Where scratch lies: pieces that no step needs at the same time share memory.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::plan::{Plan, SCRATCH_ALIGNMENT, SlotFacts, SlotKind};

/// Where each piece of scratch begins in memory that holds all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScratchLayout {
    /// In bytes, by the index of its slot.
    pub(crate) starts: BTreeMap<usize, usize>,
    /// Of all.
    pub(crate) bytes: usize,
}

/// A piece that has its place: when it is needed, and which bytes it has.
struct Placed {
    life: Range<usize>,
    bytes: Range<usize>,
}

impl ScratchLayout {
    /// The largest pieces first, each at the first place that nothing has which is needed at one of its steps. What keeps its
    /// memory ([`SlotFacts::is_shared`]), and what no step uses, is needed always.
    pub(crate) fn of(plan: &Plan) -> Self {
        let lives = plan.lives();
        let always = 0..plan.len().max(1);
        let mut pieces: Vec<(usize, usize, Range<usize>)> = plan
            .slots()
            .iter()
            .zip(lives)
            .enumerate()
            .filter(|(_, (facts, _))| facts.kind == SlotKind::Scratch)
            .map(|(index, (facts, life))| {
                let ends = facts.is_shared() && life.end > 0;
                (index, round_up(facts), if ends { life } else { always.clone() })
            })
            .collect();
        pieces.sort_by_key(|(index, bytes, _)| (std::cmp::Reverse(*bytes), *index));
        let mut placed: Vec<Placed> = Vec::with_capacity(pieces.len());
        let mut starts = BTreeMap::new();
        for (index, bytes, life) in pieces {
            let start = first_gap(&placed, &life, bytes);
            starts.insert(index, start);
            placed.push(Placed { life, bytes: start..start + bytes });
        }
        let bytes = placed.iter().map(|piece| piece.bytes.end).max().unwrap_or(0);
        Self { starts, bytes }
    }
}

fn round_up(facts: &SlotFacts) -> usize {
    facts.bytes().next_multiple_of(SCRATCH_ALIGNMENT)
}

/// Where `bytes` bytes are free in all of these steps.
fn first_gap(placed: &[Placed], life: &Range<usize>, bytes: usize) -> usize {
    let meets = |piece: &&Placed| piece.life.start < life.end && life.start < piece.life.end;
    let mut taken: Vec<&Range<usize>> = placed.iter().filter(meets).map(|p| &p.bytes).collect();
    taken.sort_by_key(|range| range.start);
    let mut start = 0;
    for range in taken {
        if start + bytes <= range.start {
            break;
        }
        start = start.max(range.end);
    }
    start
}

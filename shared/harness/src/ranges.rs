//! Sets of whole numbers, as ranges of them.

use std::ops::Range;

/// In their order, none of which meets or touches another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<Range<usize>>);

impl Ranges {
    /// Adds these, and gives back those that were not there, in their order.
    pub(crate) fn add(&mut self, range: Range<usize>) -> Vec<Range<usize>> {
        if range.is_empty() {
            return Vec::new();
        }
        let (mut new, mut from) = (Vec::new(), range.start);
        let mut joined = range.clone();
        let mut kept = Vec::with_capacity(self.0.len() + 1);
        for own in self.0.drain(..) {
            if own.end < range.start || range.end < own.start {
                kept.push(own);
                continue;
            }
            if from < own.start {
                new.push(from..own.start);
            }
            from = from.max(own.end);
            joined = joined.start.min(own.start)..joined.end.max(own.end);
        }
        if from < range.end {
            new.push(from..range.end);
        }
        let at = kept.partition_point(|own| own.start < joined.start);
        kept.insert(at, joined);
        self.0 = kept;
        new
    }

    /// How many numbers there are.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(Range::len).sum()
    }

    /// Takes out those ranges that `is_one` says.
    pub(crate) fn take(&mut self, is_one: impl Fn(&Range<usize>) -> bool) -> Vec<Range<usize>> {
        let (taken, kept) = self.0.drain(..).partition(is_one);
        self.0 = kept;
        taken
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    /// Against a set of numbers, one by one.
    #[test]
    fn ranges_are_the_set_of_their_numbers() {
        const NUMBERS: usize = 40;
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        for _ in 0..200 {
            let (mut ranges, mut set) = (Ranges::default(), [false; NUMBERS]);
            for _ in 0..12 {
                let start = random.random_range(0..NUMBERS);
                let end = random.random_range(start..=NUMBERS);
                let new: Vec<usize> = ranges.add(start..end).into_iter().flatten().collect();
                let expected: Vec<usize> = (start..end).filter(|n| !set[*n]).collect();
                assert_eq!(new, expected);
                set[start..end].fill(true);
                assert!(ranges.0.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
            }
            let all: Vec<usize> = ranges.0.iter().cloned().flatten().collect();
            assert_eq!(all, (0..NUMBERS).filter(|n| set[*n]).collect::<Vec<_>>());
            assert_eq!(ranges.len(), set.iter().filter(|is_there| **is_there).count());
            let long = ranges.take(|range| range.len() > 5);
            assert!(long.iter().all(|range| range.len() > 5));
            assert!(ranges.0.iter().all(|range| range.len() <= 5));
        }
    }
}

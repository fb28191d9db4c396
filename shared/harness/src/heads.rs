//! Some heads of a problem whose heads have nothing to do with one another ([`Family::independent_heads`]): a reference
//! of them alone is exact, and takes a part of the time that all would take.
//!
//! [`Family::independent_heads`]: crate::Family::independent_heads

use std::fmt;

use rand::SeedableRng;
use rand::seq::index::sample;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::{Cost, Tensor, Tensors};

/// What is judged whole: operations of the problem itself. The reference and its magnitudes take some five times as many, in f64:
/// a minute of two cores, some seconds of 16.
const AFFORDABLE: f64 = 1.2e11;

/// How many are judged at least: the first, the last, and one between them.
const FEWEST: usize = 3;

/// Some heads of a problem, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heads {
    chosen: Vec<usize>,
    all: usize,
}

/// `18 of 128 heads`
impl fmt::Display for Heads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} heads", self.chosen.len(), self.all)
    }
}

impl Heads {
    /// Those of these numbers, of so many.
    ///
    /// # Panics
    /// There is none of such a number, or none is given.
    pub fn new(chosen: &[usize], all: usize) -> Self {
        let mut chosen = chosen.to_vec();
        chosen.sort_unstable();
        chosen.dedup();
        assert!(chosen.last().is_some_and(|last| *last < all), "heads below {all}: {chosen:?}");
        Self { chosen, all }
    }

    /// The first, the last, and as many others, drawn from all, as the CPU computes in seconds; `None` where it computes
    /// all of them, of `all` heads of a problem of this cost.
    pub fn affordable(all: usize, cost: Cost, seed: u64) -> Option<Self> {
        let count = (AFFORDABLE / cost.flops * all as f64) as usize;
        let count = count.max(FEWEST);
        if count >= all {
            return None;
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let between = sample(&mut rng, all - 2, count - 2).into_iter().map(|n| n + 1);
        let chosen: Vec<usize> = [0, all - 1].into_iter().chain(between).collect();
        Some(Self::new(&chosen, all))
    }

    /// How many they are, and of how many.
    pub fn counts(&self) -> [usize; 2] {
        [self.chosen.len(), self.all]
    }

    /// Whether a head is one of them.
    pub fn contains(&self, head: usize) -> bool {
        self.chosen.binary_search(&head).is_ok()
    }

    /// These heads of each tensor of at least two indices, as one sequence of so many heads; the others as they are.
    pub(crate) fn cut(&self, tensors: &Tensors) -> Tensors {
        let cut = |tensor: &Tensor| match tensor.shape[..] {
            [first, second, ..] => {
                let piece = tensor.bytes.len() / self.all;
                let bytes =
                    self.chosen.iter().flat_map(|head| &tensor.bytes[head * piece..][..piece]);
                let mut shape = tensor.shape.clone();
                (shape[0], shape[1]) = (1, first * second / self.all * self.chosen.len());
                Tensor { dtype: tensor.dtype, shape, bytes: bytes.copied().collect() }
            }
            _ => tensor.clone(),
        };
        tensors.iter().map(|(name, tensor)| (name.clone(), cut(tensor))).collect()
    }

    /// Where an element of a tensor that was cut stands in the whole one, of this shape.
    pub(crate) fn place(&self, at: &mut [usize], whole: &[usize]) {
        let [_, second, ..] = at else { return };
        // Tensors may have several rows of heads for each that is counted, as q has of attention.
        let rows = whole[0] * whole[1] / self.all;
        let row = self.chosen[*second / rows] * rows + *second % rows;
        (at[0], at[1]) = (row / whole[1], row % whole[1]);
    }

    /// The first of the other heads in which one of these tensors has an element that is no finite number.
    pub(crate) fn not_finite_beside(&self, tensors: &Tensors) -> Option<usize> {
        let others: Vec<usize> = (0..self.all).filter(|head| !self.contains(*head)).collect();
        let is_finite = |tensor: &Tensor, head: usize| {
            let piece = tensor.bytes.len() / self.all;
            let bytes = tensor.bytes[head * piece..][..piece].to_vec();
            let shape = vec![piece / tensor.dtype.size()];
            Tensor { dtype: tensor.dtype, shape, bytes }.values().iter().all(|v| v.is_finite())
        };
        let cut = || tensors.values().filter(|tensor| tensor.shape.len() >= 2);
        others.into_par_iter().find_first(|&head| cut().any(|tensor| !is_finite(tensor, head)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::tensors;

    #[test]
    fn the_first_and_the_last_are_among_them() {
        let cost = |flops| Cost { flops, bytes: 0.0 };
        for seed in 0..20 {
            let some = Heads::affordable(128, cost(4.0 * AFFORDABLE), seed).unwrap();
            assert_eq!(some.counts(), [32, 128]);
            assert!(some.contains(0) && some.contains(127), "{some:?}");
        }
        assert_eq!(Heads::affordable(16, cost(1e16), 0).unwrap().to_string(), "3 of 16 heads");
        for (all, flops) in [(128, AFFORDABLE), (3, 1e16), (1, 1e16), (128, 0.0)] {
            assert_eq!(Heads::affordable(all, cost(flops), 0), None, "{all} {flops}");
        }
    }

    #[test]
    fn rows_of_each_head_are_cut_out_and_found_again() {
        // Three sequences of two heads, of which q has two rows each and a gate has one; a length belongs to all.
        let numbers = |count: usize| (0..count).map(|n| n as f32).collect::<Vec<_>>();
        let mut all = tensors([
            ("q", Tensor::new(&[3, 4, 5], &numbers(60))),
            ("gate", Tensor::new(&[3, 2], &numbers(6))),
            ("length", Tensor::new(&[2], &numbers(2))),
        ]);
        let some = Heads::new(&[5, 2], 6);
        let cut = some.cut(&all);
        assert_eq!(cut["q"].shape, [1, 4, 5]);
        assert_eq!(cut["gate"], Tensor::new(&[1, 2], &[2f32, 5.0]));
        assert_eq!(cut["length"], all["length"]);
        for (index, value) in cut["q"].values().into_iter().enumerate() {
            let mut at = [0, index / 5, index % 5];
            some.place(&mut at, &all["q"].shape);
            assert_eq!((at[0] * 4 + at[1]) * 5 + at[2], value as usize);
        }
        assert_eq!(some.not_finite_beside(&all), None);
        let mut with_nan = |element: usize| {
            let mut values = numbers(60);
            values[element] = f32::NAN;
            all.insert("q".into(), Tensor::new(&[3, 4, 5], &values));
            some.not_finite_beside(&all)
        };
        assert_eq!(with_nan(39), Some(3));
        assert_eq!(with_nan(20), None, "of a head that is judged");
    }
}

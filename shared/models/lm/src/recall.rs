//! Associative recall: pairs of a key and a value, then keys, each of which wants its value again.
//!
//! ```text
//! k₁v₁ k₂v₂ … k_N v_N  k₃ k₁ … k_N       a token a pair, then a token a key
//!                      v₃ v₁ … v_N       the targets; pairs have none
//! ```
//!
//! A key and its value are one token, so that one block can solve it: two tokens would have to be brought together first. Source: Multi-query
//! associative recall (Arora et al. 2023, arXiv 2312.04927), with pairs that share a position.

use lab_harness::{Error, Tensor};
use rand::seq::SliceRandom;
use rand::{Rng as _, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Tokens;

/// How many keys and values there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    /// Keys, of which no sequence has one twice.
    pub keys: usize,
    /// Values of each.
    pub values: usize,
}

impl Recall {
    /// Tokens: each pair, each key, each value.
    pub fn vocabulary(&self) -> usize {
        self.keys * self.values + self.keys + self.values
    }

    /// Refuses sizes with which there is nothing to recall.
    ///
    /// # Errors
    /// Of the first of them.
    pub fn check(&self) -> Result<(), Error> {
        for (what, size, least) in [("keys", self.keys, 1), ("values", self.values, 2)] {
            if !(least..=256).contains(&size) {
                return Err(Error::bad(what, format!("{least} to 256"), size));
            }
        }
        Ok(())
    }

    /// Windows of `positions` tokens, one behind the other, of so many pairs each, and as many keys behind them; what is left of a window
    /// has no targets.
    ///
    /// # Panics
    /// More pairs than keys, or than there is place for.
    pub fn windows(&self, pairs: &[usize], positions: usize, seed: u64) -> Tokens {
        let Self { keys, values } = *self;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Behind the last window there is one more: the target of what has none of its own.
        let len = pairs.len() * positions + 1;
        let key = |k: usize| (keys * values + k) as i32;
        let (mut ids, mut targets) = (vec![key(0); len], vec![-1; len]);
        let mut order: Vec<usize> = (0..keys).collect();
        for (n, &pairs) in pairs.iter().enumerate() {
            assert!(pairs <= keys && 2 * pairs <= positions, "{pairs} pairs");
            order.shuffle(&mut random);
            let mut own: Vec<(usize, usize)> =
                order[..pairs].iter().map(|&k| (k, random.random_range(0..values))).collect();
            let start = n * positions;
            for (at, (k, v)) in own.iter().enumerate() {
                ids[start + at] = (k * values + v) as i32;
            }
            own.shuffle(&mut random);
            for (at, (k, v)) in own.into_iter().enumerate() {
                ids[start + pairs + at] = key(k);
                targets[start + pairs + at] = (keys * values + keys + v) as i32;
            }
        }
        Tokens { ids, targets: Some(targets), files: None }
    }

    /// Of the tokens with a target, the share that has its largest logit of all values there: `logits` \[windows, positions, V\] of the
    /// first windows of `data`.
    pub fn accuracy(&self, data: &Tokens, logits: &Tensor) -> f64 {
        let first = self.vocabulary() - self.values;
        let targets = data.targets.as_ref().expect("targets of its own");
        let logits = logits.values();
        let rows = logits.chunks(self.vocabulary()).zip(targets).filter(|(_, t)| **t >= 0);
        let (mut all, mut right) = (0, 0);
        for (row, target) in rows {
            let of_values = &row[first..];
            let best = (0..self.values).max_by(|&a, &b| of_values[a].total_cmp(&of_values[b]));
            all += 1;
            right += usize::from(best == Some(*target as usize - first));
        }
        f64::from(right as u32) / f64::from(all.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_wants_the_value_that_it_came_with() {
        let recall = Recall { keys: 6, values: 3 };
        let data = recall.windows(&[6, 2, 1], 14, 5);
        let (ids, targets) = (&data.ids, data.targets.as_ref().unwrap());
        assert_eq!((recall.vocabulary(), ids.len(), targets.len()), (27, 43, 43));
        for (n, pairs) in [(0, 6), (1, 2), (2, 1)] {
            let own = &ids[14 * n..14 * (n + 1)];
            let mut keys: Vec<i32> = own[..pairs].iter().map(|id| id / 3).collect();
            let mut asked: Vec<i32> = Vec::new();
            for at in 0..14 {
                let target = targets[14 * n + at];
                if (pairs..2 * pairs).contains(&at) {
                    let k = own[at] - 18;
                    asked.push(k);
                    let pair = own[..pairs].iter().find(|id| **id / 3 == k).unwrap();
                    assert_eq!(target, 24 + pair % 3, "window {n}, {at}");
                } else {
                    assert_eq!(target, -1, "window {n}, {at}");
                }
            }
            keys.sort_unstable();
            asked.sort_unstable();
            assert_eq!(keys, asked);
            keys.dedup();
            assert_eq!(keys.len(), pairs, "each once");
        }
        assert_eq!(data, recall.windows(&[6, 2, 1], 14, 5));
        assert_ne!(data, recall.windows(&[6, 2, 1], 14, 6));
    }

    #[test]
    fn accuracy_counts_what_has_a_target() {
        let recall = Recall { keys: 2, values: 2 };
        let data = recall.windows(&[2], 5, 1);
        let targets = data.targets.clone().unwrap();
        let of = |right: usize| {
            // All logits of other tokens are larger, and count for nothing.
            let mut logits = vec![9.0f32; 5 * 8];
            for (n, at) in (2..4).enumerate() {
                let target = targets[at] as usize;
                logits[at * 8 + 6..(at + 1) * 8].fill(0.0);
                logits[at * 8 + if n < right { target } else { 13 - target }] = 1.0;
            }
            recall.accuracy(&data, &Tensor::new(&[1, 5, 8], &logits))
        };
        assert_eq!([0, 1, 2].map(of), [0.0, 0.5, 1.0]);
        let said = Recall { values: 1, ..recall }.check().unwrap_err().to_string();
        assert_eq!(said, "values: expected 2 to 256, got 1");
    }
}

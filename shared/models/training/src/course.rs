//! In which order and how fast the steps of a training are taken.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::Schedule;

/// What of a configuration all trainings have.
pub trait Configuration {
    /// In which order and how fast the steps are taken.
    fn course(&self) -> Course;
}

/// In which order and how fast the steps of a training are taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Course {
    /// Samples of a step; the last step of an epoch has what is left.
    pub batch: usize,
    /// Of the order.
    pub seed: u64,
    /// Whether the order is another in each epoch.
    pub shuffle: bool,
    /// The learning rates.
    pub schedule: Schedule,
}

impl Course {
    /// The samples in the order in which an epoch, from 0, takes them.
    pub fn order(&self, starts: &[usize], epoch: usize) -> Vec<usize> {
        let mut order = starts.to_vec();
        if self.shuffle {
            let mut random = ChaCha8Rng::seed_from_u64(self.seed);
            random.set_stream(epoch as u64 + 1); // the first parameters are of stream 0
            order.shuffle(&mut random);
        }
        order
    }

    /// Steps of an epoch of so many samples.
    pub fn steps(&self, samples: usize) -> usize {
        samples.div_ceil(self.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_has_all_samples_in_an_order_of_its_own() {
        let starts: Vec<usize> = (0..100).map(|n| 3 * n).collect();
        let course =
            Course { batch: 16, seed: 9, shuffle: true, schedule: Schedule::constant(0.1) };
        let all: Vec<Vec<usize>> = (0..4).map(|epoch| course.order(&starts, epoch)).collect();
        for (n, order) in all.iter().enumerate() {
            assert!(all[..n].iter().all(|other| other != order));
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, starts);
        }
        assert_eq!(course.order(&starts, 2), all[2]);
        assert_ne!(Course { seed: 10, ..course }.order(&starts, 2), all[2]);
        assert_eq!(Course { shuffle: false, ..course }.order(&starts, 2), starts);
        assert_eq!([100, 96, 97].map(|samples| course.steps(samples)), [7, 6, 7]);
    }
}

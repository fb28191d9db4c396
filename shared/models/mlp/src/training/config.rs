//! How to train.

use lab_device::DType;
use lab_harness::Error;
use lab_training::{Configuration, Course, count, positive};
pub use lab_training::{Decay, Optimizer, Schedule};
use serde::{Deserialize, Serialize};

/// How to train.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Pairs of a step, B. The last step of an epoch has what is left.
    pub batch: usize,
    /// What the products by w2 are of: f32, or bf16 on the tensor cores. Parameters are in f32.
    #[serde(with = "lab_training::dtype_name")]
    pub dtype: DType,
    /// Of the first parameters and the order of the pairs.
    pub seed: u64,
    /// Whether the order of the pairs is another in each epoch.
    pub shuffle: bool,
    /// How the gradients move the parameters. Gradient descent without momentum and decay, where
    /// nothing is clipped, keeps no gradients.
    pub optimizer: Optimizer,
    /// How fast.
    pub schedule: Schedule,
    /// The largest norm of all gradients together.
    pub clip: Option<f64>,
}

impl Default for Config {
    /// Batches of 32, f32, shuffled; gradient descent at a rate of 0.1.
    fn default() -> Self {
        Self {
            batch: 32,
            dtype: DType::F32,
            seed: 0,
            shuffle: true,
            optimizer: Optimizer::sgd(0.0),
            schedule: Schedule::constant(0.1),
            clip: None,
        }
    }
}

impl Configuration for Config {
    fn course(&self) -> Course {
        let Self { batch, seed, shuffle, schedule, .. } = *self;
        Course { batch, seed, shuffle, schedule }
    }
}

impl Config {
    /// Whether a parameter moves by its gradient alone, which then need not be kept.
    pub(crate) fn descends(&self) -> bool {
        self.optimizer == Optimizer::sgd(0.0) && self.clip.is_none()
    }

    /// Refuses what no training can be done with.
    pub(crate) fn check(&self) -> Result<(), Error> {
        count("batch", self.batch, 1 << 15)?;
        if ![DType::F32, DType::BF16].contains(&self.dtype) {
            return Err(Error::bad("dtype", "f32 or bf16", self.dtype));
        }
        self.optimizer.check()?;
        self.schedule.check()?;
        self.clip.map_or(Ok(()), |clip| positive("clip", clip))
    }
}

//! How to train.

use lab_device::DType;
use lab_harness::Error;
use lab_training::{Configuration, Course, Optimizer, Schedule, count, positive};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How to train: AdamW, in windows of a stream of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Tokens of a window, S.
    pub window: usize,
    /// Windows of a step, B. The last step of an epoch has what is left.
    pub batch: usize,
    /// What the model runs in. Parameters are kept in f32, and rounded for it.
    #[serde(serialize_with = "dtype_to_name", deserialize_with = "dtype_of_name")]
    pub dtype: DType,
    /// Of the first parameters and the order of the windows.
    pub seed: u64,
    /// How fast.
    pub schedule: Schedule,
    /// Of both moments.
    pub betas: [f64; 2],
    /// Of matrices, not of norms and biases.
    pub weight_decay: f64,
    /// The largest norm of all gradients together.
    pub clip: Option<f64>,
}

impl Default for Config {
    /// Windows of 128 in batches of 8, f32; a rate of 10⁻³, betas 0.9 and 0.95, decay 0.1, norms up to 1.
    fn default() -> Self {
        Self {
            window: 128,
            batch: 8,
            dtype: DType::F32,
            seed: 0,
            schedule: Schedule::constant(1e-3),
            betas: [0.9, 0.95],
            weight_decay: 0.1,
            clip: Some(1.0),
        }
    }
}

/// Added outside of the root.
pub(crate) const EPS: f64 = 1e-8;

impl Configuration for Config {
    fn course(&self) -> Course {
        let Self { batch, seed, schedule, .. } = *self;
        Course { batch, seed, shuffle: true, schedule }
    }
}

impl Config {
    /// Refuses what no training can be done with.
    ///
    /// # Errors
    /// [`Error::Bad`] with the first of it.
    pub fn check(&self) -> Result<(), Error> {
        count("window", self.window, 1 << 20)?;
        count("batch", self.batch, 1 << 16)?;
        // Kernels count rows in 32 bits.
        count("tokens of a step", self.window * self.batch, 1 << 26)?;
        if ![DType::F32, DType::BF16].contains(&self.dtype) {
            return Err(Error::bad("dtype", "f32 or bf16", self.dtype));
        }
        self.schedule.check()?;
        let Self { betas, weight_decay, .. } = *self;
        Optimizer::Adam { betas, eps: EPS, weight_decay, decoupled: true }.check()?;
        self.clip.map_or(Ok(()), |clip| positive("clip", clip))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn dtype_to_name<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(dtype.name())
}

fn dtype_of_name<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

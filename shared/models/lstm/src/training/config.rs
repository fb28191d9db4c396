//! How to train.

use lab_device::{DType, Device, DeviceKind};
use lab_harness::Error;
use lab_reference::lstm::Network;
use lab_training::{Configuration, Course, count, positive, share};
pub use lab_training::{Decay, Optimizer, Schedule};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use lstm_fused::{Lstm, Way};

/// What the loss is multiplied by before its gradient is taken, so that the small ones of a half type do
/// not vanish; the gradients are divided by it again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum LossScale {
    /// 1.
    None,
    /// Always this.
    Static {
        /// The factor.
        factor: f64,
    },
    /// Halved where a gradient is not finite, and that step left out; doubled after `every` steps
    /// without. Between 2⁻¹⁶ and 2²⁴.
    Dynamic {
        /// The first factor.
        initial: f64,
        /// Steps.
        every: usize,
    },
}

impl LossScale {
    pub(crate) fn first(&self) -> f64 {
        match *self {
            Self::None => 1.0,
            Self::Static { factor } => factor,
            Self::Dynamic { initial, .. } => initial,
        }
    }

    /// 0 where it stays.
    pub(crate) fn every(&self) -> usize {
        match *self {
            Self::Dynamic { every, .. } => every,
            _ => 0,
        }
    }
}

/// How to train.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Steps of a window, T.
    pub window: usize,
    /// Windows of a step, B. The last step of an epoch has what is left.
    pub batch: usize,
    /// What the network runs in. With f16 and bf16 parameters are kept in f32, and rounded for it.
    #[serde(with = "lab_training::dtype_name")]
    pub dtype: DType,
    /// Of the first parameters, the order of the windows, and dropout.
    pub seed: u64,
    /// Whether the order of the windows is another in each epoch.
    pub shuffle: bool,
    /// How the gradients move the parameters.
    pub optimizer: Optimizer,
    /// How fast.
    pub schedule: Schedule,
    /// The largest norm of all gradients together.
    pub clip: Option<f64>,
    /// Probability with which an output of a layer does not reach the next.
    pub dropout: f64,
    /// Of the loss.
    pub loss_scale: LossScale,
    /// How the network goes through the steps: where there is none, [`Way::Cell`] on the emulator, which
    /// pays for every barrier, and what [`Lstm::of_rows`] takes on a GPU.
    #[serde(with = "way_names")]
    pub way: Option<Way>,
    /// Fewer numbers are kept for the way back, and the gates computed again: [`Lstm::recompute`].
    #[serde(default)]
    pub recompute: bool,
}

impl Default for Config {
    /// Windows of 20 in batches of 16, f32, shuffled; Adam at a rate of 10⁻³.
    fn default() -> Self {
        Self {
            window: 20,
            batch: 16,
            dtype: DType::F32,
            seed: 0,
            shuffle: true,
            optimizer: Optimizer::adam(),
            schedule: Schedule::constant(1e-3),
            clip: None,
            dropout: 0.0,
            loss_scale: LossScale::None,
            way: None,
            recompute: false,
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
    /// What parameters and moments are kept in.
    pub(crate) fn master(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// How a network goes through the steps on a device.
    ///
    /// # Errors
    /// The network does not go that way: as [`Lstm::by`].
    pub fn way_on(&self, device: &Device, network: Network) -> Result<Way, Error> {
        Ok(self.lstm(device, network)?.way())
    }

    pub(crate) fn lstm(&self, device: &Device, network: Network) -> Result<Lstm, Error> {
        let lstm = match self.way {
            Some(way) => Lstm::by(way, network),
            None if device.kind() == DeviceKind::Emulator => Lstm::by(Way::Cell, network),
            None => Lstm::of_rows(network, device, self.dtype, self.batch),
        }?;
        if self.recompute { lstm.recompute() } else { Ok(lstm) }
    }

    /// Refuses what no training can be done with.
    pub(crate) fn check(&self, network: &Network) -> Result<(), Error> {
        const MOST: usize = 1 << 15;
        count("window", self.window, MOST)?;
        count("batch", self.batch, MOST)?;
        let types = [DType::F32, DType::F64, DType::F16, DType::BF16];
        if !types.contains(&self.dtype) {
            return Err(Error::bad("dtype", "f32, f64, f16 or bf16", self.dtype));
        }
        self.optimizer.check()?;
        self.schedule.check()?;
        if let Some(clip) = self.clip {
            positive("clip", clip)?;
        }
        share("dropout", self.dropout)?;
        if self.dropout > 0.0 && network.layers == 1 {
            return Err(Error::bad("dropout", "0 in a network of one layer", self.dropout));
        }
        let scale = self.loss_scale.first();
        if !(1.0 / 65536.0..=16777216.0).contains(&scale) {
            return Err(Error::bad("loss scale", "2^-16 to 2^24", scale));
        }
        if let LossScale::Dynamic { every, .. } = self.loss_scale {
            count("steps of the loss scale", every, i32::MAX as usize)?;
        }
        Ok(())
    }
}

mod way_names {
    use super::*;

    #[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)] // serde's signature
    pub(super) fn serialize<S: Serializer>(way: &Option<Way>, to: S) -> Result<S::Ok, S::Error> {
        way.map(Way::name).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Way>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        let known = Way::ALL.into_iter().find(|way| way.name() == text);
        known.map(Some).ok_or_else(|| serde::de::Error::custom(format!("no way '{text}'")))
    }
}

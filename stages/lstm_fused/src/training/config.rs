//! How to train.

use lab_device::{DType, Device, DeviceKind};
use lab_harness::Error;
use lab_reference::lstm::Network;
use lab_reference::training::{cosine, linear_warm_up, step_decay};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Lstm, Way};

/// How the gradients move the parameters, with PyTorch's meaning of every constant
/// ([`lab_reference::training`]).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "rule")]
pub enum Optimizer {
    /// Gradient descent with momentum.
    Sgd {
        /// Share of the last step's velocity that is kept.
        momentum: f64,
        /// Factor of the parameter in its gradient.
        weight_decay: f64,
    },
    /// Adam, or AdamW.
    Adam {
        /// How much of both moments is kept.
        betas: [f64; 2],
        /// ε.
        eps: f64,
        /// In the gradient, or, where it is `decoupled`, of the parameter.
        weight_decay: f64,
        /// AdamW.
        decoupled: bool,
    },
}

impl Optimizer {
    /// Gradient descent.
    pub fn sgd(momentum: f64) -> Self {
        Self::Sgd { momentum, weight_decay: 0.0 }
    }

    /// Adam with PyTorch's constants.
    pub fn adam() -> Self {
        Self::Adam { betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0, decoupled: false }
    }

    /// AdamW with PyTorch's constants.
    pub fn adamw(weight_decay: f64) -> Self {
        Self::Adam { betas: [0.9, 0.999], eps: 1e-8, weight_decay, decoupled: true }
    }

    /// Its name in `lab/optimizer.cuh`.
    pub(crate) fn rule(&self) -> &'static str {
        match self {
            Self::Sgd { .. } => "SGD",
            Self::Adam { decoupled: false, .. } => "ADAM",
            Self::Adam { decoupled: true, .. } => "ADAMW",
        }
    }

    /// β₁, β₂, ε and the decay, as the kernel takes them.
    pub(crate) fn numbers(&self) -> [f64; 4] {
        match *self {
            Self::Sgd { momentum, weight_decay } => [momentum, 0.0, 0.0, weight_decay],
            Self::Adam { betas: [b1, b2], eps, weight_decay, .. } => [b1, b2, eps, weight_decay],
        }
    }
}

/// How the learning rate falls.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "decay")]
pub enum Decay {
    /// Not at all.
    Constant,
    /// By `gamma` after every so many steps.
    Step {
        /// Steps.
        every: usize,
        /// The factor.
        gamma: f64,
    },
    /// Half a cosine.
    Cosine {
        /// Until `min` is reached.
        steps: usize,
        /// The least rate.
        min: f64,
    },
}

/// The learning rate at each step; steps are counted over all epochs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The largest.
    pub rate: f64,
    /// Steps in which it grows in a straight line, from rate / (warm_up + 1); 0 for none. The decay
    /// begins behind them.
    pub warm_up: usize,
    /// What comes then.
    pub decay: Decay,
}

impl Schedule {
    /// The same rate always.
    pub fn constant(rate: f64) -> Self {
        Self { rate, warm_up: 0, decay: Decay::Constant }
    }

    /// The rate of a step, from 0 on.
    ///
    /// ```
    /// use lstm_fused::training::Schedule;
    /// let schedule = Schedule { warm_up: 3, ..Schedule::constant(0.4) };
    /// assert_eq!([0, 1, 3, 9].map(|step| schedule.at(step)), [0.1, 0.2, 0.4, 0.4]);
    /// ```
    pub fn at(&self, step: usize) -> f64 {
        if step < self.warm_up {
            return linear_warm_up(self.rate, 1.0 / (self.warm_up + 1) as f64, step, self.warm_up);
        }
        let step = step - self.warm_up;
        match self.decay {
            Decay::Constant => self.rate,
            Decay::Step { every, gamma } => step_decay(self.rate, step, every, gamma),
            Decay::Cosine { steps, min } => cosine(self.rate, min, step, steps),
        }
    }
}

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
    #[serde(serialize_with = "dtype_to_name", deserialize_with = "dtype_of_name")]
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
    /// pays for every barrier, and what [`Lstm::new`] takes on a GPU.
    #[serde(with = "way_names")]
    pub way: Option<Way>,
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
        }
    }
}

impl Config {
    /// What parameters and moments are kept in.
    pub(crate) fn master(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    pub(crate) fn lstm(&self, device: &Device, network: Network) -> Result<Lstm, Error> {
        match self.way {
            Some(way) => Lstm::by(way, network),
            None if device.kind() == DeviceKind::Emulator => Lstm::by(Way::Cell, network),
            None => Lstm::new(network),
        }
    }

    /// Refuses what no training can be done with.
    pub(crate) fn check(&self, network: &Network) -> Result<(), Error> {
        const MOST: usize = 1 << 15;
        let count = |what: &str, value: usize, most: usize| match (1..=most).contains(&value) {
            true => Ok(()),
            false => Err(Error::bad(what, format!("1 to {most}"), value)),
        };
        let number = |what: &str, value: f64, expected: &str, fits: bool| match fits {
            true => Ok(()),
            false => Err(Error::bad(what, expected, value)),
        };
        let positive =
            |what: &str, v: f64| number(what, v, "a number above 0", v > 0.0 && v < f64::MAX);
        let share = |what: &str, v: f64| number(what, v, "0 to below 1", (0.0..1.0).contains(&v));
        let not_negative = |what: &str, v: f64| {
            number(what, v, "a number from 0 on", (0.0..f64::MAX).contains(&v))
        };
        count("window", self.window, MOST)?;
        count("batch", self.batch, MOST)?;
        let types = [DType::F32, DType::F64, DType::F16, DType::BF16];
        if !types.contains(&self.dtype) {
            return Err(Error::bad("dtype", "f32, f64, f16 or bf16", self.dtype));
        }
        match self.optimizer {
            Optimizer::Sgd { momentum, weight_decay } => {
                share("momentum", momentum)?;
                not_negative("weight decay", weight_decay)?;
            }
            Optimizer::Adam { betas, eps, weight_decay, .. } => {
                share("beta 1", betas[0])?;
                share("beta 2", betas[1])?;
                not_negative("eps", eps)?;
                not_negative("weight decay", weight_decay)?;
            }
        }
        positive("learning rate", self.schedule.rate)?;
        count("warm-up", self.schedule.warm_up + 1, usize::MAX)?;
        match self.schedule.decay {
            Decay::Constant => {}
            Decay::Step { every, gamma } => {
                count("steps of the decay", every, i32::MAX as usize)?;
                positive("gamma of the decay", gamma)?;
            }
            Decay::Cosine { steps, min } => {
                count("steps of the decay", steps, usize::MAX)?;
                not_negative("least learning rate", min)?;
            }
        }
        if let Some(clip) = self.clip {
            positive("clip", clip)?;
        }
        share("dropout", self.dropout)?;
        if self.dropout > 0.0 && network.layers == 1 {
            return Err(Error::bad("dropout", "0 in a network of one layer", self.dropout));
        }
        let scale = |v: f64| {
            number("loss scale", v, "2^-16 to 2^24", (1.0 / 65536.0..=16777216.0).contains(&v))
        };
        scale(self.loss_scale.first())?;
        if let LossScale::Dynamic { every, .. } = self.loss_scale {
            count("steps of the loss scale", every, i32::MAX as usize)?;
        }
        Ok(())
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn dtype_to_name<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(dtype.name())
}

fn dtype_of_name<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

mod way_names {
    use super::*;

    const ALL: [Way; 2] = [Way::Cell, Way::Sequence];

    fn name(way: Way) -> &'static str {
        match way {
            Way::Cell => "cell",
            Way::Sequence => "sequence",
        }
    }

    #[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)] // serde's signature
    pub(super) fn serialize<S: Serializer>(way: &Option<Way>, to: S) -> Result<S::Ok, S::Error> {
        way.map(name).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Way>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        let known = ALL.into_iter().find(|&way| name(way) == text);
        known.map(Some).ok_or_else(|| serde::de::Error::custom(format!("no way '{text}'")))
    }
}

//! The rules of training: how gradients move the parameters, how fast, and times what.

use lab_reference::training::{cosine, linear_warm_up, step_decay};
use serde::{Deserialize, Serialize};

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

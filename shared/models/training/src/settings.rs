//! Optimizers and learning rates, as a user chooses them.

use lab_device::emulator::host_memory;
use lab_harness::Error;
use lab_reference::training::{cosine, linear_warm_up, step_decay};
use serde::{Deserialize, Serialize};

fn number(what: &str, value: f64, expected: &str, fits: bool) -> Result<(), Error> {
    if fits { Ok(()) } else { Err(Error::bad(what, expected, value)) }
}

/// Refuses a count that is not from 1 to `most`.
///
/// # Errors
/// [`Error::Bad`] by this name.
pub fn count(what: &str, value: usize, most: usize) -> Result<(), Error> {
    if (1..=most).contains(&value) {
        Ok(())
    } else {
        Err(Error::bad(what, format!("1 to {most}"), value))
    }
}

/// Refuses so many parameters where no memory is free for them: their values in f64, and beside them as they are
/// kept, with two moments and a gradient.
///
/// # Errors
/// [`Error::Bad`] with the largest number that fits.
pub fn parameters_fit(parameters: impl IntoIterator<Item = Vec<usize>>) -> Result<(), Error> {
    const BYTES: u64 = 8 + 4 * 4;
    let len = |shape: Vec<usize>| shape.iter().fold(1u64, |n, &size| n.saturating_mul(size as u64));
    let all = parameters.into_iter().map(len).fold(0, u64::saturating_add);
    // Where there are few, nobody need ask.
    let most = if all < 1 << 20 { return Ok(()) } else { host_memory().0 / BYTES };
    let fits = all <= most;
    let expected = format!("at most {most}, for which memory is free");
    if fits { Ok(()) } else { Err(Error::bad("parameters of the model", expected, all)) }
}

/// Refuses a number that is not above 0.
///
/// # Errors
/// [`Error::Bad`] by this name.
pub fn positive(what: &str, value: f64) -> Result<(), Error> {
    number(what, value, "a number above 0", value > 0.0 && value < f64::MAX)
}

/// Refuses a number that is not from 0 to below 1.
///
/// # Errors
/// [`Error::Bad`] by this name.
pub fn share(what: &str, value: f64) -> Result<(), Error> {
    number(what, value, "0 to below 1", (0.0..1.0).contains(&value))
}

fn not_negative(what: &str, value: f64) -> Result<(), Error> {
    number(what, value, "a number from 0 on", (0.0..f64::MAX).contains(&value))
}

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

    /// Its name in `lab/optimizer.cuh`: `SGD`, `ADAM` or `ADAMW`.
    pub fn rule(&self) -> &'static str {
        match self {
            Self::Sgd { .. } => "SGD",
            Self::Adam { decoupled: false, .. } => "ADAM",
            Self::Adam { decoupled: true, .. } => "ADAMW",
        }
    }

    /// β₁, β₂, ε and the decay, as the kernel takes them.
    pub fn numbers(&self) -> [f64; 4] {
        match *self {
            Self::Sgd { momentum, weight_decay } => [momentum, 0.0, 0.0, weight_decay],
            Self::Adam { betas: [b1, b2], eps, weight_decay, .. } => [b1, b2, eps, weight_decay],
        }
    }

    /// Refuses constants that no step can be made with.
    ///
    /// # Errors
    /// [`Error::Bad`] with the first of them.
    pub fn check(&self) -> Result<(), Error> {
        match *self {
            Self::Sgd { momentum, weight_decay } => {
                share("momentum", momentum)?;
                not_negative("weight decay", weight_decay)
            }
            Self::Adam { betas, eps, weight_decay, .. } => {
                share("beta 1", betas[0])?;
                share("beta 2", betas[1])?;
                not_negative("eps", eps)?;
                not_negative("weight decay", weight_decay)
            }
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
    /// Warm-up, stable, decay (Hu et al. 2024, arXiv 2404.06395): not at all, and then in a straight line.
    Wsd {
        /// Steps of the largest rate.
        stable: usize,
        /// Then, until `min` is reached.
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
    /// use lab_training::Schedule;
    /// let schedule = Schedule { warm_up: 3, ..Schedule::constant(0.4) };
    /// assert_eq!([0, 1, 3, 9].map(|step| schedule.at(step)), [0.1, 0.2, 0.4, 0.4]);
    /// ```
    /// Warm-up, stable, decay:
    /// ```
    /// # use lab_training::{Decay, Schedule};
    /// let decay = Decay::Wsd { stable: 2, steps: 4, min: 0.0 };
    /// let schedule = Schedule { warm_up: 1, decay, ..Schedule::constant(0.5) };
    /// let rates = [0, 1, 3, 4, 6, 7, 99].map(|step| schedule.at(step));
    /// assert_eq!(rates, [0.25, 0.5, 0.5, 0.375, 0.125, 0.0, 0.0]);
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
            Decay::Wsd { stable, steps, min } => {
                let fallen = step.saturating_sub(stable).min(steps) as f64 / steps as f64;
                self.rate + (min - self.rate) * fallen
            }
        }
    }

    /// Refuses a schedule that gives no rate.
    ///
    /// # Errors
    /// [`Error::Bad`] with what is wrong.
    pub fn check(&self) -> Result<(), Error> {
        positive("learning rate", self.rate)?;
        count("warm-up", self.warm_up.saturating_add(1), usize::MAX - 1)?;
        match self.decay {
            Decay::Constant => Ok(()),
            Decay::Step { every, gamma } => {
                count("steps of the decay", every, i32::MAX as usize)?;
                positive("gamma of the decay", gamma)
            }
            Decay::Cosine { steps, min } | Decay::Wsd { steps, min, .. } => {
                count("steps of the decay", steps, usize::MAX)?;
                not_negative("least learning rate", min)
            }
        }
    }
}

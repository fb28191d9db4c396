//! What can go wrong.

use crate::checkpoint::BadCheckpoint;

/// Bad input, a device that could not do it, or training that left the numbers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option, a tensor, a file, or the device.
    #[error(transparent)]
    Harness(#[from] lab_harness::Error),
    /// A step gave what is no number, or too large for one. The parameters are those before it.
    #[error(
        "epoch {epoch}, step {step}: {tensor} is {value} at element {index}, expected finite numbers"
    )]
    NotFinite {
        /// From 0.
        epoch: usize,
        /// Of the epoch, from 0.
        step: usize,
        /// The first in the order of computation that is not finite: a parameter, a gradient, `the loss`.
        tensor: String,
        /// Its first element that is not finite.
        index: usize,
        /// NaN or an infinity.
        value: f64,
    },
    /// A file is no checkpoint of this training.
    #[error(transparent)]
    Checkpoint(#[from] BadCheckpoint),
}

impl From<lab_device::Error> for Error {
    fn from(error: lab_device::Error) -> Self {
        Self::Harness(error.into())
    }
}

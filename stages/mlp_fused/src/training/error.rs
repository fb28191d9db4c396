//! What can go wrong.

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
        /// A parameter, `the loss`, or `the gradient`.
        tensor: String,
        /// Its first element that is not finite.
        index: usize,
        /// NaN or an infinity.
        value: f64,
    },
    /// A file is no checkpoint of this training.
    #[error("checkpoint: {what}: expected {expected}, got {got}")]
    Checkpoint {
        /// What is wrong in it.
        what: String,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },
}

impl Error {
    pub(crate) fn checkpoint(
        what: impl Into<String>,
        expected: impl Into<String>,
        got: impl ToString,
    ) -> Self {
        Self::Checkpoint { what: what.into(), expected: expected.into(), got: got.to_string() }
    }
}

impl From<lab_device::Error> for Error {
    fn from(error: lab_device::Error) -> Self {
        Self::Harness(error.into())
    }
}

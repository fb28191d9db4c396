//! What can be wrong with what a user asks for.

use lab_device::emulator::shown;

/// Bad input, or a device that could not do it. A message is one line, whatever it quotes; of [`Error::NoVersion`]
/// one more for each version.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A named argument, option or size is not what it should be.
    #[error("{}: expected {}, got {}", shown(what, 100), shown(expected, 400), shown(got, 100))]
    Bad {
        /// What is wrong: `--dtype`, `dimension C`, …
        what: String,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A tensor is missing or has the wrong type, rank or size.
    #[error(
        "tensor '{}': expected {}, got {}",
        shown(name, 60),
        shown(expected, 100),
        shown(got, 100)
    )]
    Tensor {
        /// The tensor.
        name: String,
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// No version takes a call.
    #[error(
        "call: expected what a version takes, got what none does{}",
        reasons.iter().map(|(version, why)| format!("\n  {version}: {why}")).collect::<String>()
    )]
    NoVersion {
        /// Of each version, by its full name, why it does not.
        reasons: Vec<(String, Error)>,
    },
    /// The kernels have ended, and part of an output was not written by any of them.
    #[error(
        "output '{output}': {count} of {of} bytes were never written, the first of them byte {first}"
    )]
    NeverWritten {
        /// The output.
        output: String,
        /// How many bytes.
        count: usize,
        /// Of how many.
        of: usize,
        /// Where the first is.
        first: usize,
    },
    /// The same, in a layer of a plan.
    #[error("{layer}: {error}")]
    Layer {
        /// Its name: [`Plan::within`](crate::Plan::within).
        layer: String,
        /// What is wrong.
        error: Box<Error>,
    },
    /// A file cannot be read or written.
    #[error("{}: {}", shown(path, 1000), shown(message, 300))]
    File {
        /// The file.
        path: String,
        /// Why.
        message: String,
    },
    /// The device layer.
    #[error(transparent)]
    Device(#[from] lab_device::Error),
}

impl Error {
    /// A [`Error::Bad`].
    pub fn bad(what: impl Into<String>, expected: impl Into<String>, got: impl ToString) -> Self {
        Self::Bad { what: what.into(), expected: expected.into(), got: got.to_string() }
    }

    /// With the layer before it, if it has none.
    pub(crate) fn of_layer(self, layer: &str) -> Self {
        match self {
            Self::Layer { .. } => self,
            error => Self::Layer { layer: layer.to_owned(), error: Box::new(error) },
        }
    }
}

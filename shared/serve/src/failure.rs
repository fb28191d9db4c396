//! Why the server has ended.

use lab_harness::Error;

/// Why the server has ended, and the exit code that goes with it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// 1 to 4, as `--help` has them.
    pub code: u8,
    /// For the user.
    pub message: String,
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }
}

impl From<lab_device::Error> for Failure {
    fn from(error: lab_device::Error) -> Self {
        let code = match &error {
            e if e.is_unavailable() => 4,
            e if e.findings().is_some() => 3,
            lab_device::Error::Compile { .. } => 1,
            _ => 2,
        };
        Self { code, message: error.to_string() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Device(error) => error.into(),
            other => Self::usage(other.to_string()),
        }
    }
}

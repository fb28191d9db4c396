//! What goes wrong with a picture.

/// A run is not what its picture shows, or does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What a run did or computed is not what the picture is to show: the message names the run, or the file.
    #[error("{0}")]
    Wrong(String),
    /// A run's version, sizes or options are none, or it cannot be prepared.
    #[error(transparent)]
    Harness(#[from] lab_harness::Error),
}

impl From<lab_device::Error> for Error {
    fn from(error: lab_device::Error) -> Self {
        Self::Harness(error.into())
    }
}

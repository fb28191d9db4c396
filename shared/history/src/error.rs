//! What goes wrong with a page.

/// A page cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A record cannot be read, or a plot cannot be drawn.
    #[error(transparent)]
    Harness(#[from] lab_harness::Error),
    /// The bugs or exercises of a stage cannot be read.
    #[error(transparent)]
    Sources(#[from] lab_mutate::Error),
}

//! Places of `Count` and `Number` in `lab/progress.cuh`.

/// Counts.
pub const COUNTS: usize = 6;
/// Numbers.
pub const NUMBERS: usize = 3;
/// Of the epoch, from 0.
pub const STEP: usize = 0;
/// Steps before this one in all epochs.
pub const TAKEN: usize = 1;
/// Of them, those that changed the parameters.
pub const UPDATES: usize = 2;
/// In this epoch, for a gradient that was not finite.
pub const SKIPPED: usize = 4;
/// 1 once a step was not finite.
pub const STOPPED: usize = 5;
/// Of the loss.
pub const SCALE: usize = 0;
/// Of Adam's betas, both.
pub const POWERS: usize = 1;

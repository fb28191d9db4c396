//! Learning rates by step, the first of which is 0. A warm-up before another schedule is the other
//! one from the warm-up's last step on.

use std::f64::consts::PI;

/// `lr · gammaⁿ` with n = ⌊step / every⌋ (`torch.optim.lr_scheduler.StepLR`).
///
/// ```
/// use lab_reference::training::step_decay;
/// assert_eq!([0, 9, 10, 20].map(|step| step_decay(8.0, step, 10, 0.5)), [8.0, 8.0, 4.0, 2.0]);
/// ```
pub fn step_decay(lr: f64, step: usize, every: usize, gamma: f64) -> f64 {
    lr * gamma.powi((step / every) as i32)
}

/// Half a cosine from `lr` at step 0 down to `min` at step `steps`, and `min` from there on
/// (`torch.optim.lr_scheduler.CosineAnnealingLR`, which rises again; Loshchilov & Hutter 2017,
/// arXiv 1608.03983, equation 5).
///
/// ```
/// use lab_reference::training::cosine;
/// assert_eq!([0, 20, 30].map(|step| cosine(8.0, 2.0, step, 20)), [8.0, 2.0, 2.0]);
/// assert!((cosine(8.0, 2.0, 10, 20) - 5.0).abs() < 1e-12);
/// ```
pub fn cosine(lr: f64, min: f64, step: usize, steps: usize) -> f64 {
    let done = step.min(steps) as f64 / steps as f64;
    min + (lr - min) * (1.0 + (PI * done).cos()) / 2.0
}

/// From `start · lr` at step 0 in a straight line to `lr` at step `steps`, and `lr` from there on
/// (`torch.optim.lr_scheduler.LinearLR`).
///
/// ```
/// use lab_reference::training::linear_warm_up;
/// assert_eq!([0, 2, 4, 9].map(|step| linear_warm_up(8.0, 0.5, step, 4)), [4.0, 6.0, 8.0, 8.0]);
/// ```
pub fn linear_warm_up(lr: f64, start: f64, step: usize, steps: usize) -> f64 {
    let done = step.min(steps) as f64 / steps as f64;
    lr * (start + (1.0 - start) * done)
}

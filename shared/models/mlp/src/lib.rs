//! A language model of one word: texts to learn from, and its training, by the kernels of
//! [`mlp_fused`].

#![deny(unsafe_code)]

pub mod data;
pub mod training;

pub use training::checks::SUITE;

/// What this crate promises of its launches: its only unsafe code.
#[allow(unsafe_code)]
mod kernels {
    use lab_device::LaunchPromise;

    // SAFETY: training and evaluation make all slots themselves, by the sizes of the model and of its data that they tell the kernels.
    pub(crate) const PROMISE: LaunchPromise = unsafe { LaunchPromise::new() };
}

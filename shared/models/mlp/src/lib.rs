//! A language model of one word: texts to learn from, and its training, by the kernels of
//! [`mlp_fused`].

#![forbid(unsafe_code)]

pub mod data;
pub mod training;

pub use training::checks::SUITE;

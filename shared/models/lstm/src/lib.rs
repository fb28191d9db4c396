//! An LSTM, a GRU or an sLSTM as a model: a linear layer on it, data to learn from, and its training, by
//! the kernels of [`lstm_fused`].

#![forbid(unsafe_code)]

pub mod data;
pub mod training;

pub use training::checks::SUITE;

//! An LSTM, a GRU or an sLSTM as a model: a linear layer on it, data to learn from, and its training. The
//! recurrence is [`lstm_fused`]'s; what a training step launches around it is here.

#![deny(unsafe_code)]

pub mod data;
pub mod training;

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

pub use training::checks::SUITE;

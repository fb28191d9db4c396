//! A language model of these kernels: trained, saved, made to write.
//!
//! The model is xLSTM's, block for block as NX-AI's `xlstm_large` has it, with the vLSTM as its mixer, or attention: [`Model`]. A
//! [`Trainer`] repeats a [`Step`] whose launches, batch to optimizer, are one CUDA graph; [`Evaluator`] gives losses, [`Writer`]
//! writes on, a token at a time.
//!
//! Sources: xLSTM 7B (Beck et al. 2025, arXiv 2503.13427), xLSTM (Beck et al. 2024, arXiv 2405.04517).

#![deny(unsafe_code)]

mod batch;
mod batch_checks;
mod bucket;
mod by_steps;
mod check_data;
mod checkpoint;
mod checks;
mod config;
mod data;
mod decoder;
mod decoding;
mod draw_checks;
mod evaluate;
mod fill;
mod fill_checks;
mod fresh;
mod int8_file;
mod interchange;
mod load;
mod mixers;
mod model;
mod pieces;
mod reader;
mod recall;
mod reference;
mod sample;
mod saved_state;
mod state_checks;
mod step;
mod store;
mod stream_checks;
mod streams;
mod sum_checks;
mod sums;
mod token_files;
mod tokenizer;
mod tokens;
mod types;
mod write;

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

pub use batch::{Batch, Batched, MOST_SLOTS, Sequence};
pub use by_steps::mean_loss_by_steps;
pub use checkpoint::Checkpoint;
pub use checks::SUITE;
pub use config::Config;
pub use data::Tokens;
pub use decoder::{Bytes, Decoded, Decoder, MOST_SEQUENCES};
pub use evaluate::{Evaluated, Evaluator};
pub use int8_file::Int8File;
pub use interchange::Pretrained;
pub use lab_training::{Decay, Epoch, Error, Phase, Position, Ranks, Schedule, SumPiece, Sums};
pub use load::{Loaded, tokenizer_file};
pub use mixers::{Mixer, Mixers};
pub use model::Model;
pub use pieces::{LEAST_PIECE, MOST_PIECE};
pub use recall::Recall;
pub use sample::{Draw, Sampler};
pub use saved_state::SavedState;
pub use step::Step;
pub use token_files::TokenFiles;
pub use tokenizer::{Stream, Tokenizer};
pub use tokens::TokenFile;
pub use types::Types;
pub use write::Writer;

/// A model in training.
pub type Trainer = lab_training::Trainer<Step>;

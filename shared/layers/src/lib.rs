//! Layers: parameters and operations, put into one plan.
//!
//! A model is a function over a [`Tape`], as its PyTorch module reads. Each layer adds its launches to the plan and leaves on the
//! tape what will add those of its backward pass; [`Tape::add_backward`] goes through that from its end to its beginning. So a
//! model is written once, forward, and a run is launches only: it is one CUDA graph, and its memory is known before it is taken.
//!
//! ```text
//! Parameters (names, shapes, first values) ──▶ Tape ── layers ──▶ Plan: forward … loss … backward
//!                                               └ one arena each: weights, gradients, moments
//! ```
#![forbid(unsafe_code)]

mod attention;
mod feed_forward;
mod few;
mod language;
mod layers;
mod mixer;
mod parameters;
mod quantized;
mod recurrent;
mod tape;

pub use attention::AttentionMixer;
pub use language::HeadLoss;
pub use mixer::{Memory, State, VlstmMixer};
pub use parameters::{Init, Parameter, Parameters};
pub use passes::Documents;
pub use quantized::{Int8, Quantized};
pub use recurrent::RecurrentMixer;
pub use tape::{Back, Dropouts, Tape};

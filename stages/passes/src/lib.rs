//! `passes`: what stands between the mixers of a language model, forward and backward.
//!
//! A mixer and the products around it are bound by arithmetic; all else reads and writes memory, and that is what it costs. So
//! each operation here is one pass over its tensors, or as few as there can be, and all of them give the same bits each run.
//!
//! An operation is a struct of slots and sizes that adds its launches to a plan: [`RmsNorm`], [`GatedHeadNorm`], [`SwiGlu`],
//! [`SoftCapGates`], [`Embedding`], [`CrossEntropy`], [`AdamW`], [`SplitHeads`], [`MergeHeads`], [`Rope`], [`AppendToCache`], [`Dropout`], [`Widen`]. Each is also a version of this
//! stage by itself. [`Documents`] is a launch beside the gates.
#![deny(unsafe_code)]

mod adamw;
mod append;
mod checks;
mod column_sums;
mod cross_entropy;
mod documents;
mod dropout;
mod embedding;
mod gates;
mod head_norm;
mod heads;
mod magnitudes;
mod pass;
mod rms_norm;
mod rope;
mod slots;
mod swiglu;
mod widen;

use lab_harness::Stage;

pub use adamw::{ADAMW, AdamW, Progress, Squares};
pub use append::{APPEND_TO_CACHE, AppendToCache};
pub use column_sums::ColumnSums;
pub use cross_entropy::{CROSS_ENTROPY, CROSS_ENTROPY_BACK, CrossEntropy, CrossEntropyOut};
pub use documents::Documents;
pub use dropout::{DROPOUT, Dropout};
pub use embedding::{EMBEDDING, EMBEDDING_BACK, Embedding, EmbeddingUpstream};
pub use gates::{Gates, SOFT_CAP_GATES, SOFT_CAP_GATES_BACK, SoftCapGates, SoftCapGatesUpstream};
pub use head_norm::{
    GatedHeadNorm, GatedHeadNormGradients, GatedHeadNormUpstream, HEAD_NORM, HEAD_NORM_BACK,
    HeadLayout,
};
pub use heads::{MERGE_HEADS, MergeHeads, Room, SPLIT_HEADS, SplitHeads};
pub use pass::{Formula, Pass};
pub use rms_norm::{RMS_NORM, RMS_NORM_BACK, RmsNorm, RmsNormOut, RmsNormSaved, RmsNormUpstream};
pub use rope::{ROPE, Rope};
pub use swiglu::{SWIGLU, SWIGLU_BACK, SwiGlu, SwiGluUpstream};
pub use widen::{Narrow, WIDEN, Widen};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// This stage.
pub static STAGE: Stage = Stage {
    name: "passes",
    teaches: "passes bound by memory: a row in registers, a gradient in one pass, the same bits each run",
    versions: &[
        &RMS_NORM,
        &RMS_NORM_BACK,
        &HEAD_NORM,
        &HEAD_NORM_BACK,
        &SWIGLU,
        &SWIGLU_BACK,
        &SOFT_CAP_GATES,
        &SOFT_CAP_GATES_BACK,
        &SPLIT_HEADS,
        &MERGE_HEADS,
        &ROPE,
        &APPEND_TO_CACHE,
        &DROPOUT,
        &WIDEN,
        &EMBEDDING,
        &EMBEDDING_BACK,
        &CROSS_ENTROPY,
        &CROSS_ENTROPY_BACK,
        &ADAMW,
    ],
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

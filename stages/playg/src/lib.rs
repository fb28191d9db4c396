//! `playg`, the playground: where a reader meets CUDA, one operation a kernel.
//!
//! Each operation is a version of this stage. The kernels are in `kernels/`; what a module here
//! says of each is its sizes, its grid, its reference and its error bounds.

#![deny(unsafe_code)]

mod checks;
mod matrix;
mod operation;
mod rows;
mod sum;
mod vector;

use lab_harness::{Stage, Version};

pub use matrix::{COPY, COPY_PACKS, COPY_SWAPPED, TRANSPOSE, TRANSPOSE_PADDED, TRANSPOSE_TILED};
pub use operation::{Formula, Operation};
pub use rows::{LAYERNORM, SOFTMAX, SOFTMAX_ONLINE, SOFTMAX_REGISTERS};
pub use sum::{SUM, SUM_ATOMIC, SUM_SHUFFLE, SUM_TREE};
pub use vector::{ADD, MUL, RELU, SAXPY, SIGMOID, TANH};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// The list of operations, as what they are and as versions.
macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        /// Every operation, in the order of the story.
        pub static OPERATIONS: &[&Operation] = &[$(&$name),*];
        static VERSIONS: &[&dyn Version] = &[$(&$name),*];
    };
}

operations!(
    COPY_SWAPPED,
    COPY,
    COPY_PACKS,
    SAXPY,
    ADD,
    MUL,
    RELU,
    SIGMOID,
    TANH,
    TRANSPOSE,
    TRANSPOSE_TILED,
    TRANSPOSE_PADDED,
    SUM_TREE,
    SUM_SHUFFLE,
    SUM_ATOMIC,
    SUM,
    SOFTMAX,
    SOFTMAX_ONLINE,
    SOFTMAX_REGISTERS,
    LAYERNORM,
);

/// This stage.
pub static STAGE: Stage = Stage {
    name: "playg",
    teaches: "grids, warps and blocks: a vector, a row, a whole array at a time",
    versions: VERSIONS,
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

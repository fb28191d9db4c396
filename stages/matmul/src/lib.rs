//! `matmul`: C = A B in f32 arithmetic, from a thread an element to tiles of tiles.
//!
//! Each version is a kernel file in `kernels/` and changes one thing of its parent. Its tiles stand in
//! the build script; sizes, reference and error bounds are the same for all.

mod boxes;
mod checks;
mod cublas;
mod family;
mod host;
mod ladder;
pub mod linear;
mod linear_checks;
mod model;
mod narrow_round;
mod plans;
mod settings;
mod sizes;
pub mod swiglu;
mod swiglu_checks;
mod swiglu_versions;
mod tuning;
mod versions;
pub mod weight_gradient;

use lab_harness::Stage;

pub use swiglu_versions::{LINEAR_SWIGLU, LINEAR_SWIGLU_BACK, LINEAR_SWIGLU_BACK_TURNS, SwiGlu};
pub use versions::{
    ASYNC, BEHIND, BLOCKS, COALESCED, GRID, MMA, MULTICAST, Matmul, NAIVE, NARROW, PERSISTENT,
    RING, ROLES, ROWS, SNAKE, SPLIT, STORES, TENSOR, TILED, TURNED, TURNED_GRID, VERSIONS, WARPS,
    WGMMA, WIDE,
};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// This stage.
pub static STAGE: Stage = Stage {
    name: "matmul",
    teaches: "one product of matrices, each number fetched less often from version to version",
    versions: &[
        &NAIVE,
        &COALESCED,
        &TILED,
        &ROWS,
        &BLOCKS,
        &WARPS,
        &ASYNC,
        &MMA,
        &TENSOR,
        &WGMMA,
        &RING,
        &ROLES,
        &WIDE,
        &PERSISTENT,
        &STORES,
        &MULTICAST,
        &SPLIT,
        &TURNED,
        &GRID,
        &TURNED_GRID,
        &NARROW,
        &BEHIND,
        &SNAKE,
        &linear::LINEAR,
        &linear::LINEAR_TURNS,
        &LINEAR_SWIGLU,
        &LINEAR_SWIGLU_BACK,
        &LINEAR_SWIGLU_BACK_TURNS,
        &weight_gradient::WEIGHT_GRADIENT,
    ],
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    peers: &[&cublas::CUBLAS, &cublas::TF32, &host::Blas, &host::Naive],
    ..Stage::EMPTY
};

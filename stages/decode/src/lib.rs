//! `decode`: products of few rows, at the speed at which memory delivers their weights.
//!
//! A model that writes reads each weight once a token, and multiplies it with a number of each sequence. [`FewRows`] is such a
//! product as an operation: y = x Wᵀ + r, with W of halves, f32, or int8 with a scale for each output channel ([`quantize_rows`]);
//! or y = silu(x Wgᵀ) ⊙ (x Wuᵀ) in one launch.
#![deny(unsafe_code)]

mod bytes;
mod checks;
mod columns;
mod dequantize;
mod family;
mod few_rows;
mod quantize;
mod units;
mod wgmma;

use lab_harness::Stage;

pub use columns::Before;
pub use dequantize::Dequantize;
pub use family::{
    BYTES, COLUMNS, COLUMNS_INT8, DOTS, FLIGHT, FLIGHT_INT8, FewRowsVersion, MMA, MMA_INT8, NAIVE,
    PERSISTENT, PERSISTENT_INT8, RING, RING_INT8, SPLIT, SPLIT_INT8, UNITS, WARP, WGMMA,
    WGMMA_INT8,
};
pub use few_rows::{FewRows, GateColumns, Heads, MOST_ROWS, Norm, Way};
pub use quantize::quantize_rows;

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// This stage.
pub static STAGE: Stage = Stage {
    name: "decode",
    teaches: "products of few rows: bytes in flight, fragments straight from memory, int8 weights",
    versions: &[
        &NAIVE,
        &WARP,
        &FLIGHT,
        &MMA,
        &PERSISTENT,
        &SPLIT,
        &COLUMNS,
        &RING,
        &WGMMA,
        &FLIGHT_INT8,
        &MMA_INT8,
        &PERSISTENT_INT8,
        &SPLIT_INT8,
        &COLUMNS_INT8,
        &RING_INT8,
        &WGMMA_INT8,
        &BYTES,
        &DOTS,
        &UNITS,
    ],
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

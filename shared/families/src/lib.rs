//! The families of the recurrences and of what they are compared with: each says what is computed (inputs, an f64
//! reference, magnitudes of rounding, cost), and what must hold of every version of it.
//!
//! A [`Family`](lab_harness::Family) knows no kernel. A stage states its versions, and stands on the family that they
//! compute.
#![forbid(unsafe_code)]

pub mod attention;
mod checking;
pub mod gdn;
pub mod lstm;
pub mod mlp;
pub mod packed;
pub mod qkv;
pub mod slstm;
pub mod step_checks;
mod step_state;
pub mod vlstm;

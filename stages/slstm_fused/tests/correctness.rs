//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::{assert_stage, assert_version};
use slstm_fused::{CELL, HEADS, STAGE};

#[test]
fn cell() {
    assert_version(&CELL);
}

#[test]
fn heads() {
    assert_version(&HEADS);
}

#[test]
fn what_else_must_hold() {
    assert_stage(&STAGE);
}

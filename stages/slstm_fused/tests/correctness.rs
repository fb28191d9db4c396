//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::{assert_stage, assert_version};
use slstm_fused::{CELL, FORWARD, HEADS, STAGE};

#[test]
fn cell() {
    assert_version(&CELL);
}

#[test]
fn heads() {
    assert_version(&HEADS);
}

#[test]
fn forward_alone() {
    FORWARD.iter().for_each(|version| assert_version(version));
    assert_eq!(STAGE.versions.len(), 2 + FORWARD.len());
}

#[test]
fn what_else_must_hold() {
    assert_stage(&STAGE);
}

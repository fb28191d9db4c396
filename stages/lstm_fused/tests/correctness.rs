//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::{assert_stage, assert_version};
use lstm_fused::{CELL, SEQUENCE, STAGE};

#[test]
fn cell() {
    assert_version(&CELL);
}

#[test]
fn sequence() {
    assert_version(&SEQUENCE);
    assert_eq!(STAGE.versions.len(), 2);
}

#[test]
fn what_else_must_hold() {
    assert_stage(&STAGE);
}

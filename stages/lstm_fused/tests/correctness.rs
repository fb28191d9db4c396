//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::{assert_checks, assert_version};
use lstm_fused::{CELL, STAGE};

#[test]
fn cell() {
    assert_version(&CELL);
    assert_eq!(STAGE.versions.len(), 1);
}

#[test]
fn what_else_must_hold() {
    assert_checks(STAGE.checks);
}

//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::{assert_checks, assert_version};
use vlstm_fwbw_v0::{FLAGS, GRID_SYNC, STAGE};

#[test]
fn grid_sync() {
    assert_version(&GRID_SYNC);
}

#[test]
fn flags() {
    assert_version(&FLAGS);
    assert_eq!(STAGE.versions.len(), 2);
}

#[test]
fn what_else_must_hold() {
    assert_checks(STAGE.checks);
}

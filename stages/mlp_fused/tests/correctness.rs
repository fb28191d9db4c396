//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::{assert_stage, assert_version};
use mlp_fused::{BATCH, GRAPH, RECOMPUTED, RESIDENT, SAMPLE, STAGE, TENSOR, WGMMA};

#[test]
fn sample() {
    assert_version(&SAMPLE);
}

#[test]
fn what_else_must_hold() {
    assert_stage(&STAGE);
}

#[test]
fn batch() {
    assert_version(&BATCH);
}

#[test]
fn recomputed() {
    assert_version(&RECOMPUTED);
}

#[test]
fn graph() {
    assert_version(&GRAPH);
}

#[test]
fn tensor() {
    assert_version(&TENSOR);
}

#[test]
fn wgmma() {
    assert_version(&WGMMA);
}

#[test]
fn resident() {
    assert_version(&RESIDENT);
}

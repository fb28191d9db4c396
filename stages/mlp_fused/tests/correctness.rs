//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::stage_checks;
use lab_harness::suite::assert_version;
use mlp_fused::{BATCH, GRAPH, RECOMPUTED, RESIDENT, SAMPLE, STAGE, TENSOR, WGMMA};

#[test]
fn sample() {
    assert_version(&STAGE, &SAMPLE);
}

stage_checks!(STAGE);

#[test]
fn batch() {
    assert_version(&STAGE, &BATCH);
}

#[test]
fn recomputed() {
    assert_version(&STAGE, &RECOMPUTED);
}

#[test]
fn graph() {
    assert_version(&STAGE, &GRAPH);
}

#[test]
fn tensor() {
    assert_version(&STAGE, &TENSOR);
}

#[test]
fn wgmma() {
    assert_version(&STAGE, &WGMMA);
}

#[test]
fn resident() {
    assert_version(&STAGE, &RESIDENT);
}

//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::stage_checks;
use lab_harness::suite::assert_version;
use lstm_fused::{
    CELL, CLUSTER, FORWARD, GRID, GROUPS, GROUPS_BACK, PRODUCT, PRODUCT_BACK, SEQUENCE, STAGE,
    TENSOR, TENSOR_BACK, TENSOR_GRID, TENSOR_GRID_BACK, VERSIONS, WGMMA_BACK,
};

#[test]
fn cell() {
    assert_version(&STAGE, &CELL);
}

#[test]
fn sequence() {
    assert_version(&STAGE, &SEQUENCE);
}

#[test]
fn cluster() {
    assert_version(&STAGE, &CLUSTER);
}

#[test]
fn grid() {
    assert_version(&STAGE, &GRID);
}

#[test]
fn forward_alone() {
    FORWARD.iter().for_each(|version| assert_version(&STAGE, version));
    assert_eq!(STAGE.versions.len(), VERSIONS.len() + FORWARD.len() + 4);
}

#[test]
fn on_tensor_cores() {
    [&TENSOR, &PRODUCT, &GROUPS, &TENSOR_BACK, &PRODUCT_BACK, &GROUPS_BACK, &WGMMA_BACK]
        .into_iter()
        .for_each(|version| assert_version(&STAGE, version));
}

#[test]
fn on_tensor_cores_over_the_grid() {
    [&TENSOR_GRID, &TENSOR_GRID_BACK].into_iter().for_each(|v| assert_version(&STAGE, v));
}

stage_checks!(STAGE);

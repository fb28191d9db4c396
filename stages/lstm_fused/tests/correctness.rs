//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::stage_checks;
use lab_harness::suite::assert_version;
use lstm_fused::{
    CELL, CLUSTER, FORWARD, GRID, PRODUCT, PRODUCT_BACK, SEQUENCE, STAGE, TENSOR, TENSOR_BACK,
    TENSOR_GRID, TENSOR_GRID_BACK, VERSIONS, WGMMA, WGMMA_BACK, WGMMA_FORWARD,
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
fn tensor() {
    assert_version(&STAGE, &TENSOR);
}

#[test]
fn product() {
    assert_version(&STAGE, &PRODUCT);
}

#[test]
fn wgmma_forward() {
    assert_version(&STAGE, &WGMMA_FORWARD);
}

#[test]
fn tensor_back() {
    assert_version(&STAGE, &TENSOR_BACK);
}

#[test]
fn product_back() {
    assert_version(&STAGE, &PRODUCT_BACK);
}

#[test]
fn wgmma() {
    assert_version(&STAGE, &WGMMA);
}

#[test]
fn wgmma_back() {
    assert_version(&STAGE, &WGMMA_BACK);
}

#[test]
fn tensor_grid() {
    assert_version(&STAGE, &TENSOR_GRID);
}

#[test]
fn tensor_grid_back() {
    assert_version(&STAGE, &TENSOR_GRID_BACK);
}

stage_checks!(STAGE);

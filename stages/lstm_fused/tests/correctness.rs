//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::{stage_checks, version_tests};
use lstm_fused::{
    CELL, CLUSTER, FORWARD, GRID, PRODUCT, PRODUCT_BACK, SEQUENCE, STAGE, TENSOR, TENSOR_BACK,
    TENSOR_GRID, TENSOR_GRID_BACK, WGMMA, WGMMA_BACK, WGMMA_FORWARD,
};

version_tests! {
    STAGE:
    cell = CELL,
    sequence = SEQUENCE,
    cluster = CLUSTER,
    grid = GRID,
    forward_alone = [FORWARD[0], FORWARD[1], FORWARD[2], FORWARD[3]],
    tensor = TENSOR,
    product = PRODUCT,
    wgmma_forward = WGMMA_FORWARD,
    tensor_back = TENSOR_BACK,
    product_back = PRODUCT_BACK,
    wgmma = WGMMA,
    wgmma_back = WGMMA_BACK,
    tensor_grid = TENSOR_GRID,
    tensor_grid_back = TENSOR_GRID_BACK,
}

stage_checks!(STAGE);

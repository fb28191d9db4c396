//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::{stage_checks, version_tests};
use mlp_fused::{BATCH, GRAPH, RECOMPUTED, RESIDENT, SAMPLE, STAGE, TENSOR, WGMMA};

version_tests! {
    STAGE:
    sample = SAMPLE,
    batch = BATCH,
    recomputed = RECOMPUTED,
    graph = GRAPH,
    tensor = TENSOR,
    wgmma = WGMMA,
    resident = RESIDENT,
}

stage_checks!(STAGE);

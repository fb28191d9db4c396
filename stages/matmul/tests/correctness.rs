//! Every version against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::{assert_right, in_all_types};
use lab_harness::{
    Choice, Dims, Error, Posed, Problem, Version, random_problems, stage_checks, version_tests,
};
use matmul::linear::{LINEAR, LINEAR_TURNS};
use matmul::weight_gradient::WEIGHT_GRADIENT;
use matmul::{
    ASYNC, BEHIND, BLOCKS, COALESCED, GRID, LINEAR_SWIGLU, LINEAR_SWIGLU_BACK,
    LINEAR_SWIGLU_BACK_TURNS, MMA, MULTICAST, NAIVE, NARROW, PERSISTENT, RING, ROLES, ROWS, SNAKE,
    SPLIT, STAGE, STORES, TENSOR, TILED, TURNED, TURNED_GRID, VERSIONS, WARPS, WGMMA, WIDE,
};
use proptest::prelude::*;

version_tests! {
    STAGE:
    naive = NAIVE,
    coalesced = COALESCED,
    tiled = TILED,
    rows = ROWS,
    blocks = BLOCKS,
    warps = WARPS,
    asynchronous = ASYNC,
    tensor_cores_one_step_after_the_other = MMA,
    tensor_cores = TENSOR,
    warpgroups = WGMMA,
    a_ring_of_tiles = RING,
    warps_of_two_kinds = ROLES,
    wide_tiles = WIDE,
    blocks_that_stay = PERSISTENT,
    asynchronous_stores = STORES,
    pairs_of_blocks = MULTICAST,
    parts_of_k = SPLIT,
    turned = TURNED,
    parts_for_the_whole_grid = GRID,
    turned_parts_for_the_whole_grid = TURNED_GRID,
    linear_layers = [LINEAR, LINEAR_TURNS],
    a_narrow_last_round = NARROW,
    tiles_stored_behind_others = BEHIND,
    back_and_forth = SNAKE,
    layers_with_swiglu = LINEAR_SWIGLU,
    layers_with_swiglu_backward = [LINEAR_SWIGLU_BACK, LINEAR_SWIGLU_BACK_TURNS],
    gradients_by_weights = WEIGHT_GRADIENT,
}

#[test]
fn each_version_changes_the_one_before() {
    assert_eq!(VERSIONS.len(), 23);
    // What v14 changes gains nothing: v15 goes on from v13.
    for pair in VERSIONS[..16].windows(2) {
        assert_eq!(pair[1].info().parent, Some(pair[0].info().name));
    }
    assert_eq!(SPLIT.info().parent, Some(STORES.info().name));
    assert_eq!(GRID.info().parent, Some(SPLIT.info().name));
    assert_eq!(NARROW.info().parent, Some(GRID.info().name));
    assert_eq!(BEHIND.info().parent, Some(NARROW.info().name));
    assert_eq!(SNAKE.info().parent, Some(BEHIND.info().name));
    // In f32, for which v13's stores are not.
    assert_eq!(TURNED.info().parent, Some(PERSISTENT.info().name));
    assert_eq!(TURNED_GRID.info().parent, Some(TURNED.info().name));
}

/// The versions of the family that the stage is named after.
fn products() -> &'static [&'static dyn Version] {
    &STAGE.versions[..VERSIONS.len()]
}

#[test]
fn the_last_version_that_a_gpu_runs_is_chosen() {
    use lab_device::DType::{BF16, F16, F32};
    let of = |dtype, arch| {
        let choice = Choice::of(products(), dtype, arch).unwrap();
        (choice.version.info().name, choice.better.map(|(v, needs)| (v.info().name, needs)))
    };
    let hopper = Some(("v21_snake", "sm_90a"));
    let turned = Some(("v18_turned_grid", "sm_90a"));
    for arch in ["sm_80", "sm_89", "sm_90", "sm_100a", "sm_120a"] {
        assert_eq!(of(BF16, arch), ("v7_tensor", hopper), "{arch}");
        assert_eq!(of(F32, arch), ("v7_tensor", turned), "{arch}");
    }
    assert_eq!(of(F16, "sm_75"), ("v5_warps", hopper));
    assert_eq!(of(F32, "sm_75"), ("v5_warps", turned));
    // The emulator, which names no architecture, runs all.
    for arch in ["sm_90a", ""] {
        assert_eq!(of(BF16, arch), ("v21_snake", None));
        assert_eq!(of(F32, arch), ("v18_turned_grid", None));
    }
    assert!(Choice::of(products(), lab_device::DType::F64, "sm_90a").is_none());
}

/// What is timed beside the versions computes the same: on the host wherever the tests run, a
/// library on a GPU where there are both.
#[test]
fn the_peers_are_right() {
    let mut ran = Vec::new();
    for device in lab_harness::suite::devices().unwrap() {
        for peer in STAGE.peers_of("matmul").filter(|p| p.info().runs_beside(&device)) {
            // One that rounds as it does says how far off it may be.
            let version = if peer.info().products.is_some() { &MMA } else { &NAIVE };
            for &dtype in peer.info().dtypes {
                let dims = Dims::new([("G", 2), ("M", 300), ("N", 40), ("K", 50)]);
                let posed = Posed::new(version, Problem::new(dims, dtype));
                let name = peer.info().name;
                let prepared = peer.prepare(&device, &posed.inputs, &Default::default());
                let mut prepared = match prepared {
                    Ok(prepared) => prepared,
                    Err(Error::Device(e)) if e.is_unavailable() => {
                        println!("{name}: {e}");
                        continue;
                    }
                    Err(e) => panic!("{name}: {e}"),
                };
                prepared.launch().unwrap();
                for c in posed.compare(version, &prepared.outputs().unwrap(), dtype) {
                    assert!(c.passed(), "{name} {dtype}: {c}");
                }
                prepared.poison_outputs().unwrap();
                assert!(prepared.outputs().unwrap()["C"].values().iter().all(|v| v.is_nan()));
                ran.push(name);
            }
        }
    }
    assert!(ran.contains(&"cpu_blas") && ran.contains(&"cpu_naive"), "{ran:?}");
}

stage_checks!(STAGE);

random_problems! {
    // A linear layer takes multiples of 8 alone.
    cases: 12, of: in_all_types(products());
    (
        g in 1usize..3,
        m in 1usize..150,
        n in 1usize..150,
        k in 1usize..40,
        // Half of the cases in packs.
        step in prop::sample::select(vec![1usize, 8]),
    ) |version, dtype, seed| {
        let up = |size: usize| size.next_multiple_of(step);
        let dims = Dims::new([("G", g), ("M", m), ("N", up(n)), ("K", up(k))]);
        assert_right(version, &Problem { seed, ..Problem::new(dims, dtype) });
    }
}

//! Every version against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::{assert_right, assert_version, in_all_types};
use lab_harness::{Choice, Dims, Error, Posed, Problem, Version, random_problems, stage_checks};
use matmul::{STAGE, VERSIONS};
use proptest::prelude::*;

#[test]
fn naive() {
    assert_version(&matmul::STAGE, &matmul::NAIVE);
}

#[test]
fn coalesced() {
    assert_version(&matmul::STAGE, &matmul::COALESCED);
}

#[test]
fn tiled() {
    assert_version(&matmul::STAGE, &matmul::TILED);
}

#[test]
fn rows() {
    assert_version(&matmul::STAGE, &matmul::ROWS);
}

#[test]
fn blocks() {
    assert_version(&matmul::STAGE, &matmul::BLOCKS);
}

#[test]
fn warps() {
    assert_version(&matmul::STAGE, &matmul::WARPS);
}

#[test]
fn asynchronous() {
    assert_version(&matmul::STAGE, &matmul::ASYNC);
}

#[test]
fn tensor_cores_one_step_after_the_other() {
    assert_version(&matmul::STAGE, &matmul::MMA);
}

#[test]
fn tensor_cores() {
    assert_version(&matmul::STAGE, &matmul::TENSOR);
}

#[test]
fn warpgroups() {
    assert_version(&matmul::STAGE, &matmul::WGMMA);
}

#[test]
fn a_ring_of_tiles() {
    assert_version(&matmul::STAGE, &matmul::RING);
}

#[test]
fn warps_of_two_kinds() {
    assert_version(&matmul::STAGE, &matmul::ROLES);
}

#[test]
fn wide_tiles() {
    assert_version(&matmul::STAGE, &matmul::WIDE);
}

#[test]
fn blocks_that_stay() {
    assert_version(&matmul::STAGE, &matmul::PERSISTENT);
}

#[test]
fn asynchronous_stores() {
    assert_version(&matmul::STAGE, &matmul::STORES);
}

#[test]
fn pairs_of_blocks() {
    assert_version(&matmul::STAGE, &matmul::MULTICAST);
}

#[test]
fn parts_of_k() {
    assert_version(&matmul::STAGE, &matmul::SPLIT);
}

#[test]
fn turned() {
    assert_version(&matmul::STAGE, &matmul::TURNED);
}

#[test]
fn parts_for_the_whole_grid() {
    assert_version(&matmul::STAGE, &matmul::GRID);
}

#[test]
fn turned_parts_for_the_whole_grid() {
    assert_version(&matmul::STAGE, &matmul::TURNED_GRID);
}

#[test]
fn linear_layers() {
    assert_version(&matmul::STAGE, &matmul::linear::LINEAR);
}

#[test]
fn a_narrow_last_round() {
    assert_version(&matmul::STAGE, &matmul::NARROW);
}

#[test]
fn tiles_stored_behind_others() {
    assert_version(&matmul::STAGE, &matmul::BEHIND);
}

#[test]
fn back_and_forth() {
    assert_version(&matmul::STAGE, &matmul::SNAKE);
}

#[test]
fn gradients_by_weights() {
    assert_version(&matmul::STAGE, &matmul::weight_gradient::WEIGHT_GRADIENT);
}

#[test]
fn every_version_is_tested_above() {
    assert_eq!(STAGE.versions.len(), 25);
    assert_eq!(VERSIONS.len(), 23);
}

#[test]
fn each_version_changes_the_one_before() {
    // What v14 changes gains nothing: v15 goes on from v13.
    for pair in VERSIONS[..16].windows(2) {
        assert_eq!(pair[1].info().parent, Some(pair[0].info().name));
    }
    assert_eq!(matmul::SPLIT.info().parent, Some(matmul::STORES.info().name));
    assert_eq!(matmul::GRID.info().parent, Some(matmul::SPLIT.info().name));
    assert_eq!(matmul::NARROW.info().parent, Some(matmul::GRID.info().name));
    assert_eq!(matmul::BEHIND.info().parent, Some(matmul::NARROW.info().name));
    assert_eq!(matmul::SNAKE.info().parent, Some(matmul::BEHIND.info().name));
    // In f32, for which v13's stores are not.
    assert_eq!(matmul::TURNED.info().parent, Some(matmul::PERSISTENT.info().name));
    assert_eq!(matmul::TURNED_GRID.info().parent, Some(matmul::TURNED.info().name));
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
            let version =
                if peer.info().products.is_some() { &matmul::MMA } else { &matmul::NAIVE };
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

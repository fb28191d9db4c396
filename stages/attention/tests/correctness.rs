//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use attention::{
    MMA, MMA_BACK, ONLINE, PACKED, PACKED_BACK, SCORES, SCORES_BACK, STAGE, STEP, STEP_SPLIT,
    TURNS, WGMMA, WGMMA_BACK,
};
use lab_families::attention::{packed_sizes, sizes};
use lab_harness::suite::{assert_right, assert_version, in_all_types};
use lab_harness::{Problem, random_problems, stage_checks};

#[test]
fn v0_scores() {
    assert_version(&STAGE, &SCORES);
    assert_eq!(STAGE.versions.len(), 12);
}

#[test]
fn v1_online() {
    assert_version(&STAGE, &ONLINE);
}

#[test]
fn v2_mma() {
    assert_version(&STAGE, &MMA);
}

#[test]
fn v3_scores_back() {
    assert_version(&STAGE, &SCORES_BACK);
}

#[test]
fn v4_mma_back() {
    assert_version(&STAGE, &MMA_BACK);
}

#[test]
fn v5_wgmma() {
    assert_version(&STAGE, &WGMMA);
}

#[test]
fn v6_turns() {
    assert_version(&STAGE, &TURNS);
}

#[test]
fn v7_wgmma_back() {
    assert_version(&STAGE, &WGMMA_BACK);
}

#[test]
fn v8_packed() {
    assert_version(&STAGE, &PACKED);
}

#[test]
fn v9_packed_back() {
    assert_version(&STAGE, &PACKED_BACK);
}

#[test]
fn step() {
    assert_version(&STAGE, &STEP);
}

#[test]
fn step_split() {
    assert_version(&STAGE, &STEP_SPLIT);
}

stage_checks!(STAGE);

random_problems! {
    cases: 10, of: in_all_types(&[&ONLINE, &MMA, &TURNS, &SCORES_BACK, &MMA_BACK, &WGMMA_BACK]);
    (
        b in 1usize..3,
        nkv in 1usize..3,
        group in 1usize..4,
        s in 1usize..150,
        // In sixteens.
        d in 1usize..=8,
    ) |version, dtype, seed| {
        let dims = sizes([b, nkv * group, nkv, s, 16 * d]);
        assert_right(version, &Problem { seed, ..Problem::new(dims, dtype) });
    }
}

mod packed {
    use super::*;

    random_problems! {
        cases: 6, of: in_all_types(&[&PACKED, &PACKED_BACK]);
        (
            n in 1usize..6,
            nkv in 1usize..3,
            group in 1usize..3,
            t in 1usize..200,
            // In sixteens.
            d in 1usize..=8,
        ) |version, dtype, seed| {
            let dims = packed_sizes([n, nkv * group, nkv, t, 16 * d]);
            assert_right(version, &Problem { seed, ..Problem::new(dims, dtype) });
        }
    }
}

//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use attention::{
    HANDED_BACK, MMA, MMA_BACK, ONLINE, PACKED, PACKED_BACK, SCORES, SCORES_BACK, STAGE, STEP,
    STEP_SPLIT, TURNS, WGMMA, WGMMA_BACK,
};
use lab_families::attention::{packed_sizes, sizes};
use lab_harness::suite::{assert_right, in_all_types};
use lab_harness::{Problem, random_problems, stage_checks, version_tests};

version_tests! {
    STAGE:
    v0_scores = SCORES,
    v1_online = ONLINE,
    v2_mma = MMA,
    v3_scores_back = SCORES_BACK,
    v4_mma_back = MMA_BACK,
    v5_wgmma = WGMMA,
    v6_turns = TURNS,
    v7_wgmma_back = WGMMA_BACK,
    v8_handed = HANDED_BACK,
    v8_packed = PACKED,
    v9_packed_back = PACKED_BACK,
    step = STEP,
    step_split = STEP_SPLIT,
}

stage_checks!(STAGE);

random_problems! {
    cases: 10, of: in_all_types(&[&ONLINE, &MMA, &TURNS, &SCORES_BACK, &MMA_BACK, &WGMMA_BACK, &HANDED_BACK]);
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

//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_families::qkv::sizes;
use lab_harness::suite::{assert_right, in_all_types};
use lab_harness::{Problem, random_problems, stage_checks, version_tests};
use proptest::prelude::*;
use qkv_v1::{BLOCK_TILE, STAGE};

version_tests!(STAGE: block_tile = BLOCK_TILE);

stage_checks!(STAGE);

random_problems! {
    cases: 12, of: in_all_types(&[&BLOCK_TILE]);
    (
        b in 1usize..3,
        nh in 1usize..3,
        s in 1usize..100,
        dhqk in 1usize..140,
        dhhv in 1usize..140,
        // Half of the cases in packs.
        step in prop::sample::select(vec![1usize, 8]),
    ) |version, dtype, seed| {
        let up = |size: usize| size.next_multiple_of(step);
        let dims = sizes([b, nh, s, up(dhqk), up(dhhv)]);
        assert_right(version, &Problem { seed, ..Problem::new(dims, dtype) });
    }
}

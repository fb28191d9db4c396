//! Every version against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_families::qkv::sizes;
use lab_harness::suite::{assert_right, in_all_types};
use lab_harness::{Problem, random_problems, stage_checks, version_tests};
use proptest::prelude::*;
use qkv_v2::{CLUSTER, REORDERED, RESIDENT, STAGE, WGMMA};

version_tests! {
    STAGE:
    the_other_order = REORDERED,
    warpgroups = WGMMA,
    a_cluster_a_head = CLUSTER,
    blocks_that_stay = RESIDENT,
}

stage_checks!(STAGE);

random_problems! {
    cases: 8, of: in_all_types(&[&REORDERED, &WGMMA, &CLUSTER, &RESIDENT]);
    (
        b in 1usize..3,
        nh in 1usize..3,
        // Of a single key q · k may nearly cancel, and no relative bound holds.
        s in 8usize..150,
        dhqk in 1usize..140,
        dhhv in 1usize..140,
        // Most cases in packs.
        step in prop::sample::select(vec![1usize, 8, 8]),
    ) |version, dtype, seed| {
        let up = |size: usize| size.next_multiple_of(step);
        let dims = sizes([b, nh, s, up(dhqk), up(dhhv)]);
        assert_right(version, &Problem { seed, ..Problem::new(dims, dtype) });
    }
}

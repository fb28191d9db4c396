//! Every version against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::qkv::sizes;
use lab_harness::suite::{assert_stage, assert_version};
use lab_harness::{Problem, Version};
use proptest::prelude::*;
use qkv_v2::{CLUSTER, REORDERED, RESIDENT, STAGE, WGMMA};

#[test]
fn the_other_order() {
    assert_version(&STAGE, &REORDERED);
}

#[test]
fn warpgroups() {
    assert_version(&STAGE, &WGMMA);
}

#[test]
fn a_cluster_a_head() {
    assert_version(&STAGE, &CLUSTER);
}

#[test]
fn blocks_that_stay() {
    assert_version(&STAGE, &RESIDENT);
}

#[test]
fn every_version_is_tested_above() {
    assert_eq!(STAGE.versions.len(), 4);
}

#[test]
fn what_else_must_hold() {
    assert_stage(&STAGE);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_is_right(
        b in 1usize..3,
        nh in 1usize..3,
        // Of a single key q · k may nearly cancel, and no relative bound holds.
        s in 8usize..150,
        dhqk in 1usize..140,
        dhhv in 1usize..140,
        // Most cases in packs.
        step in prop::sample::select(vec![1usize, 8, 8]),
        seed in 0u64..1000,
    ) {
        let device = lab_harness::suite::emulator().unwrap();
        let up = |size: usize| size.next_multiple_of(step);
        for version in [&REORDERED, &WGMMA, &CLUSTER, &RESIDENT] {
            for &dtype in version.info().dtypes {
                let dims = sizes([b, nh, s, up(dhqk), up(dhhv)]);
                let problem = Problem { seed, ..Problem::new(dims, dtype) };
                let case = lab_harness::suite::check(version, &device, &problem);
                prop_assert!(case.passed(), "{}", case.describe());
            }
        }
    }
}

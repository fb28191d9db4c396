//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::qkv::sizes;
use lab_harness::suite::{assert_stage, assert_version};
use lab_harness::{Problem, Version};
use proptest::prelude::*;
use qkv_v1::{BLOCK_TILE, STAGE};

#[test]
fn block_tile() {
    assert_version(&STAGE, &BLOCK_TILE);
    assert_eq!(STAGE.versions.len(), 1);
}

#[test]
fn what_else_must_hold() {
    assert_stage(&STAGE);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_is_right(
        b in 1usize..3,
        nh in 1usize..3,
        s in 1usize..100,
        dhqk in 1usize..140,
        dhhv in 1usize..140,
        // Half of the cases in packs.
        step in prop::sample::select(vec![1usize, 8]),
        seed in 0u64..1000,
    ) {
        let device = lab_harness::suite::emulator().unwrap();
        let up = |size: usize| size.next_multiple_of(step);
        for &dtype in BLOCK_TILE.info().dtypes {
            let dims = sizes([b, nh, s, up(dhqk), up(dhhv)]);
            let problem = Problem { seed, ..Problem::new(dims, dtype) };
            let case = lab_harness::suite::check(&BLOCK_TILE, &device, &problem);
            prop_assert!(case.passed(), "{}", case.describe());
        }
    }
}

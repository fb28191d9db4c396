//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::qkv::sizes;
use lab_harness::suite::{assert_stage, assert_version};
use lab_harness::{Problem, Version};
use proptest::prelude::*;
use vlstm_fw_v1::{ONLINE, STAGE};

#[test]
fn online() {
    assert_version(&STAGE, &ONLINE);
    assert_eq!(STAGE.versions.len(), 1);
}

#[test]
fn what_else_must_hold() {
    assert_stage(&STAGE);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_is_right(
        b in 1usize..3,
        nh in 1usize..3,
        s in 1usize..150,
        // In sixteens.
        dhqk in 1usize..=9,
        dhhv in 1usize..=9,
        seed in 0u64..1000,
    ) {
        let device = lab_harness::suite::emulator().unwrap();
        for &dtype in ONLINE.info().dtypes {
            let dims = sizes([b, nh, s, 16 * dhqk, 16 * dhhv]);
            let problem = Problem { seed, ..Problem::new(dims, dtype) };
            let case = lab_harness::suite::check(&ONLINE, &device, &problem);
            prop_assert!(case.passed(), "{}", case.describe());
        }
    }
}

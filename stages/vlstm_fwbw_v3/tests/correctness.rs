//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_device::DType;
use lab_harness::Problem;
use lab_harness::qkv::sizes;
use lab_harness::suite::{assert_stage, assert_version, check, emulator};
use proptest::prelude::*;
use vlstm_fwbw_v3::{CARRIED, CHUNKS, LONG, STAGE, TOGETHER};

#[test]
fn v0_chunks() {
    assert_version(&STAGE, &CHUNKS);
}

#[test]
fn v1_long() {
    assert_version(&STAGE, &LONG);
}

#[test]
fn v2_together() {
    assert_version(&STAGE, &TOGETHER);
}

#[test]
fn v3_carried() {
    assert_version(&STAGE, &CARRIED);
    assert_eq!(STAGE.versions.len(), 4);
}

#[test]
fn what_else_must_hold() {
    assert_stage(&STAGE);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_is_right(
        b in 1usize..3,
        nh in 1usize..3,
        s in 1usize..300,
        // In sixteens.
        dhqk in 1usize..=9,
        dhhv in 1usize..=9,
        seed in 0u64..1000,
    ) {
        let device = emulator().unwrap();
        for (version, dtype) in [(&CHUNKS, DType::F16), (&CARRIED, DType::BF16)] {
            let dims = sizes([b, nh, s, 16 * dhqk, 16 * dhhv]);
            let problem = Problem { seed, ..Problem::new(dims, dtype) };
            let case = check(version, &device, &problem);
            prop_assert!(case.passed(), "{}", case.describe());
        }
    }
}

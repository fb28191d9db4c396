//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::Problem;
use lab_harness::slstm::sizes;
use lab_harness::suite::{assert_stage, assert_version};
use proptest::prelude::*;
use slstm_fused::{CELL, FORWARD, HEADS, STAGE};

#[test]
fn cell() {
    assert_version(&STAGE, &CELL);
}

#[test]
fn heads() {
    assert_version(&STAGE, &HEADS);
}

#[test]
fn forward_alone() {
    FORWARD.iter().for_each(|version| assert_version(&STAGE, version));
    assert_eq!(STAGE.versions.len(), 2 + FORWARD.len());
}

#[test]
fn what_else_must_hold() {
    assert_stage(&STAGE);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    // A handful of numbers may nearly cancel, and then has a large relative error: no heads of one unit.
    #[test]
    fn any_shape_is_right(
        b in 1usize..12,
        t in 1usize..8,
        nh in 1usize..4,
        dh in 8usize..100,
        seed in 0u64..1000,
    ) {
        let device = lab_harness::suite::emulator().unwrap();
        for version in STAGE.versions {
            for &dtype in version.info().dtypes {
                let problem = Problem { seed, ..Problem::new(sizes([b, t, nh, dh]), dtype) };
                let case = lab_harness::suite::check(*version, &device, &problem);
                prop_assert!(case.passed(), "{}", case.describe());
            }
        }
    }
}

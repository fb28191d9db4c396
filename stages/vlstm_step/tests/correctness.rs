//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::{assert_stage, assert_version};
use lab_harness::vlstm::step::sizes;
use lab_harness::{Options, Problem};
use proptest::prelude::*;
use vlstm_step::{PACKS, RING, SIMPLE, SLICES, STAGE};

#[test]
fn simple() {
    assert_version(&STAGE, &SIMPLE);
}

#[test]
fn packs() {
    assert_version(&STAGE, &PACKS);
}

#[test]
fn slices() {
    assert_version(&STAGE, &SLICES);
}

#[test]
fn ring() {
    assert_version(&STAGE, &RING);
    assert_eq!(STAGE.versions.len(), 4);
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
        nh in 1usize..4,
        // In sixteens.
        dhqk in 1usize..=32,
        dhhv in 1usize..=32,
        narrow in any::<bool>(),
        seed in 0u64..1000,
    ) {
        let device = lab_harness::suite::emulator().unwrap();
        for version in STAGE.versions {
            for &dtype in version.info().dtypes {
                let dims = sizes([b, nh, 16 * dhqk, 16 * dhhv]);
                let state = if narrow { "auto" } else { "f32" };
                let options = Options::parse(&[format!("state={state}")], version.info()).unwrap();
                let problem = Problem { seed, options, ..Problem::new(dims, dtype) };
                let case = lab_harness::suite::check(*version, &device, &problem);
                prop_assert!(case.passed(), "{}", case.describe());
            }
        }
    }
}

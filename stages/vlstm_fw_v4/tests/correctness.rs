//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::qkv::sizes;
use lab_harness::suite::{assert_stage, assert_version};
use lab_harness::{Problem, Stage, Version};
use proptest::prelude::*;
use vlstm_fw_v4::{PACKED, PARTS, ROLES, STAGE, STEPS, WIDE};

#[test]
fn steps() {
    assert_version(&STAGE, &STEPS);
}

#[test]
fn roles() {
    assert_version(&STAGE, &ROLES);
}

#[test]
fn wide() {
    assert_version(&STAGE, &WIDE);
}

#[test]
fn segments() {
    assert_version(&STAGE, &PARTS);
}

#[test]
fn packed() {
    assert_version(&STAGE, &PACKED);
    assert_eq!(STAGE.versions.len(), 5);
}

/// `ROLES` launches a kernel that `PARTS` launches, too, where there is one segment, and has no more to show than its results:
/// `lab selftest` asks it all the same. What takes long is asked of the first and the last of these.
static ASKED: [&dyn Version; 4] = [&STEPS, &PARTS, &PACKED, &WIDE];

#[test]
fn what_else_must_hold() {
    assert_stage(&Stage { versions: &ASKED, ..STAGE });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_is_right(
        b in 1usize..3,
        nh in 1usize..3,
        s in 1usize..300,
        // In sixteens.
        dhqk in 1usize..=8,
        dhhv in 1usize..=9,
        seed in 0u64..1000,
    ) {
        let device = lab_harness::suite::emulator().unwrap();
        for &dtype in PARTS.info().dtypes {
            let dims = sizes([b, nh, s, 16 * dhqk, 16 * dhhv]);
            let problem = Problem { seed, ..Problem::new(dims, dtype) };
            let case = lab_harness::suite::check(&PARTS, &device, &problem);
            prop_assert!(case.passed(), "{}", case.describe());
        }
    }
}

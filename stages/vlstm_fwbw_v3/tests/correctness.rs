//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_device::DType;
use lab_families::qkv::sizes;
use lab_harness::suite::{assert_right, assert_version};
use lab_harness::{Problem, random_problems, stage_checks};
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

stage_checks!(STAGE);

random_problems! {
    cases: 6, of: [(&CHUNKS, DType::F16), (&CARRIED, DType::BF16)];
    (
        b in 1usize..3,
        nh in 1usize..3,
        s in 1usize..300,
        // In sixteens.
        dhqk in 1usize..=9,
        dhhv in 1usize..=9,
    ) |version, dtype, seed| {
        let dims = sizes([b, nh, s, 16 * dhqk, 16 * dhhv]);
        assert_right(version, &Problem { seed, ..Problem::new(dims, dtype) });
    }
}

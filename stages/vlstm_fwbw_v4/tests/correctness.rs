//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_families::qkv::sizes;
use lab_harness::suite::{check, emulator};
use lab_harness::{Problem, Stage, Version, stage_checks, version_tests};
use proptest::prelude::*;
use vlstm_fwbw_v4::{
    DECAY, PACKED, PACKED_DECAY, PACKED_SIGMOID, SEGMENTED, SIGMOID, STAGE, TOGETHER, WALKS, WIDE,
};

version_tests! {
    STAGE:
    walks = WALKS,
    together = TOGETHER,
    segments = SEGMENTED,
    wide = WIDE,
    packed = PACKED,
    packed_decay = PACKED_DECAY,
    packed_sigmoid = PACKED_SIGMOID,
    decay = DECAY,
    sigmoid = SIGMOID,
}

/// The first two versions launch the kernels of the third, and have no more to show than their results: `lab selftest` asks
/// them all the same. What takes long is asked of the first and the last of these.
static ASKED: [&dyn Version; 7] =
    [&SEGMENTED, &WIDE, &PACKED, &PACKED_DECAY, &PACKED_SIGMOID, &DECAY, &SIGMOID];

stage_checks!(Stage { versions: &ASKED, ..STAGE });

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_is_right(
        b in 1usize..3,
        nh in 1usize..3,
        s in 1usize..400,
        // In sixteens.
        dhqk in 1usize..=8,
        dhhv in 1usize..=16,
        seed in 0u64..1000,
    ) {
        // Each problem in one type.
        let dtypes = TOGETHER.info().dtypes;
        let dims = sizes([b, nh, s, 16 * dhqk, 16 * dhhv]);
        let problem = Problem { seed, ..Problem::new(dims, dtypes[s % dtypes.len()]) };
        let case = check(&TOGETHER, &emulator().unwrap(), &problem);
        prop_assert!(case.passed(), "{}", case.describe());
    }
}

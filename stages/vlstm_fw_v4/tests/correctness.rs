//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_families::qkv::sizes;
use lab_harness::suite::{assert_right, in_all_types};
use lab_harness::{Problem, Stage, Version, random_problems, stage_checks, version_tests};
use vlstm_fw_v4::{
    DECAY, PACKED, PACKED_DECAY, PACKED_SIGMOID, ROLES, SEGMENTED, SIGMOID, STAGE, STEPS, WIDE,
};

version_tests! {
    STAGE:
    steps = STEPS,
    roles = ROLES,
    wide = WIDE,
    segments = SEGMENTED,
    packed = PACKED,
    packed_decay = PACKED_DECAY,
    packed_sigmoid = PACKED_SIGMOID,
    decay = DECAY,
    sigmoid = SIGMOID,
}

/// `ROLES` launches a kernel that `SEGMENTED` launches, too, where there is one segment, and has no more to show than its results:
/// `lab selftest` asks it all the same. What takes long is asked of the first and the last of these.
static ASKED: [&dyn Version; 8] =
    [&STEPS, &SEGMENTED, &PACKED, &WIDE, &PACKED_DECAY, &PACKED_SIGMOID, &DECAY, &SIGMOID];

stage_checks!(Stage { versions: &ASKED, ..STAGE });

random_problems! {
    cases: 10, of: in_all_types(&[&SEGMENTED]);
    (
        b in 1usize..3,
        nh in 1usize..3,
        s in 1usize..300,
        // In sixteens.
        dhqk in 1usize..=8,
        dhhv in 1usize..=9,
    ) |version, dtype, seed| {
        let dims = sizes([b, nh, s, 16 * dhqk, 16 * dhhv]);
        assert_right(version, &Problem { seed, ..Problem::new(dims, dtype) });
    }
}

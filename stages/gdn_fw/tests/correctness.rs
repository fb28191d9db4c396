//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use gdn_fw::{BLOCKS, CHUNKS, FUSED, PACKED, PACKED_RESIDENT, RESIDENT, STAGE, STEPS};
use lab_families::gdn::sizes;
use lab_harness::suite::{assert_right, in_all_types};
use lab_harness::{Problem, Version, random_problems, stage_checks, version_tests};

version_tests! {
    STAGE:
    steps = STEPS,
    chunks = CHUNKS,
    blocks = BLOCKS,
    resident = RESIDENT,
    packed = PACKED,
    packed_resident = PACKED_RESIDENT,
    fused = FUSED,
}

stage_checks!(STAGE);

static UNPACKED: [&dyn Version; 5] = [&STEPS, &CHUNKS, &BLOCKS, &RESIDENT, &FUSED];

random_problems! {
    cases: 6, of: in_all_types(&UNPACKED);
    (
        b in 1usize..3,
        nkv in 1usize..3,
        group in 1usize..3,
        s in 8usize..150,
        // In sixteens.
        dhqk in 1usize..=5,
        dhhv in 1usize..=5,
    ) |version, dtype, seed| {
        let dims = sizes([b, nkv * group, nkv, s, 16 * dhqk, 16 * dhhv]);
        assert_right(version, &Problem { seed, ..Problem::new(dims, dtype) });
    }
}

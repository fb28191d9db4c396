//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_device::DType;
use lab_families::qkv::sizes;
use lab_harness::suite::assert_right;
use lab_harness::{Problem, random_problems, stage_checks, version_tests};
use vlstm_fwbw_v3::{CARRIED, CHUNKS, LONG, STAGE, TOGETHER};

version_tests! {
    STAGE:
    v0_chunks = CHUNKS,
    v1_long = LONG,
    v2_together = TOGETHER,
    v3_carried = CARRIED,
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

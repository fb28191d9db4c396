//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_families::qkv::sizes;
use lab_harness::suite::{assert_right, in_all_types};
use lab_harness::{Problem, random_problems, stage_checks, version_tests};
use vlstm_fw_v0::{CAUSAL, STAGE};

version_tests!(STAGE: causal = CAUSAL);

stage_checks!(STAGE);

random_problems! {
    cases: 10, of: in_all_types(&[&CAUSAL]);
    (
        b in 1usize..3,
        nh in 1usize..3,
        s in 1usize..150,
        // In sixteens.
        dhqk in 1usize..=9,
        dhhv in 1usize..=9,
    ) |version, dtype, seed| {
        let dims = sizes([b, nh, s, 16 * dhqk, 16 * dhhv]);
        assert_right(version, &Problem { seed, ..Problem::new(dims, dtype) });
    }
}

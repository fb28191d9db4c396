//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_families::qkv::sizes;
use lab_harness::suite::{assert_right_within, in_all_types};
use lab_harness::{Problem, random_problems, stage_checks, version_tests};
use vlstm_fwbw_v0::{FLAGS, GRID_SYNC, STAGE};

version_tests! {
    STAGE:
    grid_sync = GRID_SYNC,
    flags = FLAGS,
}

stage_checks!(STAGE);

random_problems! {
    cases: 8, of: in_all_types(&[&FLAGS]);
    (
        b in 1usize..3,
        nh in 1usize..3,
        s in 1usize..140,
        dhqk in 1usize..9,
        dhhv in 1usize..9,
    ) |version, dtype, seed| {
        let dims = sizes([b, nh, s, 16 * dhqk, 16 * dhhv]);
        let problem = Problem { seed, ..Problem::new(dims, dtype) };
        // A row whose l_i nearly cancels magnifies roundings as it likes.
        assert_right_within(10.0, version, &problem);
    }
}

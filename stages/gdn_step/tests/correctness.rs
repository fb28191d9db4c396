//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use gdn_step::{ONCE, RUNS, SIMPLE, STAGE};
use lab_families::gdn::step::sizes;
use lab_harness::suite::{assert_right, in_all_types};
use lab_harness::{Problem, random_problems, stage_checks, version_tests};

version_tests! {
    STAGE:
    simple = SIMPLE,
    once = ONCE,
    runs = RUNS,
}

stage_checks!(STAGE);

random_problems! {
    cases: 10, of: in_all_types(STAGE.versions);
    (
        b in 1usize..3,
        nkv in 1usize..3,
        group in 1usize..3,
        // In sixteens.
        dhqk in 1usize..=16,
        dhhv in 1usize..=16,
    ) |version, dtype, seed| {
        let dims = sizes([b, nkv * group, nkv, 16 * dhqk, 16 * dhhv]);
        assert_right(version, &Problem { seed, ..Problem::new(dims, dtype) });
    }
}

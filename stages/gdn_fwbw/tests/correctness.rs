//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use gdn_fwbw::{CHUNKS, PACKED, STAGE, TENSOR};
use lab_families::gdn::sizes;
use lab_harness::suite::{assert_right, in_all_types};
use lab_harness::{Problem, random_problems, stage_checks, version_tests};

version_tests!(STAGE: chunks = CHUNKS, packed = PACKED, tensor = TENSOR);

stage_checks!(STAGE);

random_problems! {
    cases: 3, of: in_all_types(&[&CHUNKS, &TENSOR]);
    (
        b in 1usize..3,
        nkv in 1usize..3,
        group in 1usize..3,
        s in 8usize..100,
        // In sixteens.
        dhqk in 1usize..=3,
        dhhv in 1usize..=3,
    ) |version, dtype, seed| {
        let dims = sizes([b, nkv * group, nkv, s, 16 * dhqk, 16 * dhhv]);
        assert_right(version, &Problem { seed, ..Problem::new(dims, dtype) });
    }
}

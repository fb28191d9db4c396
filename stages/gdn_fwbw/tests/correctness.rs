//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use gdn_fwbw::{CHUNKS, PACKED, STAGE, TENSOR};
use lab_device::DType;
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

/// Of few keys and positions nothing averages out: a share of sums of norms failed for one seed in three.
#[test]
fn few_keys_and_positions_are_right_of_each_seed() {
    for (seed, dtype) in (0..8).zip([DType::BF16, DType::F16].into_iter().cycle()) {
        let problem = Problem { seed, ..Problem::new(sizes([2, 4, 2, 9, 16, 48]), dtype) };
        assert_right(&TENSOR, &problem);
    }
}

//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_families::qkv::sizes;
use lab_harness::suite::{check, emulator};
use lab_harness::{Problem, stage_checks, version_tests};
use proptest::prelude::*;
use vlstm_fwbw_v2::{AHEAD, FACTORED, MMA, SKIP, STAGE, WGMMA};

version_tests! {
    STAGE:
    mma = MMA,
    wgmma = WGMMA,
    factors = FACTORED,
    ahead = AHEAD,
    skip = SKIP,
}

stage_checks!(STAGE);

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_is_right(
        b in 1usize..3,
        nh in 1usize..3,
        s in 1usize..300,
        // In sixteens.
        dhqk in 1usize..=8,
        dhhv in 1usize..=8,
        seed in 0u64..1000,
    ) {
        // Each problem to one version, in one type.
        let version = STAGE.versions[seed as usize % STAGE.versions.len()];
        let dtypes = version.info().dtypes;
        let dims = sizes([b, nh, s, 16 * dhqk, 16 * dhhv]);
        let problem = Problem { seed, ..Problem::new(dims, dtypes[s % dtypes.len()]) };
        let case = check(version, &emulator().unwrap(), &problem);
        prop_assert!(case.passed(), "{}", case.describe());
    }
}

//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_families::slstm::sizes;
use lab_harness::suite::{assert_right, in_all_types};
use lab_harness::{Problem, random_problems, stage_checks, version_tests};
use slstm_fused::{CELL, FORWARD, HEADS, STAGE};

version_tests! {
    STAGE:
    cell = CELL,
    heads = HEADS,
    forward_alone = [FORWARD[0], FORWARD[1]],
}

stage_checks!(STAGE);

// A handful of numbers may nearly cancel, and then has a large relative error: no heads of one unit.
random_problems! {
    cases: 8, of: in_all_types(STAGE.versions);
    (
        b in 1usize..12,
        t in 1usize..8,
        nh in 1usize..4,
        dh in 8usize..100,
    ) |version, dtype, seed| {
        let dims = sizes([b, t, nh, dh]);
        assert_right(version, &Problem { seed, ..Problem::new(dims, dtype) });
    }
}

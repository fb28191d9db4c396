//! Every version against its f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use decode::{
    BYTES, COLUMNS, COLUMNS_INT8, DOTS, FLIGHT, FLIGHT_INT8, MMA, MMA_INT8, NAIVE, PERSISTENT,
    PERSISTENT_INT8, RING, RING_INT8, SPLIT, SPLIT_INT8, STAGE, UNITS, WARP, WGMMA, WGMMA_INT8,
};
use lab_harness::suite::{assert_right_within, in_all_types};
use lab_harness::{Dims, Problem, random_problems, stage_checks, version_tests};

version_tests! {
    STAGE:
    plain_versions = [NAIVE, WARP],
    flight = [FLIGHT, FLIGHT_INT8],
    mma = [MMA, MMA_INT8],
    persistent = [PERSISTENT, PERSISTENT_INT8],
    split = [SPLIT, SPLIT_INT8],
    columns = [COLUMNS, COLUMNS_INT8],
    ring = [RING, RING_INT8],
    wgmma = [WGMMA, WGMMA_INT8],
    bytes = [BYTES],
    dots = [DOTS],
    units = [UNITS],
}

stage_checks!(STAGE);

random_problems! {
    cases: 16, of: in_all_types(STAGE.versions);
    (rows in 1usize..17, n in 1usize..60, sixteens in 1usize..40) |version, dtype, seed| {
        let rows = rows.min(version.info().dims[0].max);
        let dims = Dims::new([("R", rows), ("N", n), ("K", 16 * sixteens)]);
        let problem = Problem { seed, ..Problem::new(dims, dtype) };
        // Errors of a few elements scatter more than those of many.
        assert_right_within(3.0, version, &problem);
    }
}

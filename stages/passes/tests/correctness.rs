//! Every operation against its f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::{assert_right_within, in_all_types};
use lab_harness::{Dims, Problem, random_problems, stage_checks, version_tests};
use passes::{
    ADAMW, APPEND_TO_CACHE, CROSS_ENTROPY, CROSS_ENTROPY_BACK, DROPOUT, EMBEDDING, EMBEDDING_BACK,
    HEAD_NORM, HEAD_NORM_BACK, MERGE_HEADS, RMS_NORM, RMS_NORM_BACK, ROPE, SOFT_CAP_GATES,
    SOFT_CAP_GATES_BACK, SPLIT_HEADS, STAGE, SWIGLU, SWIGLU_BACK, WIDEN,
};

version_tests! {
    STAGE:
    rms_norm = [RMS_NORM, RMS_NORM_BACK],
    head_norm = [HEAD_NORM, HEAD_NORM_BACK],
    swiglu = [SWIGLU, SWIGLU_BACK],
    soft_cap_gates = [SOFT_CAP_GATES, SOFT_CAP_GATES_BACK],
    heads = [SPLIT_HEADS, MERGE_HEADS],
    rope = [ROPE, APPEND_TO_CACHE],
    dropout = [DROPOUT, WIDEN],
    embedding = [EMBEDDING, EMBEDDING_BACK],
    cross_entropy = [CROSS_ENTROPY, CROSS_ENTROPY_BACK],
    adamw = ADAMW,
}

stage_checks!(STAGE);

random_problems! {
    cases: 24, of: in_all_types(STAGE.versions);
    (
        rows in 1usize..30,
        columns in 1usize..300,
        heads in 1usize..5,
    ) |version, dtype, seed| {
        let mut dims = Dims::default();
        for d in version.info().dims {
            dims.set(d.name, match d.name {
                "R" | "S" => rows,
                "B" => 1 + rows % 3,
                "NH" => heads,
                "N" => rows * columns,
                // With few tokens a loss is small beside the roundings of its two parts.
                "V" => 16 + columns,
                "D" => columns.next_multiple_of(2),
                // A layer norm of two columns leaves their order alone: its gradient is what cancels.
                "DHHV" => 8 + columns,
                _ => columns,
            });
        }
        let problem = Problem { seed, ..Problem::new(dims, dtype) };
        // Errors of a few elements scatter more than those of many.
        assert_right_within(3.0, version, &problem);
    }
}

//! Every operation against its f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::{assert_right_within, assert_version, in_all_types};
use lab_harness::{Dims, Problem, random_problems, stage_checks};
use passes::{
    ADAMW, APPEND_TO_CACHE, CROSS_ENTROPY, CROSS_ENTROPY_BACK, DROPOUT, EMBEDDING, EMBEDDING_BACK,
    HEAD_NORM, HEAD_NORM_BACK, MERGE_HEADS, RMS_NORM, RMS_NORM_BACK, ROPE, SOFT_CAP_GATES,
    SOFT_CAP_GATES_BACK, SPLIT_HEADS, STAGE, SWIGLU, SWIGLU_BACK, WIDEN,
};

#[test]
fn rms_norm() {
    assert_version(&STAGE, &RMS_NORM);
    assert_version(&STAGE, &RMS_NORM_BACK);
}

#[test]
fn head_norm() {
    assert_version(&STAGE, &HEAD_NORM);
    assert_version(&STAGE, &HEAD_NORM_BACK);
}

#[test]
fn swiglu() {
    assert_version(&STAGE, &SWIGLU);
    assert_version(&STAGE, &SWIGLU_BACK);
}

#[test]
fn soft_cap_gates() {
    assert_version(&STAGE, &SOFT_CAP_GATES);
    assert_version(&STAGE, &SOFT_CAP_GATES_BACK);
}

#[test]
fn heads() {
    assert_version(&STAGE, &SPLIT_HEADS);
    assert_version(&STAGE, &MERGE_HEADS);
}

#[test]
fn rope() {
    assert_version(&STAGE, &ROPE);
    assert_version(&STAGE, &APPEND_TO_CACHE);
}

#[test]
fn dropout() {
    assert_version(&STAGE, &DROPOUT);
    assert_version(&STAGE, &WIDEN);
}

#[test]
fn embedding() {
    assert_version(&STAGE, &EMBEDDING);
    assert_version(&STAGE, &EMBEDDING_BACK);
}

#[test]
fn cross_entropy() {
    assert_version(&STAGE, &CROSS_ENTROPY);
    assert_version(&STAGE, &CROSS_ENTROPY_BACK);
}

#[test]
fn adamw() {
    assert_version(&STAGE, &ADAMW);
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

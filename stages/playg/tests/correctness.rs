//! Every operation against its f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::{assert_right, assert_version, in_all_types};
use lab_harness::{Dims, Problem, Tensor, Version, compare, random_problems, stage_checks};
use playg::{OPERATIONS, STAGE};

fn family(names: &[&str]) {
    for name in names {
        let all: Vec<_> = OPERATIONS.iter().filter(|o| o.info().family.name() == *name).collect();
        assert!(!all.is_empty(), "{name}");
        all.into_iter().for_each(|o| assert_version(&STAGE, *o));
    }
}

#[test]
fn copies() {
    family(&["copy"]);
}

#[test]
fn vectors() {
    family(&["saxpy", "add", "mul", "relu", "sigmoid", "tanh"]);
}

#[test]
fn transposes() {
    family(&["transpose"]);
}

#[test]
fn sums() {
    family(&["sum"]);
}

#[test]
fn softmaxes() {
    family(&["softmax"]);
}

#[test]
fn layernorm() {
    family(&["layernorm"]);
}

#[test]
fn every_operation_is_of_a_family_above() {
    let tested = [
        "copy",
        "saxpy",
        "add",
        "mul",
        "relu",
        "sigmoid",
        "tanh",
        "transpose",
        "sum",
        "softmax",
        "layernorm",
    ];
    assert!(OPERATIONS.iter().all(|o| tested.contains(&o.info().family.name())));
}

/// What is timed beside the GPU computes the same.
#[test]
fn counterparts_on_the_host_are_right() {
    let mut found = 0;
    for operation in OPERATIONS {
        let problem = Problem::new(operation.info().small(), lab_device::DType::F32);
        let inputs = operation.inputs(&problem);
        let Some(mut host) = operation.cpu(&inputs) else { continue };
        host.run();
        found += 1;
        let out = Tensor::new(&inputs["x"].shape, &host.out);
        let outputs = lab_harness::tensor::tensors([("out", out)]);
        for c in compare(*operation, &inputs, &outputs, &problem.options, problem.dtype) {
            assert!(c.passed(), "{}: {c}", operation.info().name);
        }
    }
    assert_eq!(found, 6);
}

stage_checks!(STAGE);

random_problems! {
    cases: 24, of: in_all_types(STAGE.versions);
    (
        rows in 1usize..40,
        columns in 1usize..700,
    ) |version, dtype, seed| {
        let mut dims = Dims::default();
        for d in version.info().dims {
            dims.set(d.name, match d.name { "R" => rows, "C" => columns, _ => rows * columns });
        }
        assert_right(version, &Problem { seed, ..Problem::new(dims, dtype) });
    }
}

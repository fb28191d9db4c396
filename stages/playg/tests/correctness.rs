//! Every operation against its f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::{assert_version, check, devices};
use lab_harness::tensor::tensors;
use lab_harness::{Dims, Options, Problem, Tensor, Version, compare, run};
use playg::{OPERATIONS, Operation, SOFTMAX, SOFTMAX_ONLINE, SOFTMAX_REGISTERS, STAGE};
use proptest::prelude::*;

fn family(names: &[&str]) {
    for name in names {
        let all: Vec<_> = OPERATIONS.iter().filter(|o| o.info().family == *name).collect();
        assert!(!all.is_empty(), "{name}");
        all.into_iter().for_each(|o| assert_version(*o));
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
fn every_operation_is_of_a_family_above_and_a_version_of_the_stage() {
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
    assert!(OPERATIONS.iter().all(|o| tested.contains(&o.info().family)));
    let names: Vec<_> = OPERATIONS.iter().map(|o| o.info().name).collect();
    assert!(STAGE.versions.iter().map(|v| v.info().name).eq(names.iter().copied()));
}

/// 2^25 elements: the emulator in f32, a GPU in every type.
#[test]
fn large_problems() {
    for device in devices().unwrap() {
        for operation in OPERATIONS {
            let all = operation.info().dtypes;
            let emulated = device.kind() == lab_device::DeviceKind::Emulator;
            for &dtype in if emulated { &all[..1] } else { all } {
                let case = check(*operation, &device, &Problem::new(operation.large(), dtype));
                assert!(case.passed(), "{}", case.describe());
            }
        }
    }
}

/// Runs f32 rows through every softmax on every device and hands out each result.
fn softmax_of(shape: &[usize], x: &[f32], look: impl Fn(&[f64])) {
    let inputs = tensors([("x", Tensor::new(shape, x))]);
    for device in devices().unwrap() {
        for version in [&SOFTMAX, &SOFTMAX_ONLINE, &SOFTMAX_REGISTERS] as [&Operation; 3] {
            let outputs = run(version, &device, &inputs, &Options::default()).unwrap();
            let dtype = lab_device::DType::F32;
            for c in compare(version, &inputs, &outputs, &Options::default(), dtype) {
                assert!(c.passed(), "{} {c:?}", version.info().name);
            }
            look(&outputs["out"].values());
        }
    }
}

#[test]
fn softmax_of_large_values_does_not_overflow() {
    softmax_of(&[2, 3], &[1e30, 1e30, -1e30, 1000.0, 999.0, -1000.0], |p| {
        assert!(p.iter().all(|v| v.is_finite()));
        assert_eq!(p[..3], [0.5, 0.5, 0.0]);
    });
}

#[test]
fn softmax_spreads_nan_over_its_row_and_no_further() {
    let mut x = vec![0.5f32; 3 * 300];
    x[300 + 7] = f32::NAN;
    softmax_of(&[3, 300], &x, |p| {
        assert!(p[300..600].iter().all(|v| v.is_nan()));
        assert!(p[..300].iter().chain(&p[600..]).all(|v| v.is_finite()));
    });
    softmax_of(&[1, 4], &[f32::NAN; 4], |p| assert!(p.iter().all(|v| v.is_nan())));
}

#[test]
fn softmax_takes_minus_infinity_as_a_mask() {
    let mut x = vec![f32::NEG_INFINITY; 600];
    (x[3], x[599]) = (1.0, 1.0);
    softmax_of(&[1, 600], &x, |p| assert_eq!((p[3], p[599], p[0]), (0.5, 0.5, 0.0)));
    // A row of nothing but masks has no distribution.
    softmax_of(&[1, 5], &[f32::NEG_INFINITY; 5], |p| assert!(p.iter().all(|v| v.is_nan())));
}

#[test]
fn results_do_not_change_from_run_to_run() {
    for device in devices().unwrap() {
        for version in STAGE.versions {
            let info = version.info();
            if info.name == "sum_atomic" {
                continue; // its order, and so its last digits, are chance
            }
            let problem = Problem::new(info.small(), info.dtypes[0]);
            let inputs = version.inputs(&problem);
            let once = run(*version, &device, &inputs, &problem.options).unwrap();
            let twice = run(*version, &device, &inputs, &problem.options).unwrap();
            assert_eq!(once, twice, "{} on {}", info.full_name(), device.name());
        }
    }
}

#[test]
fn every_kernel_loads_on_every_device() {
    for device in devices().unwrap() {
        let kernels = STAGE.load_all(&device).unwrap();
        let listed: usize = STAGE.kernels.iter().map(|k| k.instantiations.len()).sum();
        assert_eq!(kernels.len(), listed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_is_right(rows in 1usize..40, columns in 1usize..700, seed in 0u64..1000) {
        let device = lab_device::Device::emulator().unwrap();
        for version in STAGE.versions {
            let info = version.info();
            for &dtype in info.dtypes {
                let mut dims = Dims::default();
                for d in info.dims {
                    dims.set(d.name, match d.name { "R" => rows, "C" => columns, _ => rows * columns });
                }
                let problem = Problem { seed, ..Problem::new(dims, dtype) };
                let case = lab_harness::suite::check(*version, &device, &problem);
                prop_assert!(case.passed(), "{}", case.describe());
            }
        }
    }
}

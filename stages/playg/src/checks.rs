//! What must hold beside every operation's error bounds.

use lab_device::Device;
use lab_harness::suite::{Check, check, every_kernel_loads, without_checks};
use lab_harness::tensor::tensors;
use lab_harness::{Options, Problem, Tensor, Version, compare, run};

use crate::{OPERATIONS, Operation, SOFTMAX, SOFTMAX_ONLINE, SOFTMAX_REGISTERS, STAGE};

pub(crate) static CHECKS: &[Check] = &[
    Check { name: "large_problems", run: large_problems },
    Check {
        name: "softmax_of_large_values_does_not_overflow",
        run: softmax_of_large_values_does_not_overflow,
    },
    Check {
        name: "softmax_spreads_nan_over_its_row_and_no_further",
        run: softmax_spreads_nan_over_its_row_and_no_further,
    },
    Check {
        name: "softmax_takes_minus_infinity_as_a_mask",
        run: softmax_takes_minus_infinity_as_a_mask,
    },
    Check {
        name: "results_do_not_change_from_run_to_run",
        run: results_do_not_change_from_run_to_run,
    },
    Check { name: "every_kernel_loads_on_every_device", run: every_kernel_loads_on_every_device },
];

/// 2^25 elements in every type; on the emulator 2^22, in f32 and without its checks.
fn large_problems(device: &Device) {
    let device = &without_checks(device).unwrap();
    for operation in OPERATIONS {
        let all = operation.info().dtypes;
        let emulated = device.kind() == lab_device::DeviceKind::Emulator;
        for &dtype in if emulated { &all[..1] } else { all } {
            let mut dims = operation.large();
            if emulated {
                let rows = operation.info().dims[0].name;
                dims.set(rows, dims.get(rows) / 8);
            }
            let case = check(*operation, device, &Problem::new(dims, dtype));
            assert!(case.passed(), "{}", case.describe());
        }
    }
}

/// Runs f32 rows through every softmax and hands out each result.
fn softmax_of(device: &Device, shape: &[usize], x: &[f32], look: impl Fn(&[f64])) {
    let inputs = tensors([("x", Tensor::new(shape, x))]);
    {
        for version in [&SOFTMAX, &SOFTMAX_ONLINE, &SOFTMAX_REGISTERS] as [&Operation; 3] {
            let outputs = run(version, device, &inputs, &Options::default()).unwrap();
            let dtype = lab_device::DType::F32;
            for c in compare(version, &inputs, &outputs, &Options::default(), dtype) {
                assert!(c.passed(), "{} {c:?}", version.info().name);
            }
            look(&outputs["out"].values());
        }
    }
}

fn softmax_of_large_values_does_not_overflow(device: &Device) {
    softmax_of(device, &[2, 3], &[1e30, 1e30, -1e30, 1000.0, 999.0, -1000.0], |p| {
        assert!(p.iter().all(|v| v.is_finite()));
        assert_eq!(p[..3], [0.5, 0.5, 0.0]);
    });
    // The maximum far below zero: one that starts from 0 would leave a sum of nothing.
    softmax_of(device, &[1, 3], &[-2000.0, -1000.0, -1000.0], |p| assert_eq!(p, [0.0, 0.5, 0.5]));
    // The maximum at each place in turn: none may be passed over.
    for at in (0..600).step_by(100) {
        let mut x = vec![0.0f32; 600];
        x[at] = 1000.0;
        softmax_of(device, &[1, 600], &x, |p| assert_eq!((p[at], p.iter().sum()), (1.0, 1.0)));
    }
}

fn softmax_spreads_nan_over_its_row_and_no_further(device: &Device) {
    let mut x = vec![0.5f32; 3 * 300];
    x[300 + 7] = f32::NAN;
    softmax_of(device, &[3, 300], &x, |p| {
        assert!(p[300..600].iter().all(|v| v.is_nan()));
        assert!(p[..300].iter().chain(&p[600..]).all(|v| v.is_finite()));
    });
    softmax_of(device, &[1, 4], &[f32::NAN; 4], |p| assert!(p.iter().all(|v| v.is_nan())));
}

fn softmax_takes_minus_infinity_as_a_mask(device: &Device) {
    let mut x = vec![f32::NEG_INFINITY; 600];
    (x[3], x[599]) = (1.0, 1.0);
    softmax_of(device, &[1, 600], &x, |p| assert_eq!((p[3], p[599], p[0]), (0.5, 0.5, 0.0)));
    // A row of nothing but masks has no distribution.
    softmax_of(device, &[1, 5], &[f32::NEG_INFINITY; 5], |p| assert!(p.iter().all(|v| v.is_nan())));
}

fn results_do_not_change_from_run_to_run(device: &Device) {
    for version in STAGE.versions {
        let info = version.info();
        if info.name == "sum_atomic" {
            continue; // its order, and so its last digits, are chance
        }
        let problem = Problem::new(info.small(), info.dtypes[0]);
        let inputs = version.inputs(&problem);
        let once = run(*version, device, &inputs, &problem.options).unwrap();
        let twice = run(*version, device, &inputs, &problem.options).unwrap();
        assert_eq!(once, twice, "{} on {}", info.full_name(), device.name());
    }
}

fn every_kernel_loads_on_every_device(device: &Device) {
    every_kernel_loads(&STAGE, device);
}

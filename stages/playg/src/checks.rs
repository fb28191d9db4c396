//! What must hold beside every operation's error bounds.

use lab_device::Device;
use lab_harness::suite::{Check, Tier, check, without_checks};
use lab_harness::tensor::tensors;
use lab_harness::{Options, Problem, Tensor, Version, compare, run};

use crate::{OPERATIONS, Operation, SOFTMAX, SOFTMAX_ONLINE, SOFTMAX_REGISTERS, STAGE};

pub(crate) static CHECKS: &[Check] = &[
    Check::new("large_problems", large_problems).in_tier(Tier::Large),
    Check::new(
        "softmax_of_large_values_does_not_overflow",
        softmax_of_large_values_does_not_overflow,
    ),
    Check::new(
        "softmax_spreads_nan_over_its_row_and_no_further",
        softmax_spreads_nan_over_its_row_and_no_further,
    ),
    Check::new("softmax_takes_minus_infinity_as_a_mask", softmax_takes_minus_infinity_as_a_mask),
    Check::new("results_do_not_change_from_run_to_run", results_do_not_change_from_run_to_run),
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

/// Runs f32 rows, of which `what` says what they are, through every softmax and hands out each result.
fn softmax_of(device: &Device, what: &str, shape: &[usize], x: &[f32], look: impl Fn(&[f64])) {
    let inputs = tensors([("x", Tensor::new(shape, x))]);
    {
        for version in [&SOFTMAX, &SOFTMAX_ONLINE, &SOFTMAX_REGISTERS] as [&Operation; 3] {
            let outputs = run(version, device, &inputs, &Options::default()).unwrap();
            let dtype = lab_device::DType::F32;
            for c in compare(version, &inputs, &outputs, &Options::default(), dtype) {
                assert!(c.passed(), "{what}: {}: {c}", version.info().name);
            }
            look(&outputs["out"].values());
        }
    }
}

fn softmax_of_large_values_does_not_overflow(device: &Device) {
    let x = [1e30, 1e30, -1e30, 1000.0, 999.0, -1000.0];
    softmax_of(device, "large values", &[2, 3], &x, |p| {
        assert!(p.iter().all(|v| v.is_finite()), "softmax of large values is not finite: {p:?}");
        assert_eq!(p[..3], [0.5, 0.5, 0.0], "softmax of 1e30, 1e30, -1e30");
    });
    // The maximum far below zero: one that starts from 0 would leave a sum of nothing.
    let x = [-2000.0, -1000.0, -1000.0];
    softmax_of(device, "a maximum far below zero", &[1, 3], &x, |p| {
        assert_eq!(p, [0.0, 0.5, 0.5], "softmax of -2000, -1000, -1000");
    });
    // The maximum at each place in turn: none may be passed over.
    for at in (0..600).step_by(100) {
        let mut x = vec![0.0f32; 600];
        x[at] = 1000.0;
        let what = format!("zeros, but 1000 at {at}");
        softmax_of(device, &what, &[1, 600], &x, |p| {
            assert_eq!(
                (p[at], p.iter().sum()),
                (1.0, 1.0),
                "{what}: the value at {at}, and the sum"
            );
        });
    }
}

fn softmax_spreads_nan_over_its_row_and_no_further(device: &Device) {
    let mut x = vec![0.5f32; 3 * 300];
    x[300 + 7] = f32::NAN;
    let what = "of three rows of 300 only the second holds a NaN: all of its softmax is NaN, none of the others'";
    softmax_of(device, what, &[3, 300], &x, |p| {
        for (at, v) in p.iter().enumerate() {
            assert_eq!(v.is_nan(), (300..600).contains(&at), "{what}: whether element {at} is NaN");
        }
    });
    let what = "a row of nothing but NaN, whose softmax is NaN";
    softmax_of(device, what, &[1, 4], &[f32::NAN; 4], |p| {
        assert!(p.iter().all(|v| v.is_nan()), "{what}: {p:?}");
    });
}

fn softmax_takes_minus_infinity_as_a_mask(device: &Device) {
    let mut x = vec![f32::NEG_INFINITY; 600];
    (x[3], x[599]) = (1.0, 1.0);
    let what = "1 at 3 and 599, and -∞, a mask, elsewhere";
    softmax_of(device, what, &[1, 600], &x, |p| {
        assert_eq!((p[3], p[599], p[0]), (0.5, 0.5, 0.0), "{what}: at 3, at 599, at 0");
    });
    // A row of nothing but masks has no distribution.
    let what = "a row of nothing but -∞, whose softmax is NaN";
    softmax_of(device, what, &[1, 5], &[f32::NEG_INFINITY; 5], |p| {
        assert!(p.iter().all(|v| v.is_nan()), "{what}: {p:?}");
    });
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

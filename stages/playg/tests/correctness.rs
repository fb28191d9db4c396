//! Every operation against its f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::{assert_version, devices};
use lab_harness::tensor::tensors;
use lab_harness::{Dims, Options, Problem, Tensor, Version, compare, run};
use playg::{STAGE, Saxpy, Softmax, Sum};
use proptest::prelude::*;

#[test]
fn saxpy() {
    assert_version(&Saxpy);
}

#[test]
fn softmax_two_pass() {
    assert_version(&Softmax::TWO_PASS);
}

#[test]
fn softmax_online() {
    assert_version(&Softmax::ONLINE);
}

#[test]
fn sum() {
    assert_version(&Sum);
}

/// Runs f32 rows through both softmaxes on every device and hands out each result.
fn softmax_of(shape: &[usize], x: &[f32], look: impl Fn(&[f64])) {
    let inputs = tensors([("x", Tensor::new(shape, x))]);
    for device in devices().unwrap() {
        for version in [&Softmax::TWO_PASS, &Softmax::ONLINE] {
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
        assert_eq!(kernels.len(), 4 + 6 + 4);
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

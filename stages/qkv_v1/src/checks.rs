//! What must hold beside the error bounds.

use lab_device::{Device, DeviceKind};
use lab_families::qkv::checks::{
    assert_right, heads_do_not_meet, ones, outputs_of, results_do_not_change_from_run_to_run,
    shapes_that_do_not_fit_are_refused,
};
use lab_harness::suite::VersionCheck;
use lab_harness::tensor::tensors;
use lab_harness::{Tensor, Version, version_checks};

pub(crate) static OF_EACH: &[VersionCheck] = version_checks![
    large_problems in Large,
    heads_do_not_meet,
    nan_in_a_query_stays_in_its_row,
    nan_in_a_value_stays_in_its_column,
    infinity_meets_no_zeros_that_fill_a_tile,
    results_do_not_change_from_run_to_run,
    shapes_that_do_not_fit_are_refused,
];

/// S = 2000, on a GPU 8192.
fn large_problems(version: &dyn Version, device: &Device) {
    let shapes = match device.kind() {
        DeviceKind::Emulator => {
            [[1, 1, 2000, 64, 64], [1, 1, 600, 128, 100], [1, 1, 400, 250, 256]]
        }
        DeviceKind::Cuda => [[1, 2, 8192, 64, 64], [1, 8, 2000, 128, 100], [2, 4, 1000, 250, 256]],
    };
    assert_right(version, device, version.info().dtypes, &shapes);
}

/// O of one head whose tensors are ones, but for this one.
fn output_with(version: &dyn Version, device: &Device, name: &str, tensor: Tensor) -> Vec<f64> {
    let mut inputs = tensors(["q", "k", "v"].map(|name| (name, ones(&tensor.shape))));
    inputs.insert(name.to_owned(), tensor);
    outputs_of(version, device, &inputs)["o"].values()
}

/// The row of the query that holds it, at an edge of a tile and within.
fn nan_in_a_query_stays_in_its_row(version: &dyn Version, device: &Device) {
    for (s, dh) in [(70, 7), (70, 100), (40, 256)] {
        for row in [0, 33, s - 1] {
            let mut q = vec![1f32; s * dh];
            q[row * dh + dh - 1] = f32::NAN;
            let o = output_with(version, device, "q", Tensor::new(&[1, 1, s, dh], &q));
            for (i, o) in o.chunks(dh).enumerate() {
                assert!(o.iter().all(|v| v.is_nan() == (i == row)), "S={s} DH={dh}: row {i}");
            }
        }
    }
}

fn nan_in_a_value_stays_in_its_column(version: &dyn Version, device: &Device) {
    let (s, dh) = (70, 36);
    for column in [0, 17, dh - 1] {
        let mut v = vec![1f32; s * dh];
        v[(s - 1) * dh + column] = f32::NAN;
        let o = output_with(version, device, "v", Tensor::new(&[1, 1, s, dh], &v));
        for (at, o) in o.into_iter().enumerate() {
            assert_eq!(o.is_nan(), at % dh == column, "element {at}");
        }
    }
}

/// An infinite query gives infinite scores and outputs; 0 · ∞, where a tile ends past the last key
/// or the last column, would make them NaN.
fn infinity_meets_no_zeros_that_fill_a_tile(version: &dyn Version, device: &Device) {
    for (s, dh) in [(1, 1), (5, 3), (70, 30), (33, 130)] {
        let mut q = vec![1f32; s * dh];
        q[(s - 1) * dh] = f32::INFINITY;
        let o = output_with(version, device, "q", Tensor::new(&[1, 1, s, dh], &q));
        for (i, o) in o.chunks(dh).enumerate() {
            let right =
                o.iter().all(|&v| if i == s - 1 { v == f64::INFINITY } else { v.is_finite() });
            assert!(right, "S={s} DH={dh}: row {i}: {:?}", &o[..1]);
        }
    }
}

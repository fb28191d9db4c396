//! What must hold beside the error bounds.

use lab_device::{DType, Device, DeviceKind};
use lab_harness::qkv::sizes;
use lab_harness::suite::{Check, check, every_kernel_loads, without_checks};
use lab_harness::tensor::tensors;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, run};

use crate::{BLOCK_TILE, CLASSES, INFO, STAGE};

pub(crate) static CHECKS: &[Check] = &[
    Check { name: "large_problems", run: large_problems },
    Check { name: "heads_do_not_meet", run: heads_do_not_meet },
    Check { name: "nan_in_a_query_stays_in_its_row", run: nan_in_a_query_stays_in_its_row },
    Check { name: "nan_in_a_value_stays_in_its_column", run: nan_in_a_value_stays_in_its_column },
    Check {
        name: "infinity_meets_no_zeros_that_fill_a_tile",
        run: infinity_meets_no_zeros_that_fill_a_tile,
    },
    Check {
        name: "results_do_not_change_from_run_to_run",
        run: results_do_not_change_from_run_to_run,
    },
    Check { name: "shapes_that_do_not_fit_are_refused", run: shapes_that_do_not_fit_are_refused },
    Check { name: "tiles_fit_an_rtx_4060", run: tiles_fit_an_rtx_4060 },
    Check { name: "every_kernel_loads_on_every_device", run: every_kernel_loads_on_every_device },
];

/// S = 2000, on a GPU 8192: the emulator without its checks.
fn large_problems(device: &Device) {
    let device = &without_checks(device).unwrap();
    let emulated = device.kind() == DeviceKind::Emulator;
    for shape in match emulated {
        true => [[1, 1, 2000, 64, 64], [1, 1, 600, 128, 100], [1, 1, 400, 250, 256]],
        false => [[1, 2, 8192, 64, 64], [1, 8, 2000, 128, 100], [2, 4, 1000, 250, 256]],
    } {
        for &dtype in INFO.dtypes {
            let case = check(&BLOCK_TILE, device, &Problem::new(sizes(shape), dtype));
            assert!(case.passed(), "{}", case.describe());
        }
    }
}

fn output(device: &Device, inputs: &Tensors) -> Tensor {
    run(&BLOCK_TILE, device, inputs, &Options::default()).unwrap().remove("o").unwrap()
}

fn ones(shape: &[usize]) -> Tensor {
    Tensor::new(shape, &vec![1f32; shape.iter().product()])
}

/// Each head alone gives the same as among others.
fn heads_do_not_meet(device: &Device) {
    let [b, nh, s, dhqk, dhhv] = [2, 3, 70, 12, 20];
    let inputs = BLOCK_TILE.inputs(&Problem::new(sizes([b, nh, s, dhqk, dhhv]), DType::F32));
    let all = output(device, &inputs).values();
    for head in 0..b * nh {
        let of = |name: &str, columns: usize| {
            let values = &inputs[name].values()[head * s * columns..][..s * columns];
            Tensor::rounded(DType::F32, &[1, 1, s, columns], values)
        };
        let own = tensors([("q", of("q", dhqk)), ("k", of("k", dhqk)), ("v", of("v", dhhv))]);
        let alone = output(device, &own).values();
        assert_eq!(alone, all[head * s * dhhv..][..s * dhhv], "head {head}");
    }
}

/// The row of the query that holds it, at an edge of a tile and within.
fn nan_in_a_query_stays_in_its_row(device: &Device) {
    for (s, dh) in [(70, 7), (70, 100), (40, 256)] {
        for row in [0, 33, s - 1] {
            let mut q = vec![1f32; s * dh];
            q[row * dh + dh - 1] = f32::NAN;
            let q = Tensor::new(&[1, 1, s, dh], &q);
            let o = output(
                device,
                &tensors([("q", q), ("k", ones(&[1, 1, s, dh])), ("v", ones(&[1, 1, s, dh]))]),
            );
            for (i, o) in o.values().chunks(dh).enumerate() {
                assert!(o.iter().all(|v| v.is_nan() == (i == row)), "S={s} DH={dh}: row {i}");
            }
        }
    }
}

fn nan_in_a_value_stays_in_its_column(device: &Device) {
    let (s, dh) = (70, 36);
    for column in [0, 17, dh - 1] {
        let mut v = vec![1f32; s * dh];
        v[(s - 1) * dh + column] = f32::NAN;
        let v = Tensor::new(&[1, 1, s, dh], &v);
        let o = output(
            device,
            &tensors([("q", ones(&[1, 1, s, dh])), ("k", ones(&[1, 1, s, dh])), ("v", v)]),
        );
        for (at, o) in o.values().into_iter().enumerate() {
            assert_eq!(o.is_nan(), at % dh == column, "element {at}");
        }
    }
}

/// An infinite query gives infinite scores and outputs; 0 · ∞, where a tile ends past the last key
/// or the last column, would make them NaN.
fn infinity_meets_no_zeros_that_fill_a_tile(device: &Device) {
    for (s, dh) in [(1, 1), (5, 3), (70, 30), (33, 130)] {
        let mut q = vec![1f32; s * dh];
        q[(s - 1) * dh] = f32::INFINITY;
        let q = Tensor::new(&[1, 1, s, dh], &q);
        let o = output(
            device,
            &tensors([("q", q), ("k", ones(&[1, 1, s, dh])), ("v", ones(&[1, 1, s, dh]))]),
        );
        for (i, o) in o.values().chunks(dh).enumerate() {
            let right =
                o.iter().all(|&v| if i == s - 1 { v == f64::INFINITY } else { v.is_finite() });
            assert!(right, "S={s} DH={dh}: row {i}: {:?}", &o[..1]);
        }
    }
}

fn results_do_not_change_from_run_to_run(device: &Device) {
    let inputs = BLOCK_TILE.inputs(&Problem::new(INFO.small(), DType::F32));
    assert_eq!(output(device, &inputs), output(device, &inputs), "on {}", device.name());
}

fn shapes_that_do_not_fit_are_refused(device: &Device) {
    let [q, k, v] = [[1, 2, 9, 8], [1, 2, 9, 8], [1, 2, 9, 4]];
    for (q, k, v, said) in [
        (q, [1, 2, 9, 7], v, "tensor 'k': expected DHQK=8 as 'q', got f32 [1, 2, 9, 7]"),
        (q, [1, 2, 8, 8], v, "tensor 'k': expected S=9 as 'q', got f32 [1, 2, 8, 8]"),
        (q, k, [1, 3, 9, 4], "tensor 'v': expected NH=2 as 'q', got f32 [1, 3, 9, 4]"),
        (q, k, [2, 2, 9, 4], "tensor 'v': expected B=1 as 'q', got f32 [2, 2, 9, 4]"),
        (q, k, [1, 2, 9, 257], "tensor 'v': expected dimension DHHV: expected 1 to 256, got 257"),
        (q, k, [1, 2, 9, 0], "tensor 'v': expected dimension DHHV: expected 1 to 256, got 0"),
        ([1, 2, 9, 300], k, v, "tensor 'q': expected dimension DHQK: expected 1 to 256, got 300"),
    ] {
        let inputs = tensors([("q", ones(&q)), ("k", ones(&k)), ("v", ones(&v))]);
        let error = run(&BLOCK_TILE, device, &inputs, &Options::default()).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}");
    }
    let flat = tensors([("q", ones(&[9, 8])), ("k", ones(&k)), ("v", ones(&v))]);
    let error = run(&BLOCK_TILE, device, &flat, &Options::default()).unwrap_err().to_string();
    assert!(
        error.starts_with("tensor 'q': expected shape [\"B\", \"NH\", \"S\", \"DHQK\"]"),
        "{error}"
    );
}

/// 99 KB a block there, which the kernels ask for at once: nothing else says that they fit.
fn tiles_fit_an_rtx_4060(_: &Device) {
    for tiles in CLASSES {
        assert!(tiles.shared() <= 99 * 1024, "{tiles:?}: {} bytes", tiles.shared());
    }
}

fn every_kernel_loads_on_every_device(device: &Device) {
    every_kernel_loads(&STAGE, device);
}

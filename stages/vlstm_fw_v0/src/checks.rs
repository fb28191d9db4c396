//! What must hold beside the error bounds.

use lab_device::emulator::Operation;
use lab_device::{DType, Device, DeviceKind, Mode};
use lab_harness::qkv::sizes;
use lab_harness::suite::{Check, check, without_checks};
use lab_harness::tensor::tensors;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, run};

use crate::{CAUSAL, CLASSES, INFO, STAGE, Tiles};

pub(crate) static CHECKS: &[Check] = &[
    Check { name: "large_problems", run: large_problems },
    Check {
        name: "tiles_above_the_diagonal_are_not_touched",
        run: tiles_above_the_diagonal_are_not_touched,
    },
    Check { name: "later_positions_do_not_matter", run: later_positions_do_not_matter },
    Check { name: "heads_do_not_meet", run: heads_do_not_meet },
    Check { name: "nan_stays_where_it_belongs", run: nan_stays_where_it_belongs },
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
        true => [[1, 1, 2000, 64, 64], [1, 1, 600, 128, 112], [1, 1, 400, 240, 256]],
        false => [[1, 2, 8192, 64, 64], [1, 8, 2000, 128, 112], [2, 4, 1000, 240, 256]],
    } {
        for &dtype in INFO.dtypes {
            let case = check(&CAUSAL, device, &Problem::new(sizes(shape), dtype));
            assert!(case.passed(), "{}", case.describe());
        }
    }
}

/// Requests for device memory: of n tiles of Q each once, and of the n (n + 1) / 2 pairs of a tile
/// of Q and one of K and V up to the diagonal both. The emulator counts, whatever the device.
fn tiles_above_the_diagonal_are_not_touched(_: &Device) {
    let device = Device::emulator_in(Mode::Counted).unwrap();
    for (n, dh) in [(1, 64), (2, 64), (5, 64), (3, 128), (4, 256)] {
        for &dtype in INFO.dtypes {
            let rows = Tiles::of(dh, dh).rows;
            let inputs = CAUSAL.inputs(&Problem::new(sizes([1, 2, n * rows, dh, dh]), dtype));
            device.take_profile();
            run(&CAUSAL, &device, &inputs, &Options::default()).unwrap();
            let profile = device.take_profile();
            // 32 lanes with 16 bytes each.
            let of_a_tile = rows * dh * dtype.size() / (32 * 16);
            let loads = 2 * of_a_tile * (n + n * (n + 1));
            let got = profile.total(Operation::GlobalLoad).requests;
            assert_eq!(got, loads as u64, "loads, {n} tiles of {rows} x {dh} {dtype}");
        }
    }
}

fn output(device: &Device, inputs: &Tensors) -> Tensor {
    run(&CAUSAL, device, inputs, &Options::default()).unwrap().remove("h").unwrap()
}

fn ones(shape: &[usize]) -> Tensor {
    Tensor::new(shape, &vec![1f32; shape.iter().product()])
}

/// The same bits, whatever comes from position t on.
fn later_positions_do_not_matter(device: &Device) {
    let [s, dh] = [100, 16];
    let inputs = CAUSAL.inputs(&Problem::new(sizes([1, 1, s, dh, dh]), DType::F32));
    let before = output(device, &inputs).values();
    for t in [1, 63, 64, 99] {
        let changed = inputs.iter().map(|(name, tensor)| {
            let mut values = tensor.values();
            values[t * dh..].iter_mut().for_each(|v| *v = 1e6 - 3.0 * *v);
            (name.clone(), Tensor::rounded(DType::F32, &tensor.shape, &values))
        });
        let after = output(device, &changed.collect()).values();
        assert_eq!(after[..t * dh], before[..t * dh], "from {t} on");
        assert_ne!(after[t * dh..][..dh], before[t * dh..][..dh], "row {t}");
    }
}

/// Each head alone gives the same as among others.
fn heads_do_not_meet(device: &Device) {
    let [b, nh, s, dhqk, dhhv] = [2, 3, 70, 16, 32];
    let inputs = CAUSAL.inputs(&Problem::new(sizes([b, nh, s, dhqk, dhhv]), DType::F32));
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

/// In Q: in its row. In K: in its row and those behind it. In V: in its column, from its row on;
/// the rows before it in the same tile get 0 · NaN, those of earlier tiles nothing.
fn nan_stays_where_it_belongs(device: &Device) {
    for (s, dh) in [(150, 16), (70, 256)] {
        let rows = Tiles::of(dh, dh).rows;
        for row in [0, 33, 65, s - 1] {
            for name in ["q", "k", "v"] {
                let mut inputs = tensors(["q", "k", "v"].map(|n| (n, ones(&[1, 1, s, dh]))));
                let mut with = vec![1f32; s * dh];
                with[row * dh + 7] = f32::NAN;
                inputs.insert(name.to_owned(), Tensor::new(&[1, 1, s, dh], &with));
                for (at, h) in output(device, &inputs).values().into_iter().enumerate() {
                    let (i, c) = (at / dh, at % dh);
                    let expected = match name {
                        "q" => i == row,
                        "k" => i >= row,
                        _ => i >= row / rows * rows && c == 7,
                    };
                    assert_eq!(h.is_nan(), expected, "S={s} DH={dh}: {name} {row}: h {i}, {c}");
                }
            }
        }
    }
}

fn results_do_not_change_from_run_to_run(device: &Device) {
    let inputs = CAUSAL.inputs(&Problem::new(INFO.small(), DType::F32));
    assert_eq!(output(device, &inputs), output(device, &inputs), "on {}", device.name());
}

fn shapes_that_do_not_fit_are_refused(device: &Device) {
    let [q, k, v] = [[1, 2, 9, 32], [1, 2, 9, 32], [1, 2, 9, 16]];
    let steps = "expected a multiple of 16 from 16 to 256";
    for (q, k, v, said) in [
        (q, [1, 2, 9, 16], v, "tensor 'k': expected DHQK=32 as 'q', got f32 [1, 2, 9, 16]".into()),
        (q, [1, 2, 8, 32], v, "tensor 'k': expected S=9 as 'q', got f32 [1, 2, 8, 32]".into()),
        (q, k, [1, 3, 9, 16], "tensor 'v': expected NH=2 as 'q', got f32 [1, 3, 9, 16]".into()),
        (q, k, [1, 2, 9, 272], format!("tensor 'v': expected dimension DHHV: {steps}, got 272")),
        (q, k, [1, 2, 9, 0], format!("tensor 'v': expected dimension DHHV: {steps}, got 0")),
        ([1, 2, 9, 8], k, v, format!("tensor 'q': expected dimension DHQK: {steps}, got 8")),
    ] {
        let inputs = tensors([("q", ones(&q)), ("k", ones(&k)), ("v", ones(&v))]);
        let error = run(&CAUSAL, device, &inputs, &Options::default()).unwrap_err().to_string();
        assert!(error.starts_with::<&str>(said.as_ref()), "{error}");
    }
}

/// 99 KB a block there, which the kernels ask for at once: nothing else says that they fit.
fn tiles_fit_an_rtx_4060(_: &Device) {
    for tiles in CLASSES {
        assert!(tiles.shared() <= 99 * 1024, "{tiles:?}: {} bytes", tiles.shared());
    }
}

fn every_kernel_loads_on_every_device(device: &Device) {
    let listed: usize = STAGE.kernels.iter().map(|k| k.instantiations.len()).sum();
    assert_eq!(STAGE.load_all(device).unwrap().len(), listed);
}

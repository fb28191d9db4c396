//! What must hold beside the error bounds.

use lab_device::emulator::Operation;
use lab_device::{DType, Device, DeviceKind, Mode};
use lab_harness::qkv::sizes;
use lab_harness::suite::{Check, check, without_checks};
use lab_harness::tensor::tensors;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, run};

use crate::{CLASSES, INFO, ONLINE, STAGE, Tiles};

pub(crate) static CHECKS: &[Check] = &[
    Check { name: "large_problems", run: large_problems },
    Check {
        name: "tiles_above_the_diagonal_are_not_touched",
        run: tiles_above_the_diagonal_are_not_touched,
    },
    Check { name: "long_closed_gates_lose_no_digits", run: long_closed_gates_lose_no_digits },
    Check { name: "extreme_gates_give_numbers", run: extreme_gates_give_numbers },
    Check { name: "positions_may_be_shut_out", run: positions_may_be_shut_out },
    Check { name: "epsilon_is_added_to_the_normaliser", run: epsilon_is_added_to_the_normaliser },
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
            let case = check(&ONLINE, device, &Problem::new(sizes(shape), dtype));
            assert!(case.passed(), "{}", case.describe());
        }
    }
}

/// Requests for device memory: of n tiles of Q each once, and of the n (n + 1) / 2 pairs of a tile
/// of Q and one of K and V up to the diagonal both, with the gates of the latter. The emulator
/// counts, whatever the device.
fn tiles_above_the_diagonal_are_not_touched(_: &Device) {
    let device = Device::emulator_in(Mode::Counted).unwrap();
    for (n, dh) in [(1, 64), (2, 64), (5, 64), (3, 128), (4, 256)] {
        for &dtype in INFO.dtypes {
            let rows = Tiles::of(dh, dh).rows;
            let inputs = ONLINE.inputs(&Problem::new(sizes([1, 2, n * rows, dh, dh]), dtype));
            device.take_profile();
            run(&ONLINE, &device, &inputs, &Options::default()).unwrap();
            let profile = device.take_profile();
            // 32 lanes with 16 bytes each; of i and f with 4.
            let of_a_tile = rows * dh * dtype.size() / (32 * 16);
            let of_its_gates = 2 * rows / 32;
            let pairs = n * (n + 1) / 2;
            let loads = 2 * (of_a_tile * (n + 2 * pairs) + of_its_gates * pairs);
            let got = profile.total(Operation::GlobalLoad).requests;
            assert_eq!(got, loads as u64, "loads, {n} tiles of {rows} x {dh} {dtype}");
        }
    }
}

fn outputs(device: &Device, inputs: &Tensors) -> Tensors {
    run(&ONLINE, device, inputs, &Options::default()).unwrap()
}

fn ones(shape: &[usize]) -> Tensor {
    Tensor::new(shape, &vec![1f32; shape.iter().product()])
}

/// One head with these gates. q and k are positive, so that no row's sum of C cancels, which would
/// tell of the data and not of the gates.
fn with_gates(s: usize, dh: usize, i: impl Fn(usize) -> f64, f: impl Fn(usize) -> f64) -> Tensors {
    let mut all = ONLINE.inputs(&Problem::new(sizes([1, 1, s, dh, dh]), DType::F32));
    for name in ["q", "k"] {
        let positive: Vec<f64> = all[name].values().iter().map(|v| v.abs()).collect();
        all.insert(name.to_owned(), Tensor::rounded(DType::F32, &[1, 1, s, dh], &positive));
    }
    for (name, gate) in [("i", &i as &dyn Fn(usize) -> f64), ("f", &f)] {
        let values: Vec<f64> = (0..s).map(gate).collect();
        all.insert(name.to_owned(), Tensor::rounded(DType::F32, &[1, 1, s], &values));
    }
    all
}

/// Every row of every output against f64: the largest error of an element over the largest element.
/// What f32 cannot hold is 0 or infinite.
#[track_caller]
fn assert_rows(device: &Device, inputs: &Tensors, bound: f64, what: &str) {
    let got = outputs(device, inputs);
    for (name, expected) in ONLINE.reference(inputs, &Options::default()) {
        let columns = if name == "h" { inputs["v"].shape[3] } else { 1 };
        let got = got[name].values();
        for (row, (got, expected)) in got.chunks(columns).zip(expected.chunks(columns)).enumerate()
        {
            let largest = expected.iter().fold(0f64, |a, v| a.max(v.abs()));
            for (&g, &e) in got.iter().zip(expected) {
                assert!(e.is_finite(), "{what}: {name} row {row}: the reference is {e}");
                let right = match e.abs() > f64::from(f32::MAX) {
                    true => g == e.signum() * f64::INFINITY,
                    false => (g - e).abs() <= bound * largest + f64::from(f32::MIN_POSITIVE),
                };
                assert!(right, "{what}: {name} row {row}: {g}, expected {e}");
            }
        }
    }
}

/// The sums of thousands of gates of -100 lie between the positions and the sequence's start, and
/// none of it between one open position and another. With sums from the start, in f32, h would be
/// off by half; with sums of a tile in one f32 by 1e-4, in the rows of the tile that is half open.
fn long_closed_gates_lose_no_digits(device: &Device) {
    let f = |t: usize| if t % 100 < 70 { -100.0 } else { 5.0 };
    assert_rows(device, &with_gates(400, 16, |t| (t as f64).cos(), f), 1.6e-6, "by turns");
    let device = &without_checks(device).unwrap();
    for s in [2048, 2000] {
        let f = |t: usize| if t < s / 2 { -100.0 } else { 5.0 };
        let inputs = with_gates(s, 16, |t| (t as f64).sin(), f);
        assert_rows(device, &inputs, 4e-6, &format!("S={s}"));
    }
}

/// i and f of ±100: all equal, of a lone position, by turns, and of one position in all. n is
/// infinite in f32 where i is -100, and h, which is below 1e-40 then, 0.
fn extreme_gates_give_numbers(device: &Device) {
    let of = |kind: usize, t: usize, s: usize, x: f64| match kind {
        0 => x,
        1 if t == s / 2 => x,
        1 => -x,
        _ => x * [1.0, -1.0, -1.0, 1.0, -1.0][t * (kind + t / 7) % 5],
    };
    for s in [1, 2, 150] {
        for (i, f) in [(100.0, 100.0), (100.0, -100.0), (-100.0, 100.0), (-100.0, -100.0)] {
            for kinds in 0..16 {
                let inputs =
                    with_gates(s, 16, |t| of(kinds / 4, t, s, i), |t| of(kinds % 4, t, s, f));
                assert_rows(device, &inputs, 1.6e-6, &format!("S={s} i={i} f={f} kinds={kinds}"));
            }
        }
    }
}

/// i = -∞ at a position: as if it were not there, as padding wants it.
fn positions_may_be_shut_out(device: &Device) {
    let s = 150;
    let shut = |t: usize| t % 3 == 1 || (64..128).contains(&t);
    let i = |t: usize| if shut(t) { f64::NEG_INFINITY } else { 0.5 };
    assert_rows(device, &with_gates(s, 16, i, |_| 3.0), 4e-6, "shut out");
}

fn epsilon_is_added_to_the_normaliser(device: &Device) {
    let inputs = with_gates(70, 16, |_| 0.0, |_| 3.0);
    let of = |eps: &str| {
        let options = Options::parse(&[eps], &INFO).unwrap();
        run(&ONLINE, device, &inputs, &options).unwrap()
    };
    let (without, with) = (of("eps=0"), of("eps=2"));
    assert_eq!(with["n"], without["n"]);
    let n = with["n"].values();
    for (at, (h, h0)) in with["h"].values().iter().zip(without["h"].values()).enumerate() {
        let n = n[at / 16];
        assert!((h * (n + 2.0) - h0 * n).abs() <= 1e-6 * (h0 * n).abs(), "element {at}");
    }
}

/// The same bits, whatever comes from position t on.
fn later_positions_do_not_matter(device: &Device) {
    let [s, dh] = [100, 16];
    let inputs = ONLINE.inputs(&Problem::new(sizes([1, 1, s, dh, dh]), DType::F32));
    let before = outputs(device, &inputs);
    for t in [1, 63, 64, 99] {
        let changed = inputs.iter().map(|(name, tensor)| {
            let columns = tensor.len() / s;
            let mut values = tensor.values();
            values[t * columns..].iter_mut().for_each(|v| *v = 1e6 - 3.0 * *v);
            (name.clone(), Tensor::rounded(DType::F32, &tensor.shape, &values))
        });
        let after = outputs(device, &changed.collect());
        for name in ["h", "m", "n"] {
            let [after, before] = [&after, &before].map(|o| o[name].values());
            let upto = t * (after.len() / s);
            assert_eq!(after[..upto], before[..upto], "{name} from {t} on");
            assert_ne!(after[upto], before[upto], "{name} row {t}");
        }
    }
}

/// Each head alone gives the same as among others.
fn heads_do_not_meet(device: &Device) {
    let [b, nh, s, dhqk, dhhv] = [2, 3, 70, 16, 32];
    let inputs = ONLINE.inputs(&Problem::new(sizes([b, nh, s, dhqk, dhhv]), DType::F32));
    let all = outputs(device, &inputs);
    for head in 0..b * nh {
        let own = inputs.iter().map(|(name, tensor)| {
            let each = tensor.len() / (b * nh);
            let shape: Vec<usize> = [1, 1].iter().chain(&tensor.shape[2..]).copied().collect();
            let values = &tensor.values()[head * each..][..each];
            (name.clone(), Tensor::rounded(DType::F32, &shape, values))
        });
        for (name, alone) in outputs(device, &own.collect()) {
            let among = &all[&name].values()[head * alone.len()..][..alone.len()];
            assert_eq!(alone.values(), among, "{name} of head {head}");
        }
    }
}

/// In q: in its row. In k, i and f: in its row and those behind it. In v: in its column, from its
/// row on; the rows before it in the same tile get 0 · NaN, those of earlier tiles nothing. And in
/// its head.
fn nan_stays_where_it_belongs(device: &Device) {
    for (s, dh) in [(150, 16), (70, 256)] {
        let rows = Tiles::of(dh, dh).rows;
        let clean = ONLINE.inputs(&Problem::new(sizes([1, 2, s, dh, dh]), DType::F32));
        for row in [0, 33, 65, s - 1] {
            for name in ["q", "k", "v", "i", "f"] {
                let mut inputs = clean.clone();
                let columns = clean[name].len() / (2 * s);
                let mut with = clean[name].values();
                with[row * columns + 7 % columns] = f64::NAN;
                let with = Tensor::rounded(DType::F32, &clean[name].shape, &with);
                inputs.insert(name.to_owned(), with);
                for (at, h) in outputs(device, &inputs)["h"].values().into_iter().enumerate() {
                    let (i, c) = (at / dh, at % dh);
                    let expected = i < s
                        && match name {
                            "q" => i == row,
                            "v" => i >= row / rows * rows && c == 7,
                            _ => i >= row,
                        };
                    assert_eq!(h.is_nan(), expected, "S={s} DH={dh}: {name} {row}: h {i}, {c}");
                }
            }
        }
    }
}

fn results_do_not_change_from_run_to_run(device: &Device) {
    let inputs = ONLINE.inputs(&Problem::new(INFO.small(), DType::F32));
    assert_eq!(outputs(device, &inputs), outputs(device, &inputs), "on {}", device.name());
}

fn shapes_that_do_not_fit_are_refused(device: &Device) {
    let (q, v, gate) = ([1, 2, 9, 32], [1, 2, 9, 16], [1, 2, 9]);
    let fitting = || {
        tensors([
            ("q", ones(&q)),
            ("k", ones(&q)),
            ("v", ones(&v)),
            ("i", ones(&gate)),
            ("f", ones(&gate)),
        ])
    };
    let steps = "expected dimension DHHV: expected a multiple of 16 from 16 to 256";
    let halves = Tensor::rounded(DType::F16, &gate, &[0.0; 18]);
    for (name, tensor, said) in [
        ("k", ones(&v), "expected DHQK=32 as 'q', got f32 [1, 2, 9, 16]"),
        ("v", ones(&[1, 2, 9, 272]), &format!("{steps}, got 272")),
        ("v", ones(&[1, 2, 9, 0]), &format!("{steps}, got 0")),
        ("v", ones(&[1, 2, 9, 40]), &format!("{steps}, got 40")),
        ("i", ones(&[1, 2, 8]), "expected S=9 as 'q', got f32 [1, 2, 8]"),
        ("f", ones(&[1, 3, 9]), "expected NH=2 as 'q', got f32 [1, 3, 9]"),
        ("f", ones(&v), "expected shape [\"B\", \"NH\", \"S\"], got f32 [1, 2, 9, 16]"),
        ("f", halves, "expected f32 in runs of every type, got f16"),
    ] {
        let mut inputs = fitting();
        inputs.insert(name.to_owned(), tensor);
        let error = run(&ONLINE, device, &inputs, &Options::default()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("tensor '{name}': {said}")), "{error}");
    }
    let options = Options::parse(&["eps=-1"], &INFO).unwrap();
    let error = run(&ONLINE, device, &fitting(), &options).unwrap_err().to_string();
    assert_eq!(error, "--set eps: expected a number that is not negative, got -1");
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

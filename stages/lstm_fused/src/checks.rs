//! What must hold beside the error bounds.

use lab_device::emulator::{self, Order};
use lab_device::{DType, Device, DeviceKind};
use lab_harness::suite::{Check, VersionCheck, every_kernel_loads, without_checks};
use lab_harness::{Error, Tensor, Tensors, Version, lstm, version_checks};
use lab_reference::lstm::{Cell, Network};

use crate::posed::{Posed, errors};
use crate::training::checks::{follow, outputs, runs, scale, stops};
use crate::{Lstm, Pass, STAGE, VERSIONS, Way};

pub(crate) static OF_EACH: &[VersionCheck] = version_checks![
    of lstm::FAMILY;
    every_option_is_right,
    rows_of_unlike_lengths,
    what_is_left_out_is_zero,
    gates_that_are_shut_give_numbers,
    nan_stays_in_its_row,
    rows_do_not_meet,
    a_sequence_in_parts_is_the_same,
    the_forward_pass_alone_is_the_same,
    gates_computed_again_are_right,
    bytes_are_as_counted,
    any_schedule_gives_the_same,
    large_problems,
];

pub(crate) static CHECKS: &[Check] = &[
    Check { name: "what_does_not_fit_is_refused", run: what_does_not_fit_is_refused },
    Check { name: "a_mean_far_from_zero", run: a_mean_far_from_zero },
    Check { name: "every_kernel_loads_on_every_device", run: every_kernel_loads_on_every_device },
    Check { name: "training_follows_the_reference", run: follow::training_follows_the_reference },
    Check {
        name: "a_batch_may_be_larger_than_the_data",
        run: follow::a_batch_may_be_larger_than_the_data,
    },
    Check { name: "training_in_halves_stays_near", run: follow::training_in_halves_stays_near },
    Check {
        name: "gradients_are_those_of_differences",
        run: follow::gradients_are_those_of_differences,
    },
    Check { name: "dropout_is_philox", run: follow::dropout_is_philox },
    Check { name: "a_power_of_two_as_loss_scale", run: scale::a_power_of_two_as_loss_scale },
    Check {
        name: "a_step_left_out_starts_the_count_anew",
        run: scale::a_step_left_out_starts_the_count_anew,
    },
    Check {
        name: "the_loss_scale_follows_the_gradients",
        run: scale::the_loss_scale_follows_the_gradients,
    },
    Check { name: "the_first_bad_tensor_is_named", run: stops::the_first_bad_tensor_is_named },
    Check { name: "outputs_without_training", run: outputs::outputs_without_training },
    Check { name: "far_apart_outputs_give_numbers", run: outputs::far_apart_outputs_give_numbers },
    Check { name: "training_again_is_the_same", run: runs::training_again_is_the_same },
    Check {
        name: "a_step_of_one_layer_is_six_launches",
        run: runs::a_step_of_one_layer_is_six_launches,
    },
    Check {
        name: "training_with_gates_computed_again",
        run: runs::training_with_gates_computed_again,
    },
    Check { name: "a_resumed_run_is_the_same", run: runs::a_resumed_run_is_the_same },
    Check {
        name: "training_that_cannot_be_is_refused",
        run: stops::training_that_cannot_be_is_refused,
    },
    Check { name: "the_sine_is_learnt", run: runs::the_sine_is_learnt },
    Check { name: "a_text_is_learnt", run: runs::a_text_is_learnt },
];

const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// How a version goes through the steps: with all the options that versions do not have.
fn way_of(version: &dyn Version) -> Way {
    let found = VERSIONS.iter().find(|v| v.info().name == version.info().name);
    found.expect("a version of this stage").way
}

fn run(device: &Device, posed: &Posed, tensors: &Tensors) -> Tensors {
    let lstm = Lstm::by(posed.way, posed.network).unwrap();
    lstm.run(device, tensors, Pass::ForwardBackward).unwrap()
}

/// At most four times what was seen of all networks.
fn bound(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 5e-15,
        DType::F32 => 2e-6,
        DType::F16 => 1.5e-3,
        _ => 1e-2,
    }
}

/// Every output within the bound of its type.
#[track_caller]
fn assert_right(device: &Device, posed: &Posed, tensors: &Tensors) {
    assert_near(posed, tensors, &run(device, posed, tensors));
}

#[track_caller]
fn assert_near(posed: &Posed, tensors: &Tensors, out: &Tensors) {
    for (name, error) in errors(out, &posed.reference(tensors), 0.0) {
        assert!(error <= bound(posed.dtype), "{posed:?}: {name}: error {error:.2e}");
    }
}

/// Whether a row has a block: a norm is over all its units.
fn takes_norm(way: Way) -> bool {
    matches!(way, Way::Cell | Way::Sequence)
}

fn normed(network: Network) -> Network {
    Network { layer_norm: Some(1e-5), ..network }
}

/// And with layer norm, where that goes.
fn with_norm(way: Way, network: Network) -> Vec<Network> {
    let mut all = vec![network];
    all.extend(takes_norm(way).then(|| normed(network)));
    all
}

/// Networks with each option, and with all of them; GRUs where they go.
fn networks(way: Way) -> Vec<Network> {
    let (plain, wide) = (Network::lstm(5, 7), Network::lstm(1, 33));
    let mut all = vec![
        plain,
        Network { bias: false, ..plain },
        Network { peephole: true, ..plain },
        Network { bidirectional: true, ..plain },
        Network { layers: 3, ..plain },
        Network { layers: 2, bidirectional: true, peephole: true, ..plain },
        Network { layers: 2, bidirectional: true, bias: false, ..wide },
    ];
    if way == Way::Grid {
        all.drain(..5); // the cluster's kernels, but for the way that numbers take
    }
    if takes_norm(way) {
        all.extend([
            normed(plain),
            normed(Network { layers: 2, bidirectional: true, peephole: true, ..plain }),
            normed(Network { bias: false, peephole: true, ..Network::lstm(3, 150) }),
            normed(Network::lstm(3, 1)),
        ]);
    }
    if way == Way::Sequence {
        // Warps of which all units are there, some and none; few columns of x.
        all.extend([normed(wide), normed(Network::lstm(2, 70))]);
    }
    if way == Way::Cell {
        let (plain, wide) = (Network::gru(5, 7), Network::gru(2, 35));
        all.extend([
            plain,
            Network { bias: false, ..plain },
            Network { layers: 2, bidirectional: true, ..wide },
        ]);
    }
    all
}

fn every_option_is_right(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    // In f64, whose bound is the narrowest, and in one of the other types by turns: a kernel has no options
    // by type, and the problems of a version are in all.
    for (n, network) in networks(way).into_iter().enumerate() {
        for dtype in [DType::F64, [DType::F32, DType::F16, DType::BF16][n % 3]] {
            let posed = Posed { dtype, seed: n as u64, ..Posed::new(way, network, 6, 3) };
            assert_right(device, &posed, &posed.tensors());
        }
    }
}

/// With none, one, some and all steps. What stands behind a row's length is not read: it is NaN.
fn rows_of_unlike_lengths(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    for network in networks(way) {
        for lengths in [vec![4, 0, 1, 6], vec![0, 0, 0, 0]] {
            let posed = Posed { lengths: Some(lengths.clone()), ..Posed::new(way, network, 6, 4) };
            let mut tensors = posed.tensors();
            for name in ["x", "dy"] {
                let mut values = tensors[name].values();
                let shape = tensors[name].shape.clone();
                for (n, row) in values.chunks_mut(shape[2]).enumerate() {
                    if n / 4 >= lengths[n % 4] {
                        row.fill(f64::NAN);
                    }
                }
                tensors.insert(name.into(), Tensor::rounded(DType::F32, &shape, &values));
            }
            assert_right(device, &posed, &tensors);
        }
    }
}

fn what_is_left_out_is_zero(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    let network = Network { layers: 2, bidirectional: true, ..Network::lstm(3, 4) };
    for network in with_norm(way, network) {
        let posed = Posed::new(way, network, 5, 2);
        let all = posed.tensors();
        for left_out in [&["h0", "c0"][..], &["dhn", "dcn"], &["dy"], &["h0", "c0", "dhn", "dcn"]] {
            let mut tensors = all.clone();
            tensors.retain(|name, _| !left_out.contains(&name.as_str()));
            assert_right(device, &posed, &tensors);
        }
    }
}

/// Gates that are open, shut or both to the last digit, and states that are far off: numbers, and
/// the right ones.
fn gates_that_are_shut_give_numbers(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    for peephole in [false, true] {
        for scale in [20.0, 1e4] {
            let network = Network { peephole, ..Network::lstm(4, 6) };
            let posed = Posed::new(way, network, 12, 3);
            let mut tensors = posed.tensors();
            for name in ["bias_ih_l0", "x", "c0"] {
                let t = &tensors[name];
                let values: Vec<f64> = t.values().iter().map(|v| v * scale).collect();
                let scaled = Tensor::rounded(DType::F32, &t.shape, &values);
                tensors.insert(name.into(), scaled);
            }
            let out = run(device, &posed, &tensors);
            for (name, expected) in posed.reference(&tensors) {
                // 1 − o of a gate that is open is a multiple of 6e-8, and may be all there is of a
                // gradient: it is multiplied by c and x, which are as large as `scale`.
                let least = if name.starts_with('d') && scale > 1e3 { scale } else { 0.0 };
                let largest = expected.iter().fold(least, |a, b| a.max(b.abs()));
                for (got, expected) in out[&name].values().iter().zip(&expected) {
                    let error = (got - expected).abs() / largest;
                    assert!(error <= 5e-6, "{peephole} {scale} {name}: {got} not {expected}");
                }
            }
        }
    }
}

/// The elements of a row of the batch, of a tensor whose second index it is.
fn of_row(tensor: &Tensor, row: usize) -> Tensor {
    let [outer, batch, columns] = tensor.shape[..] else { panic!("three indices") };
    let values = tensor.values();
    let own = |n: usize| &values[(n * batch + row) * columns..][..columns];
    let all: Vec<f64> = (0..outer).flat_map(own).copied().collect();
    Tensor::rounded(tensor.dtype, &[outer, 1, columns], &all)
}

/// What has a row for each of the batch.
const OF_ROWS: [&str; 6] = ["y", "hn", "cn", "dx", "dh0", "dc0"];

fn stack() -> Network {
    let one = Network::lstm(4, 5);
    Network { layers: 2, bidirectional: true, peephole: true, ..one }
}

/// And with layer norm, and as a GRU, where that goes.
fn stacks(way: Way) -> Vec<Network> {
    let mut all = with_norm(way, stack());
    if way == Way::Cell {
        all.push(Network { cell: Cell::Gru, peephole: false, ..stack() });
    }
    all
}

fn nan_stays_in_its_row(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    for network in stacks(way) {
        let posed = Posed::new(way, network, 5, 3);
        let clean = posed.tensors();
        let before = run(device, &posed, &clean);
        for (name, at) in [("x", 1), ("h0", 7), ("c0", 7), ("dy", 12), ("dhn", 6)] {
            let Some(tensor) = clean.get(name) else { continue };
            let mut values = tensor.values();
            values[at] = f64::NAN;
            let mut tensors = clean.clone();
            tensors.insert(name.into(), Tensor::rounded(DType::F32, &tensor.shape, &values));
            let after = run(device, &posed, &tensors);
            let hit = at / tensor.shape[2] % 3;
            for row in 0..3 {
                let of = |out: &Tensors, name: &str| out.get(name).map(|t| of_row(t, row));
                let same = OF_ROWS.map(|out| of(&before, out) == of(&after, out));
                let is_nan = |t: Tensor| t.values().iter().any(|v| v.is_nan());
                let nan = OF_ROWS.map(|out| of(&after, out).is_some_and(is_nan));
                assert_eq!(same.contains(&false), row == hit, "{network:?} {name}: row {row}");
                assert_eq!(nan.contains(&true), row == hit, "{network:?} {name}: row {row}");
            }
        }
    }
}

/// A row alone gives the same as among others, bit for bit.
fn rows_do_not_meet(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    let lengths = [9, 3, 0, 7];
    for network in stacks(way) {
        let posed = Posed { lengths: Some(lengths.into()), ..Posed::new(way, network, 9, 4) };
        let tensors = posed.tensors();
        let together = run(device, &posed, &tensors);
        for (row, length) in lengths.into_iter().enumerate() {
            let mut own = tensors.clone();
            for name in ["x", "h0", "c0", "dy", "dhn", "dcn"] {
                if let Some(tensor) = tensors.get(name) {
                    own.insert(name.into(), of_row(tensor, row));
                }
            }
            own.insert("lengths".into(), Tensor::new(&[1], &[length as i64]));
            let alone = run(device, &posed, &own);
            for name in OF_ROWS {
                let among = together.get(name).map(|t| of_row(t, row));
                assert_eq!(alone.get(name), among.as_ref(), "{network:?} {name} of row {row}");
            }
        }
    }
}

/// Step by step, each from the hn and cn of the one before: what a stream of data needs.
fn a_sequence_in_parts_is_the_same(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    let network = Network { layers: 2, peephole: true, ..Network::lstm(3, 6) };
    let parts = with_norm(way, network).into_iter().flat_map(|n| [(n, 1), (n, 3)]);
    for (network, part) in parts {
        let lstm = Lstm::by(way, network).unwrap();
        let posed = Posed::new(way, network, 7, 2);
        let tensors = posed.tensors();
        let whole = lstm.run(device, &tensors, Pass::Forward).unwrap();
        let mut own = tensors.clone();
        let (x, mut y) = (tensors["x"].values(), Vec::new());
        for x in x.chunks(part * 2 * 3) {
            let shape = [x.len() / 6, 2, 3];
            own.insert("x".into(), Tensor::rounded(DType::F32, &shape, x));
            let out = lstm.run(device, &own, Pass::Forward).unwrap();
            y.extend(out["y"].values());
            own.insert("h0".into(), out["hn"].clone());
            own.insert("c0".into(), out["cn"].clone());
        }
        assert_eq!(y, whole["y"].values(), "parts of {part}");
        assert_eq!((&own["h0"], &own["c0"]), (&whole["hn"], &whole["cn"]), "parts of {part}");
    }
}

/// Which keeps c of two steps only.
fn the_forward_pass_alone_is_the_same(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    let all = with_norm(way, stack());
    for (network, lengths) in all.into_iter().flat_map(|n| [(n, None), (n, Some(vec![6, 0, 3]))]) {
        let posed = Posed { lengths, ..Posed::new(way, network, 6, 3) };
        let tensors = posed.tensors();
        let both = run(device, &posed, &tensors);
        let forward = Lstm::by(way, posed.network).unwrap().run(device, &tensors, Pass::Forward);
        let forward = forward.unwrap();
        assert_eq!(forward.len(), 3);
        for (name, tensor) in forward {
            assert_eq!(tensor, both[&name], "{name}");
        }
    }
}

/// Of several layers, whose gates take each other's place.
fn gates_computed_again_are_right(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    // Tiles that end within a row of gates, and begin within one.
    let wide = Network { layers: 2, bias: false, ..Network::lstm(35, 37) };
    // The launch that does so is the same for all ways.
    let dtypes = if way == Way::Cell { &DTYPES[..] } else { &DTYPES[..1] };
    for (network, steps, batch) in [(stack(), 6, 3), (wide, 3, 12)] {
        for &dtype in dtypes {
            let ragged = dtype == DType::F32;
            let lengths = ragged.then(|| (0..batch).map(|row| row * 2 % (steps + 1)).collect());
            let posed = Posed { dtype, lengths, ..Posed::new(way, network, steps, batch) };
            let tensors = posed.tensors();
            let lstm = Lstm::by(way, network).unwrap();
            let kept = lstm.run(device, &tensors, Pass::ForwardBackward).unwrap();
            let lstm = lstm.recompute().unwrap();
            let again = lstm.run(device, &tensors, Pass::ForwardBackward).unwrap();
            assert_near(&posed, &tensors, &again);
            for name in ["y", "hn", "cn"] {
                assert_eq!(again[name], kept[name], "{name}");
            }
            // The last layer's are still there.
            for suffix in ["", "_reverse"].iter().take(network.directions()) {
                let name = format!("dweight_hh_l{}{suffix}", network.layers - 1);
                assert_eq!(again[&name], kept[&name], "{name}");
            }
        }
    }
}

/// All buffers of a run, as [`Lstm::bytes`] has them.
fn bytes_are_as_counted(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    let boxes = way == Way::Grid || way == Way::Cluster && device.facts().max_cluster < 16;
    for network in [Network::lstm(3, 40), Network { bias: false, ..stack() }, stack()] {
        for dtype in [DType::F64, DType::BF16] {
            let posed = Posed { dtype, ..Posed::new(way, network, 7, 3) };
            let tensors = posed.tensors();
            let plain = Lstm::by(way, network).unwrap();
            let of = |lstm: Lstm| {
                let program = lstm.program(device, &tensors, Pass::ForwardBackward).unwrap();
                (program.bytes(), lstm.bytes(dtype, 7, 3))
            };
            let (kept, again) = (of(plain), of(plain.recompute().unwrap()));
            for (allocated, counted) in [kept, again] {
                let fits = if boxes { allocated > counted } else { allocated == counted };
                assert!(fits, "{network:?} {dtype}: {allocated} bytes, not {counted}");
            }
            // Four numbers a unit of each layer but one.
            let arithmetic = if dtype == DType::F64 { 8 } else { 4 };
            let units = (network.layers - 1) * network.directions() * network.hidden;
            assert_eq!(kept.0 - again.0, 4 * arithmetic * units * 7 * 3);
        }
    }
}

/// The device as it is; of an emulator also one, two and five OS threads, each in other orders.
fn schedules(device: &Device) -> Vec<Device> {
    let mut all = vec![device.clone()];
    if let Some(mode) = device.mode() {
        let orders = [Order::Reverse, Order::Random(1), Order::Random(2), Order::Warps];
        for (order, threads) in orders.into_iter().zip([1, 2, 5, 2]) {
            let options = emulator::Options { order, threads, ..emulator::Options::default() };
            all.push(Device::emulator_with(mode, options).unwrap());
        }
    }
    all
}

/// Bit for bit, and at a second launch, too.
fn any_schedule_gives_the_same(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    let network = Network { bidirectional: true, peephole: true, ..Network::lstm(35, 37) };
    for network in with_norm(way, network) {
        let posed = Posed::new(way, network, 4, 5);
        let tensors = posed.tensors();
        let first = run(device, &posed, &tensors);
        for device in schedules(device) {
            let lstm = Lstm::by(way, network).unwrap();
            let mut prepared = lstm.prepare(&device, &tensors, Pass::ForwardBackward).unwrap();
            for _ in 0..2 {
                prepared.launch().unwrap();
                assert_eq!(prepared.outputs().unwrap(), first, "on {}", device.name());
                prepared.poison_outputs().unwrap();
            }
        }
    }
}

/// The emulator without its checks.
fn large_problems(version: &dyn Version, device: &Device) {
    let way = way_of(version);
    let device = &without_checks(device).unwrap();
    let emulated = device.kind() == DeviceKind::Emulator;
    let mut all = match emulated {
        true => [(Network::lstm(2, 24), 500, 1), (Network::lstm(130, 96), 12, 9)],
        false => [(Network::lstm(64, 256), 1024, 2), (Network::lstm(300, 130), 20, 140)],
    }
    .to_vec();
    if way == Way::Sequence {
        let of_norm: Vec<_> =
            all.iter().map(|&(n, steps, batch)| (normed(n), steps, batch)).collect();
        all.extend(of_norm);
    }
    for (network, steps, batch) in all {
        for dtype in if emulated { &DTYPES[..1] } else { &DTYPES[..] } {
            let posed = Posed { dtype: *dtype, ..Posed::new(way, network, steps, batch) };
            assert_right(device, &posed, &posed.tensors());
        }
    }
}

/// Of numbers around 300 with a variance of 1: their roundings are left of them. Of a variance that is the
/// mean of the squares without the square of the mean, it would be those of 90,000.
fn a_mean_far_from_zero(device: &Device) {
    for way in [Way::Cell, Way::Sequence] {
        for network in [Network::lstm(5, 7), Network::lstm(3, 70)].map(normed) {
            for (dtype, bound) in [(DType::F32, 4e-4), (DType::F64, 8e-13)] {
                let posed = Posed { dtype, ..Posed::new(way, network, 6, 2) };
                let mut tensors = posed.tensors();
                let t = &tensors["bias_ih_l0"];
                let values: Vec<f64> = t.values().iter().map(|v| v + 300.0).collect();
                tensors.insert("bias_ih_l0".into(), Tensor::rounded(dtype, &t.shape, &values));
                let out = run(device, &posed, &tensors);
                for (name, error) in errors(&out, &posed.reference(&tensors), 0.0) {
                    assert!(error <= bound, "{posed:?}: {name}: error {error:.2e}");
                }
            }
        }
    }
}

fn what_does_not_fit_is_refused(device: &Device) {
    let network = Network { layers: 2, ..Network::lstm(3, 4) };
    let all = Posed::new(Way::Cell, network, 5, 2).tensors();
    let lstm = Lstm::new(network).unwrap();
    let refused = |tensors: &Tensors, said: &str| {
        let error = lstm.run(device, tensors, Pass::ForwardBackward).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}, not {said}");
    };
    for (name, shape, said) in [
        ("x", &[5, 6][..], "shape [T, B, I], got f32 [5, 6]"),
        ("x", &[5, 2, 4], "I=3, the network's inputs, got f32 [5, 2, 4]"),
        ("x", &[0, 2, 3], "at least one step and one row"),
        ("weight_ih_l0", &[16, 4], "[16, 3], got f32 [16, 4]"),
        ("weight_ih_l1", &[16, 3], "[16, 4], got f32 [16, 3]"),
        ("bias_hh_l1", &[4], "[16], got f32 [4]"),
        ("h0", &[1, 2, 4], "[2, 2, 4], got f32 [1, 2, 4]"),
        ("c0", &[2, 3, 4], "[2, 2, 4], got f32 [2, 3, 4]"),
        ("dy", &[5, 2, 3], "[5, 2, 4], got f32 [5, 2, 3]"),
        ("dhn", &[2, 2], "[2, 2, 4], got f32 [2, 2]"),
        ("dcn", &[2, 2, 5], "[2, 2, 4], got f32 [2, 2, 5]"),
    ] {
        let mut wrong = all.clone();
        wrong.insert(name.into(), Tensor::new(shape, &vec![1f32; shape.iter().product()]));
        refused(&wrong, &format!("tensor '{name}': expected {said}"));
    }
    for (name, tensor, said) in [
        ("x", Tensor::new(&[5, 2, 3], &[1i32; 30]), "f32, f64, f16 or bf16, got i32"),
        ("h0", Tensor::new(&[2, 2, 4], &[1f64; 16]), "f32 as 'x', got f64"),
        ("lengths", Tensor::new(&[2], &[5f32, 5.0]), "i64, got f32"),
        ("lengths", Tensor::new(&[3], &[5i64; 3]), "[2], one a row, got i64 [3]"),
        ("lengths", Tensor::new(&[2], &[5i64, 6]), "0 to 5, the steps of 'x', got 6 of row 1"),
        ("lengths", Tensor::new(&[2], &[-1i64, 5]), "0 to 5, the steps of 'x', got -1 of row 0"),
    ] {
        let mut wrong = all.clone();
        wrong.insert(name.into(), tensor);
        refused(&wrong, &format!("tensor '{name}': expected {said}"));
    }
    for name in ["x", "weight_hh_l1", "bias_ih_l0"] {
        let mut wrong = all.clone();
        wrong.remove(name);
        refused(&wrong, &format!("tensor '{name}': expected a tensor"));
    }
    let new = |network| Lstm::new(network).unwrap_err();
    for (hidden, way) in [(1, Way::Sequence), (256, Way::Sequence), (257, Way::Cell)] {
        let lstm = Lstm::new(normed(Network { hidden, ..network })).unwrap();
        assert_eq!(lstm.way(), way, "{hidden} units with layer norm");
    }
    for way in [Way::Cluster, Way::Grid] {
        let said = "layer_norm: expected none in a GRU, or where a row's units are spread over blocks, \
                    got 0.00001";
        assert_eq!(Lstm::by(way, normed(network)).unwrap_err().to_string(), said);
    }
    let wide = Network { hidden: 257, ..network };
    let said = "hidden: expected 1 to 256 in a launch for all steps, got 257";
    for network in [wide, normed(wide)] {
        assert_eq!(Lstm::by(Way::Sequence, network).unwrap_err().to_string(), said);
    }
    assert_eq!(Lstm::new(wide).unwrap().way(), Way::Cluster);
    let wider = Network { hidden: 769, ..network };
    for way in [Way::Cluster, Way::Grid] {
        let said = "hidden: expected 1 to 768 in a launch for all steps, got 769";
        assert_eq!(Lstm::by(way, wider).unwrap_err().to_string(), said);
    }
    assert_eq!(Lstm::new(wider).unwrap().way(), Way::Cell);
    let gru = Network::gru(3, 4);
    let said = "cell: expected Lstm in a launch for all steps, got Gru";
    assert_eq!(Lstm::by(Way::Sequence, gru).unwrap_err().to_string(), said);
    assert_eq!(Lstm::new(gru).unwrap().way(), Way::Cell);
    for network in [gru, normed(network)] {
        let said = "recompute: expected false, but in an LSTM without layer norm, got true";
        let error = Lstm::new(network).unwrap().recompute().unwrap_err();
        assert_eq!(error.to_string(), said);
    }
    for (network, said) in [
        (Network { layers: 0, ..network }, "layers: expected 1 to 1024, got 0"),
        (Network { inputs: 0, ..network }, "inputs: expected 1 to 1048576, got 0"),
        (Network { hidden: 1 << 20, ..network }, "hidden: expected 1 to 32768, got 1048576"),
        (
            Network { cell: Cell::Gru, peephole: true, ..network },
            "peephole: expected false in a GRU, which has no c, got true",
        ),
        (
            Network { layer_norm: Some(-1.0), ..network },
            "layer_norm: expected none, or a number that is not negative, got -1",
        ),
        (
            Network { cell: Cell::Gru, ..normed(network) },
            "layer_norm: expected none in a GRU, or where a row's units are spread over blocks, got \
             0.00001",
        ),
    ] {
        let error = new(network);
        assert!(matches!(error, Error::Bad { .. }));
        assert_eq!(error.to_string(), said);
    }
}

fn every_kernel_loads_on_every_device(device: &Device) {
    every_kernel_loads(&STAGE, device);
}

#[cfg(test)]
mod tests {
    use lab_harness::suite::emulator;
    use proptest::prelude::*;

    use super::*;

    /// What a layer reads of the one before is rounded to the type, and so is what it hands back: there
    /// are as many roundings on the way as there are layers.
    #[track_caller]
    fn assert_stacked(posed: &Posed) {
        let tensors = posed.tensors();
        let out = run(&emulator().unwrap(), posed, &tensors);
        for (name, error) in errors(&out, &posed.reference(&tensors), 0.1) {
            let bound = bound(posed.dtype) * posed.network.layers as f64;
            assert!(error <= bound, "{posed:?}: {name}: error {error:.2e}, bound {bound:.2e}");
        }
    }

    /// In f16 it is further off than any network of one layer; in f32 as near as all are.
    #[test]
    fn a_unit_a_layer_is_right() {
        let plain = Network { layers: 3, bidirectional: true, bias: false, ..Network::lstm(34, 1) };
        let network = Network { cell: Cell::Gru, ..plain };
        for dtype in DTYPES {
            let posed = Posed::new(Way::Cell, network, 4, 8);
            assert_stacked(&Posed { dtype, seed: 688, ..posed });
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

        #[test]
        fn any_network_is_right(
            (inputs, hidden, steps, batch) in (1usize..40, 1usize..70, 1usize..9, 1usize..12),
            layers in 1usize..4,
            [bidirectional, bias, peephole, ragged, gru, norm] in any::<[bool; 6]>(),
            seed in 0u64..1000,
            dtype in 0usize..4,
        ) {
            let plain = Network { layers, bidirectional, bias, ..Network::lstm(inputs, hidden) };
            let lengths = |row: usize| (seed as usize + row * 5) % (steps + 1);
            let lengths = ragged.then(|| (0..batch).map(lengths).collect());
            let dtype = DTYPES[dtype];
            for way in VERSIONS.map(|v| v.way) {
                // Of two units a norm makes 1 and -1, whatever they are: of its gradient nothing but
                // roundings is left. With few units now and then a row comes close to that.
                let norm = norm && hidden >= 8 && takes_norm(way);
                let layer_norm = norm.then_some(1e-5);
                let network = match gru && way == Way::Cell {
                    true => Network { cell: Cell::Gru, ..plain },
                    false => Network { peephole, layer_norm, ..plain },
                };
                let posed = Posed::new(way, network, steps, batch);
                let posed = Posed { lengths: lengths.clone(), dtype, seed, ..posed };
                assert_stacked(&posed);
            }
        }
    }
}

//! What must hold of layers with SwiGLU beside their error bounds.

use lab_device::{DType, Device};
use lab_harness::compare::unit;
use lab_harness::suite::{schedules, without_checks};
use lab_harness::{Plan, Problem, Tensor, Tensors, Version, tensor};
use lab_reference::passes::{swiglu, swiglu_back};

use crate::linear::{Activation, LINEAR, Lies, Product};
use crate::swiglu::{LinearSwiGlu, LinearSwiGluBack};

/// What both directions have made of some rows, with the product of the second alone beside it.
struct Made {
    gate_up: Tensor,
    u: Tensor,
    alone: Tensor,
    du: Tensor,
    dgate_up: Tensor,
    again: Tensor,
    without: Tensor,
    in_turns: [Tensor; 3],
}

fn make(device: &Device, dtype: DType, sizes: [usize; 3], all: &Tensors) -> Made {
    let [rows, width, k] = sizes;
    let mut plan = Plan::new(device);
    let [x, up, dy, down] =
        ["x", "up", "dy", "down"].map(|name| plan.input(name, dtype, &all[name].shape));
    let of = |plan: &mut Plan, name, columns| plan.output(name, dtype, &[rows, columns]);
    let [gate_up, dgate_up, without] =
        ["gate_up", "dgate_up", "without"].map(|n| of(&mut plan, n, 2 * width));
    let [u, alone, du, again] = ["u", "alone", "du", "again"].map(|n| of(&mut plan, n, width));
    let forward = LinearSwiGlu { dtype, sizes, x, weight: up, gate_up: Some(gate_up), u };
    forward.add(&mut plan).unwrap();
    LinearSwiGlu { gate_up: None, u: alone, ..forward }.add(&mut plan).unwrap();
    let back =
        LinearSwiGluBack { dtype, sizes, dy, weight: down, gate_up, dgate_up, u: Some(again) };
    back.add(&mut plan).unwrap();
    LinearSwiGluBack { dgate_up: without, u: None, ..back }.add(&mut plan).unwrap();
    let [with, without_u] = ["in turns", "without u in turns"].map(|n| of(&mut plan, n, 2 * width));
    let again_in_turns = of(&mut plan, "again in turns", width);
    let turned = LinearSwiGluBack { dgate_up: with, u: Some(again_in_turns), ..back };
    turned.add_in_turns(&mut plan).unwrap();
    let turned = LinearSwiGluBack { dgate_up: without_u, u: None, ..back };
    turned.add_in_turns(&mut plan).unwrap();
    Product {
        dtype,
        out: dtype,
        sizes: [1, rows, width, k],
        lies: [Lies::AlongK, Lies::AcrossK],
        scale: 1.0,
        activation: Activation::Identity,
        a: dy,
        b: down,
        bias: None,
        added: None,
        c: du,
        accumulates: false,
    }
    .add(&mut plan)
    .unwrap();
    let mut bound = plan.bind().upload_inputs(all).unwrap().finish().unwrap();
    bound.run().unwrap();
    let [gate_up, u, alone, du, dgate_up, again, without] =
        [gate_up, u, alone, du, dgate_up, again, without].map(|slot| bound.read(slot).unwrap());
    let in_turns = [with, without_u, again_in_turns].map(|slot| bound.read(slot).unwrap());
    Made { gate_up, u, alone, du, dgate_up, again, without, in_turns }
}

fn drawn(dtype: DType, [rows, width, k]: [usize; 3]) -> Tensors {
    let problem = Problem::new(LINEAR.test_shapes()[0].clone(), dtype);
    let of = |stream, shape: &[usize]| problem.normal_around(0.0, dtype, stream, shape);
    let weight = |stream, shape: &[usize]| {
        let scaled: Vec<f64> =
            of(stream, shape).values().iter().map(|v| v / (k as f64).sqrt()).collect();
        Tensor::rounded(dtype, shape, &scaled)
    };
    tensor::tensors([
        ("x", of(0, &[rows, k])),
        ("up", weight(1, &[2 * width, k])),
        ("dy", of(2, &[rows, k])),
        ("down", weight(3, &[k, width])),
    ])
}

/// u is that of the rounded gate and up, and their gradients are those by the rounded du, each rounded once: what a pass over
/// them would give. Two or three tiles for each block, backward for some, in any order of blocks and copies; rows and columns that fill no tile. Gradients do
/// not depend on whether u is made, too.
pub(crate) fn swiglu_is_that_of_what_is_stored(device: &Device) {
    if !LinearSwiGlu::takes(device, DType::BF16, [8, 8, 8]) {
        return;
    }
    let multiprocessors = device.facts().multiprocessors as usize;
    let (in_any_order, unchecked) = (schedules(device), [without_checks(device).unwrap()]);
    for (dtype, own, high, k, devices) in [
        (DType::BF16, unit::BF16, 132, 72, &in_any_order[..]),
        (DType::F16, unit::F16, 132, 72, &unchecked),
        (DType::BF16, unit::BF16, 132, 840, &unchecked),
    ] {
        let sizes @ [_, width, _] = [multiprocessors * high - 8, 136, k];
        let all = drawn(dtype, sizes);
        for device in devices {
            let made = make(device, dtype, sizes, &all);
            let (gate_up, du) = (made.gate_up.values(), made.du.values());
            let assert_rounded = |what: &str, found: &Tensor, exact: &[f64]| {
                for (n, (found, exact)) in found.values().iter().zip(exact).enumerate() {
                    // Beside the rounding: σ and its products in f32, and what f16 has no smaller numbers for.
                    let bound = (own + 16.0 * unit::F32) * exact.abs() + 6e-8;
                    assert!((found - exact).abs() <= bound, "{what} {n}: {found} for {exact}");
                }
            };
            assert_rounded("u", &made.u, &swiglu(&gate_up, width));
            assert_rounded("dgate_up", &made.dgate_up, &swiglu_back(&gate_up, &du, width));
            assert!(made.without == made.dgate_up, "{dtype}, K = {k}");
            assert!(made.alone == made.u && made.again == made.u, "{dtype}, K = {k}");
            let [with, without, again] = &made.in_turns;
            let same = *with == made.dgate_up && *without == made.dgate_up && *again == made.u;
            assert!(same, "{dtype}, K = {k}, in turns");
        }
    }
}

pub(crate) fn what_a_layer_with_swiglu_cannot_take_is_refused(device: &Device) {
    let (dtype, [rows, width, k]) = (DType::BF16, [16, 24, 8]);
    if !LinearSwiGlu::takes(device, dtype, [rows, width, k]) {
        return;
    }
    let mut plan = Plan::new(device);
    let [x, weight] = [rows * k, 2 * width * k].map(|n| plan.scratch(dtype, n));
    let [gate_up, u] = [2 * rows * width, rows * width].map(|n| plan.scratch(dtype, n));
    let sizes = [rows, width, k];
    let right = LinearSwiGlu { dtype, sizes, x, weight, gate_up: Some(gate_up), u };
    for (wrong, why) in [
        (LinearSwiGlu { dtype: DType::F32, ..right }, "dtype of a layer with SwiGLU: expected f16"),
        (LinearSwiGlu { sizes: [rows, 20, k], ..right }, "width: expected a multiple of 8"),
        (LinearSwiGlu { sizes: [rows, width, 12], ..right }, "K: expected a multiple of 8"),
        (LinearSwiGlu { x: u, ..right }, "x: expected 128 elements"),
        (LinearSwiGlu { gate_up: Some(u), ..right }, "gate_up: expected 768 elements"),
    ] {
        let refused = wrong.add(&mut plan).unwrap_err().to_string();
        assert!(refused.starts_with(why), "{refused}");
    }
    let dy = plan.scratch(dtype, rows * k);
    let weight = plan.scratch(dtype, width * k);
    let back = LinearSwiGluBack { dtype, sizes, dy, weight, gate_up, dgate_up: u, u: None };
    let refused = back.add(&mut plan).unwrap_err().to_string();
    assert!(refused.starts_with("dgate_up: expected 768 elements"), "{refused}");
}

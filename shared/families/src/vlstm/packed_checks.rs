//! What must hold of every version that takes packed sequences.

use lab_device::{DType, Device};

use super::f16_checks::{small_input_gates_of_packed_f16, takes_f16};
use super::packed_sizes;
use crate::checking::{
    assert_ends_are_refused, assert_neighbours_do_not_matter, assert_refused_with,
    with_ends_that_do_not_rise, with_last_state,
};
use crate::packed::cu_seqlens;
use lab_harness::suite::VersionCheck;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, compare, run, version_checks};

/// Of the forward pass.
pub(super) static FORWARD: &[VersionCheck] = version_checks![
    lengths_around_borders,
    neighbours_do_not_matter,
    sequences_that_do_not_fit_are_refused,
    ends_that_do_not_rise_harm_nothing,
];

/// Of the forward and the backward pass.
pub(super) static FORWARD_BACKWARD: &[VersionCheck] = version_checks![
    gradients_of_lengths_around_borders in ManySizes,
    small_input_gates_of_packed_f16 if takes_f16,
    neighbours_do_not_matter,
    sequences_that_do_not_fit_are_refused,
    ends_that_do_not_rise_harm_nothing,
];

/// Lengths on either side of the borders of chunks and of what is saved, and none, at either end and twice.
const LENGTHS: [usize; 9] = [0, 1, 63, 64, 65, 0, 0, 321, 0];

/// Inputs of sequences of these lengths, two heads each.
fn inputs_of(
    version: &dyn Version,
    lengths: &[usize],
    columns: [usize; 2],
    dtype: DType,
) -> Tensors {
    let [dhqk, dhhv] = columns;
    let sizes = packed_sizes([lengths.len(), 2, lengths.iter().sum(), dhqk, dhhv]);
    let mut inputs = version.inputs(&Problem::new(sizes, dtype));
    inputs.insert("cu_seqlens".into(), cu_seqlens(lengths));
    inputs
}

/// f32 of this shape.
fn numbers(shape: &[usize], of: impl Fn(usize) -> f64) -> Tensor {
    let values: Vec<f64> = (0..shape.iter().product()).map(of).collect();
    Tensor::rounded(DType::F32, shape, &values)
}

/// A state for each sequence, another for each.
fn with_states(mut inputs: Tensors, m0: f64) -> Tensors {
    let (n, nh) = (inputs["cu_seqlens"].len() - 1, inputs["q"].shape[1]);
    let [dhqk, dhhv] = ["q", "v"].map(|name| inputs[name].shape[3]);
    inputs.insert("C0".into(), numbers(&[n, nh, dhqk, dhhv], |at| 3.0 + (at as f64).sin()));
    inputs.insert("n0".into(), numbers(&[n, nh, dhqk], |at| 2.0 + (at as f64).cos()));
    inputs.insert("m0".into(), numbers(&[n, nh], |at| m0 + 0.1 * at as f64));
    inputs
}

/// The gradient of each sequence's last state.
fn with_last_gradients(mut inputs: Tensors) -> Tensors {
    let shape = |name: &str| inputs[name].shape.clone();
    let (c, n) = (shape("C0"), shape("n0"));
    inputs.insert("dCN".into(), numbers(&c, |at| 0.2 * (1.7 * at as f64).sin()));
    inputs.insert("dnN".into(), numbers(&n, |at| 0.3 * (1.3 * at as f64).cos()));
    inputs
}

fn assert_within_bounds(version: &dyn Version, device: &Device, inputs: &Tensors, asked: &[&str]) {
    let options = Options::parse(asked, version.info()).unwrap();
    let out = run(version, device, inputs, &options).unwrap();
    let dtype = inputs["q"].dtype;
    for c in compare(version, inputs, &out, &options, dtype) {
        let what = format!("{dtype} {asked:?} {}", inputs.contains_key("C0"));
        assert!(c.passed(), "{what}: {}", c.complaint());
    }
}

/// Each output of each sequence, and its last state, behind no state and behind one of its own.
fn lengths_around_borders(version: &dyn Version, device: &Device) {
    for (&dtype, columns) in version.info().dtypes.iter().zip([[32, 48], [128, 80]]) {
        let inputs = inputs_of(version, &LENGTHS, columns, dtype);
        assert_within_bounds(version, device, &inputs, &["last_state=yes"]);
        assert_within_bounds(version, device, &with_states(inputs, 0.3), &["last_state=yes"]);
    }
}

/// The same with the gradients, those of the states among them.
fn gradients_of_lengths_around_borders(version: &dyn Version, device: &Device) {
    for (&dtype, columns) in version.info().dtypes.iter().zip([[48, 32], [128, 80]]) {
        // Light states, as those that have gradients alone.
        let inputs = with_states(inputs_of(version, &LENGTHS, columns, dtype), -2.5);
        let both = with_last_gradients(inputs.clone());
        assert_within_bounds(version, device, &both, &["state_grad=yes", "normalizer_grad=exact"]);
        assert_within_bounds(version, device, &inputs, &["state_grad=yes", "last_state=yes"]);
        assert_within_bounds(
            version,
            device,
            &inputs_without_states(both),
            &["normalizer_grad=exact", "last_state=yes"],
        );
    }
}

fn inputs_without_states(mut inputs: Tensors) -> Tensors {
    inputs.retain(|name, _| !["C0", "n0", "m0", "dCN", "dnN"].contains(&name.as_str()));
    inputs
}

fn neighbours_do_not_matter(version: &dyn Version, device: &Device) {
    let dtype = version.info().dtypes[0];
    let all = with_states(inputs_of(version, &[70, 1, 0, 64, 33, 129], [16, 80], dtype), 0.3);
    assert_neighbours_do_not_matter(version, device, &all, &with_last_state(version));
}

/// Ends of another type or number, more than one batch.
fn sequences_that_do_not_fit_are_refused(version: &dyn Version, device: &Device) {
    let fitting = with_states(inputs_of(version, &[5, 4], [16, 16], version.info().dtypes[0]), 0.0);
    assert_ends_are_refused(version, device, &fitting);
    for (name, shape, expected) in [
        ("C0", &[3, 2, 16, 16][..], "N=2 as 'cu_seqlens', got f32 [3, 2, 16, 16]"),
        ("i", &[2, 2, 9], "shape [\"1\", \"NH\", \"T\"], got f32 [2, 2, 9]"),
    ] {
        let tensor = Some(numbers(shape, |_| 0.0));
        assert_refused_with(version, device, &fitting, (name, tensor, expected));
    }
}

/// Where ends do not rise, all positions may be one sequence's.
fn ends_that_do_not_rise_harm_nothing(version: &dyn Version, device: &Device) {
    let inputs = inputs_of(version, &[40, 30, 30, 40], [16, 16], version.info().dtypes[0]);
    let [got, right] = with_ends_that_do_not_rise(version, device, inputs);
    assert_eq!(got["h"], right["h"]);
}

//! What must hold of every version that takes packed sequences.

use lab_device::{DType, Device};

use super::f16_checks::{small_input_gates_of_packed_f16, takes_f16};
use super::packed_sizes;
use crate::checking::{Sequence, with_ends_that_do_not_rise, with_nan_around};
use crate::packed::{alone, cu_seqlens, sequences_of};
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

/// What a sequence gives alone it gives, to the bit, beside neighbours that are NaN in every element. Of the sequences every second
/// one is asked at once: what reaches beyond a neighbour has read that one, too.
fn neighbours_do_not_matter(version: &dyn Version, device: &Device) {
    let dtype = version.info().dtypes[0];
    let options = Options::parse(&["last_state=yes"], version.info()).unwrap();
    let lengths = [70, 1, 0, 64, 33, 129];
    let all = with_states(inputs_of(version, &lengths, [16, 80], dtype), 0.3);
    let sequences: Vec<Sequence> =
        sequences_of(&all).into_iter().enumerate().filter(|(_, [from, to])| from < to).collect();
    for first in [0, 1] {
        let asked: Vec<Sequence> = sequences.iter().copied().skip(first).step_by(2).collect();
        let outputs = run(version, device, &with_nan_around(&all, &asked), &options).unwrap();
        for (n, [from, to]) in asked {
            let mut own = alone(&all, n);
            own.insert("cu_seqlens".into(), cu_seqlens(&[to - from]));
            let expected = run(version, device, &own, &options).unwrap();
            for (name, tensor) in &outputs {
                let mut as_inputs: Tensors =
                    [("cu_seqlens".to_owned(), all["cu_seqlens"].clone())].into();
                let like = match name.as_str() {
                    "CN" => "C0",
                    "nN" => "n0",
                    "mN" => "m0",
                    other => other,
                };
                as_inputs.insert(like.to_owned(), tensor.clone());
                let got = &alone(&as_inputs, n)[like];
                assert_eq!(got.values(), expected[name].values(), "{name} of sequence {n}");
            }
        }
    }
}

/// Ends of another type or number, more than one batch.
fn sequences_that_do_not_fit_are_refused(version: &dyn Version, device: &Device) {
    let fitting = with_states(inputs_of(version, &[5, 4], [16, 16], version.info().dtypes[0]), 0.0);
    let said = |name: &str, tensor: Option<Tensor>| {
        let mut inputs = fitting.clone();
        match tensor {
            Some(tensor) => inputs.insert(name.to_owned(), tensor),
            None => inputs.remove(name),
        };
        run(version, device, &inputs, &Options::default()).unwrap_err().to_string()
    };
    let ends = |dtype, count: usize| Some(Tensor::rounded(dtype, &[count], &vec![0.0; count]));
    for (error, expected) in [
        (said("cu_seqlens", None), "tensor 'cu_seqlens': expected a tensor [\"N+1\"], got"),
        (
            said("cu_seqlens", ends(DType::F32, 3)),
            "tensor 'cu_seqlens': expected i32 in runs of every type, got f32",
        ),
        (
            said("cu_seqlens", ends(DType::I32, 1)),
            "tensor 'cu_seqlens': expected dimension N: expected 1 to 65535, got 0, got i32 [1]",
        ),
        (
            said("C0", Some(numbers(&[3, 2, 16, 16], |_| 0.0))),
            "tensor 'C0': expected N=2 as 'cu_seqlens', got f32 [3, 2, 16, 16]",
        ),
        (
            said("i", Some(numbers(&[2, 2, 9], |_| 0.0))),
            "tensor 'i': expected shape [\"1\", \"NH\", \"T\"], got f32 [2, 2, 9]",
        ),
    ] {
        assert!(error.starts_with(expected), "{error}");
    }
}

/// Where ends do not rise, all positions may be one sequence's.
fn ends_that_do_not_rise_harm_nothing(version: &dyn Version, device: &Device) {
    let inputs = inputs_of(version, &[40, 30, 30, 40], [16, 16], version.info().dtypes[0]);
    let [got, right] = with_ends_that_do_not_rise(version, device, inputs);
    assert_eq!(got["h"], right["h"]);
}

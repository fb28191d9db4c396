//! What must hold of every version that takes packed sequences.

use lab_device::{DType, Device};

use super::checks::{set_state_of, set_weights, takes_weights};
use super::packed::packed_sizes;
use crate::checking::{
    assert_ends_are_refused, assert_inputs_right, assert_neighbours_do_not_matter,
    assert_refused_with, options, outputs_of_sequence, set, with_ends_that_do_not_rise,
};
use crate::packed::{alone, cu_seqlens, sequences_of};
use crate::qkv::checks::dtype_of;
use lab_harness::suite::VersionCheck;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, run, version_checks};

/// Of the forward pass.
pub(super) static FORWARD: &[VersionCheck] = version_checks![
    lengths_around_borders,
    neighbours_do_not_matter,
    sequences_that_do_not_fit_are_refused,
    ends_that_do_not_rise_harm_nothing,
];

/// Of both passes.
pub(super) static BACKWARD: &[VersionCheck] = version_checks![
    gradients_of_lengths_around_borders in ManySizes,
    neighbours_do_not_matter,
    the_first_gate_of_each_keeps_nothing,
    sequences_that_do_not_fit_are_refused,
    ends_that_do_not_rise_harm_nothing,
];

/// Lengths on either side of the borders of chunks and of what is saved, and none, at either end and twice.
const LENGTHS: [usize; 9] = [0, 1, 63, 64, 65, 0, 0, 321, 0];

/// Inputs of sequences of these lengths, two heads each, which share one of keys.
fn inputs_of(
    version: &dyn Version,
    lengths: &[usize],
    [dhqk, dhhv]: [usize; 2],
    dtype: DType,
) -> Tensors {
    let sizes = packed_sizes([lengths.len(), 2, 1, lengths.iter().sum(), dhqk, dhhv]);
    let mut inputs = version.inputs(&Problem::new(sizes, dtype));
    inputs.insert("cu_seqlens".into(), cu_seqlens(lengths));
    if takes_weights(version) {
        set_weights(&mut inputs);
        let w = inputs["w"].values();
        set(&mut inputs, "w", |at| if w[at] == 0.0 { 0.5 } else { w[at] });
    }
    inputs
}

/// Gives each sequence a state, or the gradient of one.
fn set_states(inputs: &mut Tensors, name: &str, step: f64) {
    set_state_of(inputs, name, step, inputs["cu_seqlens"].len() - 1);
}

/// Each output of each sequence, and its last state, behind no state and behind one of its own.
fn lengths_around_borders(version: &dyn Version, device: &Device) {
    for (&dtype, columns) in version.info().dtypes.iter().zip([[32, 48], [128, 80], [16, 32]]) {
        let mut inputs = inputs_of(version, &LENGTHS, columns, dtype);
        let asked = options(version, &["last_state=yes"]);
        assert_inputs_right(version, device, &inputs, &asked, "no states");
        set_states(&mut inputs, "C0", 1.7);
        assert_inputs_right(version, device, &inputs, &asked, "states");
    }
}

/// The same with the gradients, those of the states among them.
fn gradients_of_lengths_around_borders(version: &dyn Version, device: &Device) {
    for (&dtype, columns) in version.info().dtypes.iter().zip([[48, 32], [128, 80], [16, 32]]) {
        let mut inputs = inputs_of(version, &LENGTHS, columns, dtype);
        let asked = options(version, &["last_state=yes"]);
        assert_inputs_right(version, device, &inputs, &asked, "no states");
        set_states(&mut inputs, "C0", 1.7);
        set_states(&mut inputs, "dCN", 1.3);
        let mut asked = vec!["state_grad=yes", "last_state=yes"];
        if takes_weights(version) {
            asked.push("weight_grad=yes");
        }
        assert_inputs_right(version, device, &inputs, &options(version, &asked), "states");
    }
}

fn neighbours_do_not_matter(version: &dyn Version, device: &Device) {
    let mut all = inputs_of(version, &[5, 40, 0, 70, 64, 3], [32, 48], dtype_of(version));
    set_states(&mut all, "C0", 1.7);
    let mut asked = vec!["last_state=yes"];
    if version.info().takes("dCN") {
        set_states(&mut all, "dCN", 1.3);
        asked.push("state_grad=yes");
    }
    assert_neighbours_do_not_matter(version, device, &all, &options(version, &asked));
}

/// Each of packed sequences has the bits that this version has of it alone.
///
/// # Panics
/// One has others.
pub fn packed_sequences_are_each_alone(
    packed: &dyn Version,
    of_one: &dyn Version,
    device: &Device,
) {
    for (&dtype, columns) in packed.info().dtypes.iter().zip([[32, 48], [128, 80], [16, 32]]) {
        let mut all = inputs_of(packed, &[65, 1, 0, 130], columns, dtype);
        set_states(&mut all, "C0", 1.7);
        let mut asked = vec!["last_state=yes"];
        if packed.info().takes("dCN") {
            set_states(&mut all, "dCN", 1.3);
            asked.push("state_grad=yes");
        }
        let outputs = run(packed, device, &all, &options(packed, &asked)).unwrap();
        for (n, [from, to]) in sequences_of(&all).into_iter().enumerate() {
            if from == to {
                continue;
            }
            let expected = run(of_one, device, &alone(&all, n), &options(of_one, &asked)).unwrap();
            for (name, got) in outputs_of_sequence(&outputs, &all["cu_seqlens"], n) {
                let what = format!("{dtype}: {name} of sequence {n}");
                assert_eq!(got.values(), expected[&name].values(), "{what}");
            }
        }
    }
}

/// Where no state goes in, the first gate of each sequence has none to keep: its gradient is 0.
fn the_first_gate_of_each_keeps_nothing(version: &dyn Version, device: &Device) {
    let inputs = inputs_of(version, &[70, 0, 30], [16, 32], dtype_of(version));
    let out = run(version, device, &inputs, &Options::default()).unwrap();
    let dg = out.get("dg").unwrap_or_else(|| &out["df"]).values();
    for first in [0, 70, 100, 170] {
        assert_eq!(dg[first], 0.0, "position {first} of all heads");
        assert_ne!(dg[first + 1], 0.0, "position {first} of all heads");
    }
}

/// Ends of another type or number, states of another number.
fn sequences_that_do_not_fit_are_refused(version: &dyn Version, device: &Device) {
    let mut fitting = inputs_of(version, &[5, 4], [16, 16], dtype_of(version));
    set_states(&mut fitting, "C0", 1.7);
    assert_ends_are_refused(version, device, &fitting);
    let zeros = |dtype, shape: &[usize]| {
        Some(Tensor::rounded(dtype, shape, &vec![0.0; shape.iter().product()]))
    };
    for (name, tensor, expected) in [
        ("C0", zeros(DType::F32, &[3, 2, 16, 16]), "N=2 as 'cu_seqlens', got f32 [3, 2, 16, 16]"),
        (
            "v",
            zeros(dtype_of(version), &[2, 2, 9, 16]),
            "shape [\"1\", \"NH\", \"T\", \"DHHV\"], got",
        ),
    ] {
        assert_refused_with(version, device, &fitting, (name, tensor, expected));
    }
}

/// Where ends do not rise, all positions may be one sequence's.
fn ends_that_do_not_rise_harm_nothing(version: &dyn Version, device: &Device) {
    let inputs = inputs_of(version, &[40, 30, 30, 40], [16, 16], dtype_of(version));
    let [got, right] = with_ends_that_do_not_rise(version, device, inputs);
    assert_eq!(got["h"], right["h"]);
}

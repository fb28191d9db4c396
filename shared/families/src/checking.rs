//! What checks of several families share.

use lab_device::{DType, Device};

use crate::packed::{STATES, alone, cu_seqlens, sequences_of};
use lab_harness::suite::schedules;
use lab_harness::tensor::tensors;
use lab_harness::{Options, Tensor, Tensors, Version, compare, run};

/// Options of the version, each as `NAME=VALUE`.
pub(crate) fn options(version: &dyn Version, asked: &[&str]) -> Options {
    Options::parse(asked, version.info()).unwrap()
}

/// Under which the state comes out.
pub(crate) fn with_last_state(version: &dyn Version) -> Options {
    options(version, &["last_state=yes"])
}

/// Gives an input the values that `of` has for the places of its elements.
pub(crate) fn set(inputs: &mut Tensors, name: &str, of: impl Fn(usize) -> f64) {
    let tensor = &inputs[name];
    let values: Vec<f64> = (0..tensor.len()).map(of).collect();
    let tensor = Tensor::rounded(tensor.dtype, &tensor.shape, &values);
    inputs.insert(name.to_owned(), tensor);
}

/// Positions `from` to `to` of the inputs of a sequence, without what belongs to its ends: states and their gradients.
pub(crate) fn part(inputs: &Tensors, from: usize, to: usize) -> Tensors {
    let of_positions = inputs.iter().filter(|(name, _)| !STATES.contains(&name.as_str()));
    of_positions.map(|(name, tensor)| (name.clone(), tensor.positions(from..to))).collect()
}

/// Under these options the inputs give what the reference says, within the version's bounds.
#[track_caller]
pub(crate) fn assert_inputs_right(
    version: &dyn Version,
    device: &Device,
    inputs: &Tensors,
    options: &Options,
    what: &str,
) {
    let outputs = run(version, device, inputs, options).unwrap();
    let dtype = inputs["q"].dtype;
    for c in compare(version, inputs, &outputs, options, dtype) {
        assert!(c.passed(), "{what} {dtype}: {}", c.complaint());
    }
}

/// The same bits in whatever order blocks and threads run; these come back.
pub(crate) fn assert_same_in_any_order(
    version: &dyn Version,
    device: &Device,
    inputs: &Tensors,
    options: &Options,
) -> Tensors {
    let outputs = run(version, device, inputs, options).unwrap();
    for device in schedules(device) {
        let again = run(version, &device, inputs, options).unwrap();
        assert!(again == outputs, "on {}", device.name());
    }
    outputs
}

/// The same, and from launch to launch.
pub(crate) fn assert_same_in_any_order_and_launch(
    version: &dyn Version,
    device: &Device,
    inputs: &Tensors,
    options: &Options,
) {
    let outputs = assert_same_in_any_order(version, device, inputs, options);
    let mut prepared = version.prepare(device, inputs, options).unwrap();
    for launch in ["first", "second"] {
        prepared.launch().unwrap();
        assert_eq!(prepared.outputs().unwrap(), outputs, "{launch} launch on {}", device.name());
        prepared.poison_outputs().unwrap();
    }
}

/// The number of a sequence, its first position and the one behind its last.
type Sequence = (usize, [usize; 2]);

/// Packed inputs with NaN in every row, gate and state but those of these sequences.
fn with_nan_around(inputs: &Tensors, asked: &[Sequence]) -> Tensors {
    let mut all = inputs.clone();
    for (name, tensor) in all.iter_mut().filter(|(name, _)| *name != "cu_seqlens") {
        let mut values = tensor.values();
        let keeps: Box<dyn Fn(usize) -> bool> = if STATES.contains(&name.as_str()) {
            let size: usize = tensor.shape[1..].iter().product();
            Box::new(move |at| asked.iter().any(|(n, _)| at / size == *n))
        } else {
            let (positions, columns) = (tensor.shape[2], tensor.shape.get(3).copied().unwrap_or(1));
            Box::new(move |at| {
                let t = at / columns % positions;
                asked.iter().any(|(_, [from, to])| (*from..*to).contains(&t))
            })
        };
        for (at, value) in values.iter_mut().enumerate() {
            if !keeps(at) {
                *value = f64::NAN;
            }
        }
        *tensor = Tensor::rounded(tensor.dtype, &tensor.shape, &values);
    }
    all
}

/// Outputs of the n-th of packed sequences, as those of one alone.
pub(crate) fn outputs_of_sequence(outputs: &Tensors, cu_seqlens: &Tensor, n: usize) -> Tensors {
    let own = |(name, tensor): (&String, &Tensor)| {
        let like = match name.as_str() {
            "CN" => "C0",
            "nN" => "n0",
            "mN" => "m0",
            "dC0" => "dCN",
            "dn0" => "dnN",
            other => other,
        };
        let all = tensors([(like, tensor.clone()), ("cu_seqlens", cu_seqlens.clone())]);
        (name.clone(), alone(&all, n).remove(like).expect("inserted"))
    };
    outputs.iter().map(own).collect()
}

/// What a sequence gives alone it gives, to the bit, beside neighbours that are NaN in every element and state. Of the sequences
/// every second one is asked at once: what reaches beyond a neighbour has read that one, too.
pub(crate) fn assert_neighbours_do_not_matter(
    version: &dyn Version,
    device: &Device,
    all: &Tensors,
    options: &Options,
) {
    let sequences = sequences_of(all).into_iter().enumerate();
    let sequences: Vec<Sequence> = sequences.filter(|(_, [from, to])| from < to).collect();
    for first in [0, 1] {
        let asked: Vec<Sequence> = sequences.iter().copied().skip(first).step_by(2).collect();
        let outputs = run(version, device, &with_nan_around(all, &asked), options).unwrap();
        for (n, [from, to]) in asked {
            let mut own = alone(all, n);
            own.insert("cu_seqlens".into(), cu_seqlens(&[to - from]));
            let expected = run(version, device, &own, options).unwrap();
            for (name, got) in outputs_of_sequence(&outputs, &all["cu_seqlens"], n) {
                assert_eq!(got.values(), expected[&name].values(), "{name} of sequence {n}");
            }
        }
    }
}

/// These inputs are refused where this one is another, or is not there: the message names it, and says what was expected.
#[track_caller]
pub(crate) fn assert_refused_with(
    version: &dyn Version,
    device: &Device,
    fitting: &Tensors,
    (name, tensor, expected): (&str, Option<Tensor>, &str),
) {
    let mut inputs = fitting.clone();
    inputs.remove(name);
    inputs.extend(tensor.map(|tensor| (name.to_owned(), tensor)));
    let error = run(version, device, &inputs, &Options::default()).unwrap_err().to_string();
    assert!(error.starts_with(&format!("tensor '{name}': expected {expected}")), "{error}");
}

/// Where packed sequences end is refused when it is not there, of another type, or of no sequence.
pub(crate) fn assert_ends_are_refused(version: &dyn Version, device: &Device, fitting: &Tensors) {
    let ends = |dtype, count: usize| Some(Tensor::rounded(dtype, &[count], &vec![0.0; count]));
    for (tensor, expected) in [
        (None, "a tensor [\"N+1\"], got"),
        (ends(DType::F32, 3), "i32 in runs of every type, got f32"),
        (ends(DType::I32, 1), "dimension N: expected 1 to 65535, got 0, got i32 [1]"),
    ] {
        assert_refused_with(version, device, fitting, ("cu_seqlens", tensor, expected));
    }
}

/// Outputs of four packed sequences of 140 positions together: where their ends fall, lie before 0 and behind T, and where
/// all positions are the first sequence's. A kernel cannot refuse such ends, and touches nothing that is not its own. What
/// comes of positions that are left out is nobody's to say; here each belongs to one sequence.
pub(crate) fn with_ends_that_do_not_rise(
    version: &dyn Version,
    device: &Device,
    mut inputs: Tensors,
) -> [Tensors; 2] {
    [[-5.0, 1e6, 2e6, -7.0, -9.0], [0.0, 140.0, 140.0, 140.0, 140.0]].map(|ends| {
        inputs.insert("cu_seqlens".into(), Tensor::rounded(DType::I32, &[5], &ends));
        run(version, device, &inputs, &Options::default()).unwrap()
    })
}

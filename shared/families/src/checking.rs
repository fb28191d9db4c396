//! What checks of several families share.

use lab_device::{DType, Device};

use crate::packed::STATES;
use lab_harness::suite::schedules;
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
pub(crate) type Sequence = (usize, [usize; 2]);

/// Packed inputs with NaN in every row, gate and state but those of these sequences.
pub(crate) fn with_nan_around(inputs: &Tensors, asked: &[Sequence]) -> Tensors {
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

//! What must hold of every version that takes packed sequences.

use lab_device::{DType, Device, DeviceKind};

use super::{CAUSAL, packed_sizes};
use crate::checking::{
    assert_ends_are_refused, assert_neighbours_do_not_matter, assert_refused_with,
    assert_same_in_any_order_and_launch, with_ends_that_do_not_rise,
};
use crate::packed::cu_seqlens;
use crate::qkv::checks::dtype_of;
use lab_harness::suite::{VersionCheck, without_checks};
use lab_harness::{Options, Problem, Tensor, Tensors, Version, compare, run, version_checks};

/// Of both families.
pub(super) static OF_EACH: &[VersionCheck] = version_checks![
    lengths_around_borders,
    large_scores_are_right in Large,
    large_problems in Large,
    neighbours_do_not_matter,
    any_schedule_gives_the_same,
    sequences_that_do_not_fit_are_refused,
    ends_that_do_not_rise_harm_nothing,
    positions_of_no_sequence_stay_as_they_were,
];

/// Lengths on either side of the borders of tiles, and none, at either end and twice.
const LENGTHS: [usize; 9] = [0, 1, 63, 64, 65, 0, 0, 200, 0];

/// Inputs of sequences of these lengths.
fn inputs_of(
    version: &dyn Version,
    lengths: &[usize],
    [nh, nkv, d]: [usize; 3],
    dtype: DType,
) -> Tensors {
    let sizes = packed_sizes([lengths.len(), nh, nkv, lengths.iter().sum(), d]);
    let mut inputs = version.inputs(&Problem::new(sizes, dtype));
    inputs.insert("cu_seqlens".into(), cu_seqlens(lengths));
    inputs
}

fn options(version: &dyn Version, causal: &str) -> Options {
    Options::parse(&[format!("{}={causal}", CAUSAL.name)], version.info()).unwrap()
}

fn assert_inputs_right(version: &dyn Version, device: &Device, inputs: &Tensors, causal: &str) {
    let options = options(version, causal);
    let outputs = run(version, device, inputs, &options).unwrap();
    let dtype = inputs["q"].dtype;
    for comparison in compare(version, inputs, &outputs, &options, dtype) {
        assert!(comparison.passed(), "{dtype}, causal={causal}: {}", comparison.complaint());
    }
}

fn lengths_around_borders(version: &dyn Version, device: &Device) {
    for (&dtype, sizes) in version.info().dtypes.iter().zip([[2, 1, 64], [4, 2, 48]]) {
        let inputs = inputs_of(version, &LENGTHS, sizes, dtype);
        assert_inputs_right(version, device, &inputs, "yes");
        assert_inputs_right(version, device, &inputs, "no");
    }
    for (lengths, sizes) in [([65, 0, 130], [1, 1, 128]), ([1, 64, 66], [1, 1, 208])] {
        let inputs = inputs_of(version, &lengths, sizes, dtype_of(version));
        assert_inputs_right(version, device, &inputs, "yes");
        assert_inputs_right(version, device, &inputs, "no");
    }
}

/// A row then gives nearly all weight to one position, and most of its exponentials underflow.
fn large_scores_are_right(version: &dyn Version, device: &Device) {
    for &dtype in version.info().dtypes {
        let mut inputs = inputs_of(version, &[90, 50], [2, 1, 64], dtype);
        let q = &inputs["q"];
        let values: Vec<f64> = q.values().iter().map(|x| 8.0 * x).collect();
        inputs.insert("q".to_owned(), Tensor::rounded(dtype, &q.shape.clone(), &values));
        assert_inputs_right(version, device, &inputs, "yes");
    }
}

/// On the emulator without its checks: they are too large to be checked.
fn large_problems(version: &dyn Version, device: &Device) {
    let (lengths, heads): (&[usize], _) = match device.kind() {
        DeviceKind::Emulator => (&[130, 7, 300], [2, 1]),
        DeviceKind::Cuda => (&[2000, 1, 777, 0, 64, 1500], [8, 2]),
    };
    let device = &without_checks(device).unwrap();
    for columns in [64, 128] {
        let [nh, nkv] = heads;
        let inputs = inputs_of(version, lengths, [nh, nkv, columns], dtype_of(version));
        assert_inputs_right(version, device, &inputs, "yes");
    }
}

fn neighbours_do_not_matter(version: &dyn Version, device: &Device) {
    for (causal, sizes) in [("yes", [2, 1, 80]), ("no", [1, 1, 144])] {
        let all = inputs_of(version, &[70, 1, 0, 64, 33, 195], sizes, dtype_of(version));
        assert_neighbours_do_not_matter(version, device, &all, &options(version, causal));
    }
}

/// Bit for bit, in whatever order blocks and threads run, and from launch to launch.
fn any_schedule_gives_the_same(version: &dyn Version, device: &Device) {
    let inputs = inputs_of(version, &[100, 0, 3, 66], [2, 1, 32], dtype_of(version));
    assert_same_in_any_order_and_launch(version, device, &inputs, &Options::default());
}

/// Ends of another type or number, more than one batch, heads that no group has.
fn sequences_that_do_not_fit_are_refused(version: &dyn Version, device: &Device) {
    let fitting = inputs_of(version, &[5, 4], [3, 3, 16], dtype_of(version));
    assert_ends_are_refused(version, device, &fitting);
    let of_shape = |shape: &[usize]| {
        let size = shape.iter().product();
        Some(Tensor::rounded(dtype_of(version), shape, &vec![0.5; size]))
    };
    for (name, tensor, expected) in [
        ("k", of_shape(&[1, 3, 8, 16]), "T=9 as 'q'"),
        ("q", of_shape(&[2, 3, 9, 16]), "shape [\"1\", \"NH\", \"T\", \"D\"]"),
    ] {
        assert_refused_with(version, device, &fitting, (name, tensor, expected));
    }
    let mut inputs = fitting.clone();
    for name in ["k", "v"] {
        inputs.insert(name.to_owned(), of_shape(&[1, 2, 9, 16]).unwrap());
    }
    let refused = run(version, device, &inputs, &Options::default()).unwrap_err().to_string();
    assert_eq!(refused, "NKV: expected a divisor of NH, 3, got 2");
}

/// Where ends do not rise, all positions may be one sequence's.
fn ends_that_do_not_rise_harm_nothing(version: &dyn Version, device: &Device) {
    let inputs = inputs_of(version, &[40, 30, 30, 40], [1, 1, 16], dtype_of(version));
    let [got, right] = with_ends_that_do_not_rise(version, device, inputs);
    assert!(got == right);
}

/// Rows before the first sequence and behind the last are nobody's, although tiles that no sequence has may lie there.
fn positions_of_no_sequence_stay_as_they_were(version: &dyn Version, device: &Device) {
    let (from, to, columns) = (200, 270, 16);
    let mut inputs = inputs_of(version, &[400], [1, 1, columns], dtype_of(version));
    let ends = [from, to].map(|end| end as f64);
    inputs.insert("cu_seqlens".into(), Tensor::rounded(DType::I32, &[2], &ends));
    let mut prepared = version.prepare(device, &inputs, &Options::default()).unwrap();
    prepared.poison_outputs().unwrap();
    prepared.launch().unwrap();
    for (name, tensor) in prepared.outputs().unwrap() {
        let columns = tensor.shape.get(3).copied().unwrap_or(1);
        for (t, row) in tensor.values().chunks(columns).enumerate() {
            let is_own = (from..to).contains(&t);
            assert!(row.iter().all(|x| x.is_finite() == is_own), "{name} of {t}: {row:?}");
        }
    }
}

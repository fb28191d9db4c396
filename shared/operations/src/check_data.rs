//! Tensors that the checks draw, and how they are compared.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::tensor::tensors;
use lab_harness::{Dims, Plan, Problem, Tensor, Tensors};

use crate::Sizes;

pub(crate) const SIZES: Sizes = Sizes { batch: 2, heads: 2, positions: 70, keys: 16, values: 32 };

/// Types, and bounds on the relative errors of two layers.
pub(crate) const TYPES: [(DType, f64); 2] = [(DType::F32, 3e-6), (DType::BF16, 2e-2)];

pub(crate) fn drawn(dtype: DType) -> Tensors {
    drawn_of(SIZES, dtype)
}

pub(crate) fn drawn_of(sizes: Sizes, dtype: DType) -> Tensors {
    let Sizes { batch: b, heads: nh, positions: s, keys, values } = sizes;
    let problem = Problem::new(Dims::default(), dtype);
    let gate = |mean, stream| problem.normal_around(mean, DType::F32, stream, &[b, nh, s]);
    tensors([
        ("q", problem.normal(0, &[b, nh, s, keys])),
        ("k", problem.normal(1, &[b, nh, s, keys])),
        ("v", problem.normal(2, &[b, nh, s, values])),
        ("i", gate(0.0, 3)),
        ("f", gate(3.0, 4)),
        ("dh", problem.normal(5, &[b, nh, s, values])),
    ])
}

pub(crate) fn inputs<const N: usize>(
    plan: &mut Plan,
    all: &Tensors,
    names: [&str; N],
) -> [Slot; N] {
    names.map(|name| plan.input(name, all[name].dtype, &all[name].shape))
}

/// How far a tensor is from what is expected: see [`lab_harness::distance()`].
pub(crate) fn relative(found: &Tensor, expected: &[f64]) -> f64 {
    lab_harness::distance(&found.values(), expected)
}

pub(crate) fn of(all: &[(&'static str, Vec<f64>)], name: &str) -> Vec<f64> {
    all.iter().find(|(own, _)| *own == name).expect("of the reference").1.clone()
}

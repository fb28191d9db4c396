//! The family `qkv`: O = (Q Kᵀ / √DHQK) V, without softmax and mask. What all its versions share:
//! tensors, reference, cost, checks, and the tiles that most have. Sizes and error bounds are a version's own.
//!
//! q, k \[B, NH, S, DHQK\], v \[B, NH, S, DHHV\] → o \[B, NH, S, DHHV\], row-major.

pub mod checks;
mod tiles;

use lab_device::DType;
use lab_reference::qkv::{Sizes, qkv};

pub use tiles::{Grid, MOST_COLUMNS, instance_for, one_a_block, test_shapes};

use lab_harness::compare::each;
use lab_harness::{
    Cost, Dim, Dims, Error, Family, Info, Input, Magnitudes, Options, Problem, Reference, Tensors,
    tensor,
};

/// The family.
pub static FAMILY: Qkv = Qkv;

/// O = (Q Kᵀ / √DHQK) V.
#[derive(Debug)]
pub struct Qkv;

impl Family for Qkv {
    fn name(&self) -> &'static str {
        "qkv"
    }

    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        inputs(problem)
    }

    fn reference(&self, _: &Info, inputs: &Tensors, _: &Options) -> Vec<(&'static str, Vec<f64>)> {
        reference(inputs)
    }

    /// The products of the absolute values.
    fn magnitudes(&self, _: &Info, inputs: &Tensors, _: &Options, _: &Reference) -> Magnitudes {
        each(reference(&absolute(inputs)))
    }

    fn independent_heads(&self, dims: &Dims) -> usize {
        heads_of(dims)
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        cost(dims, dtype)
    }

    fn replayed(&self) -> bool {
        false
    }
}

/// How many of NH heads share one of NKV.
///
/// # Errors
/// NH is no multiple of NKV.
pub fn group_of(dims: &Dims) -> Result<usize, Error> {
    let [nh, nkv] = ["NH", "NKV"].map(|name| dims.get(name));
    if nh.is_multiple_of(nkv) {
        Ok(nh / nkv)
    } else {
        Err(Error::bad("NKV", format!("a divisor of NH, {nh}"), nkv))
    }
}

/// What goes in.
pub const INPUTS: &[Input] = &[
    Input::new("q", &["B", "NH", "S", "DHQK"]),
    Input::new("k", &["B", "NH", "S", "DHQK"]),
    Input::new("v", &["B", "NH", "S", "DHHV"]),
];

/// The sizes of B, NH, S, DHQK and DHHV: of the small problem, of the timed one, the largest.
pub const fn dims([b, nh, s, dhqk, dhhv]: [[usize; 3]; 5]) -> [Dim; 5] {
    [
        Dim::new("B", "sequences of the batch", b),
        Dim::new("NH", "heads of each", nh),
        Dim::new("S", "positions of each", s),
        Dim::new("DHQK", "columns of Q and K of a head", dhqk),
        Dim::new("DHHV", "columns of V and O of a head", dhhv),
    ]
}

/// B, NH, S, DHQK, DHHV by their names.
pub fn sizes([b, nh, s, dhqk, dhhv]: [usize; 5]) -> Dims {
    Dims::new([("B", b), ("NH", nh), ("S", s), ("DHQK", dhqk), ("DHHV", dhhv)])
}

/// B, NH, S, DHQK, DHHV of a checked problem.
pub fn sizes_of(dims: &Dims) -> [usize; 5] {
    ["B", "NH", "S", "DHQK", "DHHV"].map(|d| dims.get(d))
}

/// Heads of all sequences together.
pub(crate) fn heads_of(dims: &Dims) -> usize {
    let [b, nh, ..] = sizes_of(dims);
    b * nh
}

/// Standard normal. A score then is about 1, and an output about √S: in the range of f16 for every
/// S there may be.
pub fn inputs(problem: &Problem) -> Tensors {
    let [b, nh, s, dhqk, dhhv] = sizes_of(&problem.dims);
    tensor::tensors([
        ("q", problem.normal(0, &[b, nh, s, dhqk])),
        ("k", problem.normal(1, &[b, nh, s, dhqk])),
        ("v", problem.normal(2, &[b, nh, s, dhhv])),
    ])
}

/// The absolute values of `q`, `k` and `v`.
pub(crate) fn absolute(inputs: &Tensors) -> Tensors {
    tensor::tensors(["q", "k", "v"].map(|name| (name, inputs[name].absolute())))
}

/// `o` in f64.
///
/// # Panics
/// The inputs have not been checked with [`Info::problem_of`](lab_harness::Info::problem_of).
pub fn reference(inputs: &Tensors) -> Vec<(&'static str, Vec<f64>)> {
    let size = |name: &str, axis: usize| inputs[name].shape[axis];
    let sizes = Sizes { positions: size("q", 2), qk: size("q", 3), hv: size("v", 3) };
    let [q, k, v] = ["q", "k", "v"].map(|name| inputs[name].values());
    vec![("o", qkv(&q, &k, &v, sizes))]
}

/// Both products: 2 S² (DHQK + DHHV) operations a head. Each input read once, o written once.
pub fn cost(dims: &Dims, dtype: DType) -> Cost {
    let [b, nh, s, dhqk, dhhv] = sizes_of(dims).map(|size| size as f64);
    Cost {
        flops: b * nh * 2.0 * s * s * (dhqk + dhhv),
        bytes: b * nh * s * 2.0 * (dhqk + dhhv) * dtype.size() as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_that_of_two_products() {
        // Q Kᵀ: 2 · 10 · 10 · 3; (…) V: 2 · 10 · 10 · 5, for each of 2 · 4 heads.
        let cost = cost(&sizes([2, 4, 10, 3, 5]), DType::F16);
        assert_eq!(cost.flops, 8.0 * 1600.0);
        assert_eq!(cost.bytes, 8.0 * (30.0 + 30.0 + 50.0 + 50.0) * 2.0);
    }
}

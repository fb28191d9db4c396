//! The sizes of a recurrent step, and a state to begin with.

use lab_device::DType;

use lab_harness::{Dims, Tensor, Tensors, tensor};

/// B, NH, DHQK, DHHV by their names.
pub fn sizes([b, nh, dhqk, dhhv]: [usize; 4]) -> Dims {
    Dims::new([("B", b), ("NH", nh), ("DHQK", dhqk), ("DHHV", dhhv)])
}

/// B, NH, DHQK, DHHV of a checked problem.
pub fn sizes_of(dims: &Dims) -> [usize; 4] {
    ["B", "NH", "DHQK", "DHHV"].map(|d| dims.get(d))
}

/// A state of nothing for these sizes.
pub fn no_state([b, nh, dhqk, dhhv]: [usize; 4], state: DType) -> Tensors {
    let all = |dtype, shape: &[usize], value: f64| {
        Tensor::rounded(dtype, shape, &vec![value; shape.iter().product()])
    };
    tensor::tensors([
        ("C0", all(state, &[b, nh, dhqk, dhhv], 0.0)),
        ("n0", all(DType::F32, &[b, nh, dhqk], 0.0)),
        ("m0", all(DType::F32, &[b, nh], f64::NEG_INFINITY)),
    ])
}

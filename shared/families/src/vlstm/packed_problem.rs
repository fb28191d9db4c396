//! Sequences side by side: sizes, where each lies, and one of them alone.

use lab_device::DType;

use lab_harness::{Dims, Tensor, Tensors};

/// N, NH, T, DHQK, DHHV by their names.
pub fn packed_sizes([n, nh, t, dhqk, dhhv]: [usize; 5]) -> Dims {
    Dims::new([("N", n), ("NH", nh), ("T", t), ("DHQK", dhqk), ("DHHV", dhhv)])
}

/// Begins and ends of these lengths.
pub fn cu_seqlens(lengths: &[usize]) -> Tensor {
    let ends = lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end as f64)
    });
    let all: Vec<f64> = [0.0].into_iter().chain(ends).collect();
    Tensor::rounded(DType::I32, &[all.len()], &all)
}

/// Where each sequence begins and ends.
pub(super) fn sequences_of(inputs: &Tensors) -> Vec<[usize; 2]> {
    let ends = inputs["cu_seqlens"].values();
    ends.windows(2).map(|w| [w[0] as usize, w[1] as usize]).collect()
}

/// Inputs of the n-th sequence alone, as those of one that is not packed.
pub(super) fn alone(inputs: &Tensors, n: usize) -> Tensors {
    let [from, to] = sequences_of(inputs)[n];
    let own = |(name, tensor): (&String, &Tensor)| {
        let shape = &tensor.shape;
        let (own_shape, values) = match name.as_str() {
            "cu_seqlens" => return None,
            "C0" | "n0" | "m0" | "dCN" | "dnN" => {
                let size: usize = shape[1..].iter().product();
                let values = tensor.values()[n * size..][..size].to_vec();
                ([&[1], &shape[1..]].concat(), values)
            }
            _ => {
                let (positions, columns) = (shape[2], shape.get(3).copied().unwrap_or(1));
                let of_head = |head: &[f64]| head[from * columns..to * columns].to_vec();
                let heads = tensor.values();
                let values = heads.chunks(positions * columns).flat_map(of_head).collect();
                ([&[1, shape[1], to - from], &shape[3..]].concat(), values)
            }
        };
        Some((name.clone(), Tensor::rounded(tensor.dtype, &own_shape, &values)))
    };
    inputs.iter().filter_map(own).collect()
}

//! What must hold of two versions together.

use lab_device::{DType, Device};
use lab_families::attention::sizes;
use lab_families::packed::cu_seqlens;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, run};

/// Packed sequences of one length have the bits that a batch of them has, with sequences and heads the other way round.
pub(crate) fn packed_is_as_a_batch(device: &Device, [batch, packed]: [&'static dyn Version; 2]) {
    let [b, s] = [3, 70];
    for (causal, columns) in [("yes", 64), ("no", 128)] {
        let options = |version: &dyn Version| {
            Options::parse(&[format!("causal={causal}")], version.info()).unwrap()
        };
        let problem = Problem::new(sizes([b, 2, 1, s, columns]), DType::BF16);
        let inputs = batch.inputs(&problem);
        let beside = |(name, tensor): (&String, &Tensor)| (name.clone(), packed_from(tensor));
        let mut of_packed: Tensors = inputs.iter().map(beside).collect();
        of_packed.insert("cu_seqlens".to_owned(), cu_seqlens(&[s; 3]));
        let expected = run(batch, device, &inputs, &options(batch)).unwrap();
        let found = run(packed, device, &of_packed, &options(packed)).unwrap();
        for (name, expected) in &expected {
            assert!(found[name] == packed_from(expected), "{name}, causal={causal}");
        }
    }
}

/// Positions behind the end have scores of 0. Where all others are far below, their weights are infinite, and must not count.
pub(crate) fn gone_positions_have_no_weight(device: &Device, versions: [&'static dyn Version; 2]) {
    let constant = |tensor: &Tensor, value: f64| {
        let values = vec![value; tensor.values().len()];
        Tensor::rounded(tensor.dtype, &tensor.shape, &values)
    };
    for columns in [64, 128] {
        let problem = Problem::new(sizes([1, 1, 1, 40, columns]), DType::BF16);
        let [expected, found] = versions.map(|version| {
            let mut inputs = version.inputs(&problem);
            for (name, value) in [("q", 4.0), ("k", -4.0)] {
                inputs.insert(name.to_owned(), constant(&inputs[name], value));
            }
            let options = Options::parse(&["causal=no".to_owned()], version.info()).unwrap();
            run(version, device, &inputs, &options).unwrap()
        });
        for (name, expected) in &expected {
            let (expected, found) = (expected.values(), found[name].values());
            let largest = expected.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
            let close = |(x, y): (&f64, &f64)| (x - y).abs() <= 0.02 * largest;
            assert!(expected.iter().zip(&found).all(close), "{name}, D={columns}");
        }
    }
}

/// \[B, heads, S, …\] as \[1, heads, B S, …\].
fn packed_from(tensor: &Tensor) -> Tensor {
    let [b, heads, s] = [0, 1, 2].map(|at| tensor.shape[at]);
    let values = tensor.values();
    let rows = values.len() / (b * heads);
    let mut all = Vec::with_capacity(values.len());
    for (head, n) in (0..heads).flat_map(|head| (0..b).map(move |n| (head, n))) {
        all.extend_from_slice(&values[(n * heads + head) * rows..][..rows]);
    }
    let shape = [&[1, heads, b * s], &tensor.shape[3..]].concat();
    Tensor::rounded(tensor.dtype, &shape, &all)
}

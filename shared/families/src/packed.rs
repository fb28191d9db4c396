//! Sequences of unlike lengths one behind the other, without padding: where each lies, and one of them alone.
//!
//! `cu_seqlens` i32 \[N + 1\] rises from 0 to T: sequence n has the positions from `cu_seqlens[n]` up to `cu_seqlens[n + 1]`, and
//! may have none.

use std::collections::BTreeMap;

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Dims, Plan, Request, Tensor, Tensors};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// How many sequences are packed in a checked problem; `None` where none are.
pub fn packed_sequences(dims: &Dims) -> Option<usize> {
    dims.find("N")
}

/// Parts of so many positions that a head has room for: of packed sequences as many as there may be, wherever they begin.
pub fn room_for_parts(positions: usize, part: usize, sequences: Option<usize>) -> usize {
    match sequences {
        Some(sequences) => positions / part + sequences,
        None => positions.div_ceil(part),
    }
}

/// Where packed sequences begin and end, for a plan: `cu_seqlens`, or memory of one element that a kernel must not touch.
#[derive(Clone, Copy, Debug)]
pub struct PackedSlot {
    /// How many there are; `None` where sequences are not packed.
    pub sequences: Option<usize>,
    /// The slot.
    pub cu_seqlens: Slot,
}

/// Adds it to a plan.
pub fn packed_slot(plan: &mut Plan, request: &Request<'_>) -> PackedSlot {
    let sequences = packed_sequences(&request.dims);
    let cu_seqlens = match sequences {
        Some(_) => request.input(plan, "cu_seqlens"),
        None => plan.scratch(DType::I32, 1),
    };
    PackedSlot { sequences, cu_seqlens }
}

/// Lengths that add up to `positions`: between cuts that are anywhere, two at the same place, too.
pub(crate) fn draw_lengths(rng: &mut ChaCha8Rng, sequences: usize, positions: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = (1..sequences).map(|_| rng.random_range(0..=positions)).collect();
    cuts.sort_unstable();
    let ends = cuts.iter().copied().chain([positions]);
    [0].into_iter().chain(cuts.iter().copied()).zip(ends).map(|(from, to)| to - from).collect()
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
pub(crate) fn sequences_of(inputs: &Tensors) -> Vec<[usize; 2]> {
    let ends = inputs["cu_seqlens"].values();
    ends.windows(2).map(|w| [w[0] as usize, w[1] as usize]).collect()
}

/// What belongs to the ends of a sequence and not to its positions: the states before it, and gradients of those behind it.
pub(crate) const STATES: [&str; 5] = ["C0", "n0", "m0", "dCN", "dnN"];

/// Inputs of the n-th sequence alone, as those of one that is not packed.
pub(crate) fn alone(inputs: &Tensors, n: usize) -> Tensors {
    let [from, to] = sequences_of(inputs)[n];
    let own = |(name, tensor): (&String, &Tensor)| {
        let own = match name.as_str() {
            "cu_seqlens" => return None,
            name if STATES.contains(&name) => {
                let shape = [&[1], &tensor.shape[1..]].concat();
                let size: usize = shape.iter().product();
                Tensor::rounded(tensor.dtype, &shape, &tensor.values()[n * size..][..size])
            }
            _ => tensor.positions(from..to),
        };
        Some((name.clone(), own))
    };
    inputs.iter().filter_map(own).collect()
}

/// What belongs to the ends of a sequence among the outputs: the state behind it, and gradients of the state before it.
const END_STATES: [&str; 5] = ["CN", "nN", "mN", "dC0", "dn0"];

/// Numbers of all sequences by name, from those of each one alone: `of_one`; `of_nothing` of one without positions, which has
/// states only. q is \[1, heads, T, …\].
pub(crate) fn by_sequence(
    inputs: &Tensors,
    of_one: impl Fn(&Tensors) -> Vec<(&'static str, Vec<f64>)>,
    of_nothing: impl Fn(&Tensors) -> Vec<(&'static str, Vec<f64>)>,
) -> Vec<(&'static str, Vec<f64>)> {
    let positions = inputs["q"].shape[2];
    let mut all: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for (n, [from, to]) in sequences_of(inputs).into_iter().enumerate() {
        let length = to - from;
        let own = alone(inputs, n);
        let outputs = if length > 0 { of_one(&own) } else { of_nothing(&own) };
        for (name, values) in outputs {
            let whole = all.entry(name).or_default();
            if END_STATES.contains(&name) {
                whole.extend(values);
            } else if length > 0 {
                // Heads and columns of an output are those of the input that it is like.
                let heads = inputs[head_of(name)].shape[1];
                let columns = values.len() / (heads * length);
                whole.resize(heads * positions * columns, 0.0);
                for head in 0..heads {
                    whole[(head * positions + from) * columns..][..length * columns]
                        .copy_from_slice(&values[head * length * columns..][..length * columns]);
                }
            }
        }
    }
    all.into_iter().collect()
}

/// An input that has as many heads as this output: q and k may have fewer than all else.
fn head_of(output: &str) -> &'static str {
    if ["dq", "dk"].contains(&output) { "q" } else { "v" }
}

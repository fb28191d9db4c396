//! Softmax attention over sequences of unlike lengths side by side, without padding.
//!
//! Tensors as those of one sequence of all T positions: q, do, o, dq \[1, NH, T, D\], k, v, dk, dv \[1, NKV, T, D\], lse \[1, NH, T\].
//! A position sees those of its own sequence alone: [`crate::packed`].

use std::collections::BTreeMap;

use lab_device::DType;
use lab_harness::compare::each;
use lab_harness::suite::VersionCheck;
use lab_harness::{
    Cost, Dim, Dims, Family, Info, Input, Magnitudes, Options, Problem, Reference, Tensors,
};
use lab_reference::attention::{Outputs, attention};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{
    STEP, computed, computed_magnitudes, drawn, is_causal, named, packed_checks, sizes_of,
};
use crate::packed::{alone, cu_seqlens, draw_lengths, packed_sequences, sequences_of};

/// The family of the forward pass over packed sequences: q, k, v, cu_seqlens → o, lse.
pub static PACKED_FORWARD: Packed = Packed { backward: false };

/// The family of both passes over packed sequences: q, k, v, do, cu_seqlens → o, lse, dq, dk, dv.
pub static PACKED_FORWARD_BACKWARD: Packed = Packed { backward: true };

/// See [`PACKED_FORWARD`] and [`PACKED_FORWARD_BACKWARD`].
#[derive(Debug)]
pub struct Packed {
    backward: bool,
}

/// What goes into the forward pass.
pub const PACKED_INPUTS: &[Input] = &[
    Input::new("q", &["1", "NH", "T", "D"]),
    Input::new("k", &["1", "NKV", "T", "D"]),
    Input::new("v", &["1", "NKV", "T", "D"]),
    Input::new("cu_seqlens", &["N+1"]).always(DType::I32),
];

/// What goes into both passes.
pub const PACKED_BACKWARD_INPUTS: &[Input] = &[
    PACKED_INPUTS[0],
    PACKED_INPUTS[1],
    PACKED_INPUTS[2],
    Input::new("do", &["1", "NH", "T", "D"]).from_above(),
    PACKED_INPUTS[3],
];

/// The sizes of N, NH, NKV, T and D, as [`super::dims`] has those of sequences of one length.
pub const fn packed_dims([n, nh, nkv, t, d]: [[usize; 3]; 5]) -> [Dim; 5] {
    [
        Dim::new("N", "packed sequences", n),
        Dim::new("NH", "heads of Q of each, a multiple of NKV", nh),
        Dim::new("NKV", "heads of K and V of each", nkv),
        Dim::new("T", "positions of all together", t),
        Dim::new("D", "columns of a head", d).in_steps_of(STEP),
    ]
}

/// N, NH, NKV, T, D by their names.
pub fn packed_sizes([n, nh, nkv, t, d]: [usize; 5]) -> Dims {
    Dims::new([("N", n), ("NH", nh), ("NKV", nkv), ("T", t), ("D", d)])
}

/// The lengths in a drawn problem. Whatever its seed: the cost, which knows sizes alone, is that of these lengths.
fn lengths(dims: &Dims) -> Vec<usize> {
    let sequences = packed_sequences(dims).expect("of the family");
    draw_lengths(&mut ChaCha8Rng::seed_from_u64(9), sequences, dims.get("T"))
}

/// The numbers of all, from those of each sequence alone.
fn joined(inputs: &Tensors, of_one: impl Fn(&Tensors) -> Outputs, backward: bool) -> Outputs {
    let [nh, positions] = [inputs["q"].shape[1], inputs["q"].shape[2]];
    let nkv = inputs["k"].shape[1];
    let mut all: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for (n, [from, to]) in sequences_of(inputs).into_iter().enumerate() {
        let length = to - from;
        if length == 0 {
            continue;
        }
        for (name, values) in named(of_one(&alone(inputs, n)), backward) {
            let heads = if ["dk", "dv"].contains(&name) { nkv } else { nh };
            let columns = values.len() / (heads * length);
            let whole = all.entry(name).or_insert_with(|| vec![0.0; heads * positions * columns]);
            for (head, own) in values.chunks(length * columns).enumerate() {
                whole[(head * positions + from) * columns..][..own.len()].copy_from_slice(own);
            }
        }
    }
    let mut of = |name| all.remove(name).unwrap_or_default();
    Outputs { o: of("o"), lse: of("lse"), dq: of("dq"), dk: of("dk"), dv: of("dv") }
}

impl Family for Packed {
    fn name(&self) -> &'static str {
        if self.backward { "attention_fwbw_packed" } else { "attention_packed" }
    }

    /// Standard normal; the lengths are those of the sizes.
    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        let mut all = drawn(problem, self.backward);
        all.insert("cu_seqlens".into(), cu_seqlens(&lengths(&problem.dims)));
        all
    }

    fn reference(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
    ) -> Vec<(&'static str, Vec<f64>)> {
        let causal = is_causal(info, options);
        let of_one = |own: &Tensors| computed(attention, own, causal);
        named(joined(inputs, of_one, self.backward), self.backward)
    }

    /// Those of each sequence alone.
    fn magnitudes(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
        _: &Reference,
    ) -> Magnitudes {
        let causal = is_causal(info, options);
        let of_one = |own: &Tensors| computed_magnitudes(own, causal);
        each(named(joined(inputs, of_one, self.backward), self.backward))
    }

    /// As [`super::FORWARD`] has it, with the pairs of the lengths that are drawn for these sizes.
    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [_, nh, nkv, t, d] = sizes_of(dims).map(|size| size as f64);
        let pairs: f64 = lengths(dims).into_iter().map(|length| (length * length) as f64).sum();
        let products = if self.backward { 7.0 } else { 2.0 };
        let elements = (if self.backward { 4.0 } else { 2.0 }) * (nh + nkv) * t * d;
        Cost {
            flops: nh * products * pairs * d,
            bytes: elements * dtype.size() as f64 + 4.0 * nh * t,
        }
    }

    /// As many positions as those of one length have, and one sequence, which is timed unpacked as well.
    fn bench_shapes(&self, _: &Info, dtype: DType) -> Vec<Dims> {
        match dtype {
            DType::F16 => vec![packed_sizes([4, 8, 8, 4096, 64])],
            _ => [
                [1, 16, 16, 8192, 128],
                [8, 16, 16, 16384, 128],
                [64, 16, 16, 16384, 128],
                [8, 32, 32, 16384, 64],
                [4, 8, 8, 8192, 256],
            ]
            .map(packed_sizes)
            .to_vec(),
        }
    }

    fn checks(&self) -> &'static [VersionCheck] {
        packed_checks::OF_EACH
    }
}

//! Sequences of unlike lengths side by side, without padding.
//!
//! Tensors as those of one sequence of all T positions: q, k \[1, NH, T, DHQK\], v, h \[1, NH, T, DHHV\], i, f, m, n
//! \[1, NH, T\]. `cu_seqlens` i32 \[N + 1\] rises from 0 to T: sequence n has the positions from `cu_seqlens[n]` up to
//! `cu_seqlens[n + 1]`, and may have none. Each has a state of its own: C0, CN \[N, NH, DHQK, DHHV\], n0, nN \[N, NH, DHQK\],
//! m0, mN \[N, NH\], and their gradients.

use lab_device::DType;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{
    EPSILON, References, forward_backward_cost, forward_backward_inputs,
    forward_backward_reference, forward_cost, forward_inputs, forward_reference, magnitudes,
    normalizer_grad, packed_checks, under,
};
pub use crate::packed::{PackedSlot, cu_seqlens, packed_sequences, packed_slot};
use crate::packed::{by_sequence, draw_lengths};
use crate::qkv;
use lab_harness::compare::each;
use lab_harness::suite::VersionCheck;
use lab_harness::{
    Cost, Dim, Dims, Family, Info, Input, Magnitudes, Options, Problem, Reference, Tensor, Tensors,
};

/// The family of the forward pass over packed sequences: q, k, v, i, f, cu_seqlens → h, m, n.
pub static PACKED_FORWARD: Packed = Packed { backward: false };

/// The family of the forward and the backward pass over packed sequences.
pub static PACKED_FORWARD_BACKWARD: Packed = Packed { backward: true };

/// See [`PACKED_FORWARD`] and [`PACKED_FORWARD_BACKWARD`].
#[derive(Debug)]
pub struct Packed {
    backward: bool,
}

const fn rows(name: &'static str, columns: &'static [&'static str; 4]) -> Input {
    Input::new(name, columns)
}

const fn gate(name: &'static str) -> Input {
    Input::new(name, &["1", "NH", "T"]).always(DType::F32)
}

const fn state(name: &'static str, axes: &'static [&'static str], group: &'static str) -> Input {
    Input::new(name, axes).always(DType::F32).optional(group)
}

const KEYS: &[&str; 4] = &["1", "NH", "T", "DHQK"];
const VALUES: &[&str; 4] = &["1", "NH", "T", "DHHV"];
const MATRIX: &[&str] = &["N", "NH", "DHQK", "DHHV"];
const VECTOR: &[&str] = &["N", "NH", "DHQK"];

/// What goes into the forward pass.
pub const PACKED_INPUTS: &[Input] = &[
    rows("q", KEYS),
    rows("k", KEYS),
    rows("v", VALUES),
    gate("i"),
    gate("f"),
    Input::new("cu_seqlens", &["N+1"]).always(DType::I32),
    state("C0", MATRIX, "state"),
    state("n0", VECTOR, "state"),
    state("m0", &["N", "NH"], "state"),
];

/// What goes into the forward and the backward pass.
pub const PACKED_BACKWARD_INPUTS: &[Input] = &[
    PACKED_INPUTS[0],
    PACKED_INPUTS[1],
    PACKED_INPUTS[2],
    PACKED_INPUTS[3],
    PACKED_INPUTS[4],
    rows("dh", VALUES).from_above(),
    PACKED_INPUTS[5],
    PACKED_INPUTS[6],
    PACKED_INPUTS[7],
    PACKED_INPUTS[8],
    state("dCN", MATRIX, "last state's gradient").from_above(),
    state("dnN", VECTOR, "last state's gradient").from_above(),
];

/// The sizes of N, NH, T, DHQK and DHHV, as [`super::dims`] has those of sequences of one length.
pub const fn packed_dims(sizes: [[usize; 3]; 5]) -> [Dim; 5] {
    let [n, nh, t, ..] = sizes;
    let [_, _, _, dhqk, dhhv] = super::dims(sizes);
    [
        Dim::new("N", "packed sequences", n),
        Dim::new("NH", "heads of each", nh),
        Dim::new("T", "positions of all together", t),
        dhqk,
        dhhv,
    ]
}

/// N, NH, T, DHQK, DHHV by their names.
pub fn packed_sizes([n, nh, t, dhqk, dhhv]: [usize; 5]) -> Dims {
    Dims::new([("N", n), ("NH", nh), ("T", t), ("DHQK", dhqk), ("DHHV", dhhv)])
}

/// Problems that a version takes: three of packed sequences, or of those of sequences of one length those whose keys it has room for.
pub fn fitting_shapes(info: &Info, alike: &[[usize; 5]]) -> Vec<Dims> {
    if info.takes("cu_seqlens") {
        let packed = [[1, 1, 1, 16, 16], [3, 2, 130, 64, 64], [2, 1, 700, 128, 144]];
        return packed.map(packed_sizes).to_vec();
    }
    let fitting = alike.iter().filter(|shape| shape[3] <= info.dims[3].max);
    fitting.map(|&shape| qkv::sizes(shape)).collect()
}

/// B, NH, S, DHQK, DHHV of a checked problem's tensors: of packed sequences, those of the one that they make together.
pub fn tensor_sizes(dims: &Dims) -> [usize; 5] {
    match packed_sequences(dims) {
        Some(_) => {
            let [nh, t, dhqk, dhhv] = ["NH", "T", "DHQK", "DHHV"].map(|name| dims.get(name));
            [1, nh, t, dhqk, dhhv]
        }
        None => qkv::sizes_of(dims),
    }
}

/// The reference of all, from that of each sequence alone.
fn packed_reference(inputs: &Tensors, of_one: impl Fn(&Tensors) -> References) -> References {
    by_sequence(inputs, of_one, of_nothing)
}

/// Of a sequence without positions: its last state is its first one, and so are their gradients.
fn of_nothing(inputs: &Tensors) -> References {
    let [nh, dhqk, dhhv] = [inputs["q"].shape[1], inputs["q"].shape[3], inputs["v"].shape[3]];
    let or = |name: &str, size: usize, value: f64| {
        inputs.get(name).map_or_else(|| vec![value; size], Tensor::values)
    };
    let [c, n] = [nh * dhqk * dhhv, nh * dhqk];
    vec![
        ("CN", or("C0", c, 0.0)),
        ("nN", or("n0", n, 0.0)),
        ("mN", or("m0", nh, f64::NEG_INFINITY)),
        ("dC0", or("dCN", c, 0.0)),
        ("dn0", or("dnN", n, 0.0)),
    ]
}

impl Family for Packed {
    fn name(&self) -> &'static str {
        if self.backward { "vlstm_fwbw_packed" } else { "vlstm_fw_packed" }
    }

    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        let sequences = packed_sequences(&problem.dims).expect("of the family");
        let sizes = tensor_sizes(&problem.dims);
        let flat = Problem { dims: qkv::sizes(sizes), ..problem.clone() };
        let mut all =
            if self.backward { forward_backward_inputs(&flat) } else { forward_inputs(&flat) };
        let mut rng = ChaCha8Rng::seed_from_u64(problem.seed);
        rng.set_stream(9 << 32);
        let lengths = draw_lengths(&mut rng, sequences, sizes[2]);
        all.insert("cu_seqlens".into(), cu_seqlens(&lengths));
        all
    }

    fn reference(&self, info: &Info, inputs: &Tensors, options: &Options) -> References {
        let eps = options.number(info, EPSILON.name);
        let all = packed_reference(inputs, |own| {
            if self.backward {
                forward_backward_reference(own, eps, normalizer_grad(info, options))
            } else {
                forward_reference(own, eps)
            }
        });
        under(info, options, all)
    }

    /// Those of each sequence alone.
    fn magnitudes(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
        reference: &Reference,
    ) -> Magnitudes {
        let eps = options.number(info, EPSILON.name);
        let through = self.backward.then(|| normalizer_grad(info, options));
        // h and n of each sequence are cut out as its inputs are.
        let mut whole = inputs.clone();
        for (name, like) in [("h", "v"), ("n", "i")] {
            let values = &reference.iter().find(|r| r.0 == name).expect("an output").1;
            whole.insert(name.into(), Tensor::new(&inputs[like].shape, values));
        }
        each(packed_reference(&whole, |own| {
            let reference = ["h", "n"].map(|name| (name, own[name].values()));
            magnitudes::magnitudes(own, eps, through, &reference)
        }))
    }

    /// The one long sequence has them side by side, and the ends of its sequences belong to all.
    fn independent_heads(&self, dims: &Dims) -> usize {
        dims.get("NH")
    }

    /// That of sequences of one length.
    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let sequences = packed_sequences(dims).expect("of the family");
        let [_, nh, t, dhqk, dhhv] = tensor_sizes(dims);
        let alike = qkv::sizes([sequences, nh, t.div_ceil(sequences), dhqk, dhhv]);
        if self.backward {
            forward_backward_cost(&alike, dtype)
        } else {
            forward_cost(&alike, dtype)
        }
    }

    fn checks(&self) -> &'static [VersionCheck] {
        if self.backward { packed_checks::FORWARD_BACKWARD } else { packed_checks::FORWARD }
    }
}

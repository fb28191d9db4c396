//! Sequences of unlike lengths one behind the other, without padding.
//!
//! Tensors as those of one sequence of all T positions: q, k \[1, NKV, T, DHQK\], v, h \[1, NH, T, DHHV\], gates \[1, NH, T\].
//! `cu_seqlens` i32 \[N + 1\] rises from 0 to T: sequence n has the positions from `cu_seqlens[n]` up to `cu_seqlens[n + 1]`, and may
//! have none. Each has a state of its own: C0, CN \[N, NH, DHQK, DHHV\], and their gradients.

use lab_device::DType;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{Cell, Gated, Named, STEP, sizes};
use crate::packed::draw_lengths;
pub use crate::packed::{cu_seqlens, packed_sequences};
use lab_harness::{Dim, Dims, Info, Input, Options, Problem, Tensor, Tensors};

/// The family of the forward pass over packed sequences: q, k, v, g, beta, cu_seqlens → h.
pub static PACKED_FORWARD: Gated = Gated { backward: false, cell: Cell::Delta, packed: true };

/// The family of both passes.
pub static PACKED_FORWARD_BACKWARD: Gated =
    Gated { backward: true, cell: Cell::Delta, packed: true };

/// The family of linear attention's forward pass.
pub static PACKED_LINEAR_FORWARD: Gated =
    Gated { backward: false, cell: Cell::Decay, packed: true };

/// The family of both its passes.
pub static PACKED_LINEAR_FORWARD_BACKWARD: Gated =
    Gated { backward: true, cell: Cell::Decay, packed: true };

/// The family of the same with sigmoid gates.
pub static PACKED_SIGMOID_FORWARD: Gated =
    Gated { backward: false, cell: Cell::Sigmoid, packed: true };

/// The family of both its passes.
pub static PACKED_SIGMOID_FORWARD_BACKWARD: Gated =
    Gated { backward: true, cell: Cell::Sigmoid, packed: true };

const KEYS: &[&str] = &["1", "NKV", "T", "DHQK"];
const VALUES: &[&str] = &["1", "NH", "T", "DHHV"];
const GATE: &[&str] = &["1", "NH", "T"];
const STATE: &[&str] = &["N", "NH", "DHQK", "DHHV"];

const fn gate(name: &'static str) -> Input {
    Input::new(name, GATE).always(DType::F32)
}

const Q: Input = Input::new("q", KEYS);
const K: Input = Input::new("k", KEYS);
const V: Input = Input::new("v", VALUES);
const DH: Input = Input::new("dh", VALUES).from_above();
const W: Input = gate("w").optional("weight");
const ENDS: Input = Input::new("cu_seqlens", &["N+1"]).always(DType::I32);
const FIRST: Input = Input::new("C0", STATE).always(DType::F32).optional("state");
const D_LAST: Input =
    Input::new("dCN", STATE).always(DType::F32).optional("last state's gradient").from_above();

/// What goes into the forward pass.
pub const PACKED_INPUTS: &[Input] = &[Q, K, V, gate("g"), gate("beta"), ENDS, FIRST];

/// What goes into both passes.
pub const PACKED_BACKWARD_INPUTS: &[Input] =
    &[Q, K, V, gate("g"), gate("beta"), DH, ENDS, FIRST, D_LAST];

/// What goes into the forward pass of linear attention.
pub const PACKED_LINEAR_INPUTS: &[Input] = &[Q, K, V, gate("g"), W, ENDS, FIRST];

/// What goes into both its passes.
pub const PACKED_LINEAR_BACKWARD_INPUTS: &[Input] =
    &[Q, K, V, gate("g"), W, DH, ENDS, FIRST, D_LAST];

/// What goes into the forward pass with sigmoid gates.
pub const PACKED_SIGMOID_INPUTS: &[Input] = &[Q, K, V, gate("i"), gate("f"), ENDS, FIRST];

/// What goes into both its passes.
pub const PACKED_SIGMOID_BACKWARD_INPUTS: &[Input] =
    &[Q, K, V, gate("i"), gate("f"), DH, ENDS, FIRST, D_LAST];

/// The sizes of N, NH, NKV, T, DHQK and DHHV, as [`super::dims`] has those of sequences of one length.
pub const fn packed_dims([n, nh, nkv, t, dhqk, dhhv]: [[usize; 3]; 6]) -> [Dim; 6] {
    [
        Dim::new("N", "packed sequences", n),
        Dim::new("NH", "heads of V of each, a multiple of NKV", nh),
        Dim::new("NKV", "heads of Q and K of each", nkv),
        Dim::new("T", "positions of all together", t),
        Dim::new("DHQK", "columns of Q and K of a head", dhqk).in_steps_of(STEP),
        Dim::new("DHHV", "columns of V and H of a head", dhhv).in_steps_of(STEP),
    ]
}

/// N, NH, NKV, T, DHQK, DHHV by their names.
pub fn packed_sizes([n, nh, nkv, t, dhqk, dhhv]: [usize; 6]) -> Dims {
    Dims::new([("N", n), ("NH", nh), ("NKV", nkv), ("T", t), ("DHQK", dhqk), ("DHHV", dhhv)])
}

/// Packed problems on which versions are tested: one position; heads that share keys; long sequences with wide heads.
pub const PACKED_TEST_SHAPES: [[usize; 6]; 3] =
    [[1, 1, 1, 1, 16, 16], [3, 4, 2, 130, 64, 64], [2, 1, 1, 700, 128, 144]];

/// Problems that a version takes: the `packed` ones, or of those of sequences of one length those whose keys it has room for.
pub fn fitting_shapes(info: &Info, alike: &[[usize; 6]], packed: &[[usize; 6]]) -> Vec<Dims> {
    if info.takes("cu_seqlens") {
        return packed.iter().map(|&shape| packed_sizes(shape)).collect();
    }
    let fitting = alike.iter().filter(|shape| shape[4] <= info.dims[4].max);
    fitting.map(|&shape| sizes(shape)).collect()
}

/// Inputs of all positions, with where their sequences begin and end.
pub(super) fn with_lengths(mut all: Tensors, problem: &Problem) -> Tensors {
    let sequences = packed_sequences(&problem.dims).expect("of the family");
    let mut rng = ChaCha8Rng::seed_from_u64(problem.seed);
    rng.set_stream(9 << 32);
    let lengths = draw_lengths(&mut rng, sequences, problem.dims.get("T"));
    all.insert("cu_seqlens".into(), cu_seqlens(&lengths));
    all
}

/// Of a sequence without positions: its last state is its first one, and so are their gradients.
pub(super) fn of_nothing(info: &Info, inputs: &Tensors, options: &Options) -> Named {
    let [nh, dhqk, dhhv] = [inputs["v"].shape[1], inputs["q"].shape[3], inputs["v"].shape[3]];
    let or_zeros =
        |name: &str| inputs.get(name).map_or_else(|| vec![0.0; nh * dhqk * dhhv], Tensor::values);
    let expected = info.outputs_under(options);
    let all = [("CN", or_zeros("C0")), ("dC0", or_zeros("dCN"))];
    all.into_iter().filter(|(name, _)| expected.iter().any(|o| o.name == *name)).collect()
}

//! The families of softmax attention: what all their versions share. Tensors, reference, cost, checks; sizes and error
//! bounds are a version's own.
//!
//! q \[B, NH, S, D\], k, v \[B, NKV, S, D\] → o \[B, NH, S, D\] and lse \[B, NH, S\] in f32; row-major. NH is a multiple of
//! NKV: head h of q reads head h NKV / NH of k and v, rounded down. Backward, from `do` as o: dq, dk, dv as q, k, v. The
//! equations are those of [`lab_reference::attention`].

mod checks;
mod packed;
mod packed_checks;

use lab_device::DType;
use lab_reference::attention::{Inputs, Outputs, Sizes, attention, magnitudes};

pub use self::packed::*;
use crate::packed::{PackedSlot, packed_sequences, packed_slot};
pub use crate::qkv::group_of;
use lab_harness::compare::each;
use lab_harness::plan::Slot;
use lab_harness::suite::VersionCheck;
use lab_harness::{
    Cost, Dim, Dims, Family, Info, Input, Magnitudes, Options, Plan, Problem, Reference, Request,
    Setting, Tensors, tensor,
};

/// The family of the forward pass: q, k, v → o, lse.
pub static FORWARD: Attention = Attention { backward: false };

/// The family of both passes: q, k, v, do → o, lse, dq, dk, dv.
pub static FORWARD_BACKWARD: Attention = Attention { backward: true };

/// See [`FORWARD`] and [`FORWARD_BACKWARD`].
#[derive(Debug)]
pub struct Attention {
    backward: bool,
}

/// What goes into the forward pass.
pub const FORWARD_INPUTS: &[Input] = &[
    Input::new("q", &["B", "NH", "S", "D"]),
    Input::new("k", &["B", "NKV", "S", "D"]),
    Input::new("v", &["B", "NKV", "S", "D"]),
];

/// What goes into both passes.
pub const FORWARD_BACKWARD_INPUTS: &[Input] = &[
    FORWARD_INPUTS[0],
    FORWARD_INPUTS[1],
    FORWARD_INPUTS[2],
    Input::new("do", &["B", "NH", "S", "D"]).from_above(),
];

/// Whether a position sees no later one: read it with [`is_causal`].
pub const CAUSAL: Setting =
    Setting::choice("causal", "a position sees none that come later, or sees all", &["yes", "no"]);

/// Columns of a head come in multiples of this.
pub const STEP: usize = 16;

/// The sizes of B, NH, NKV, S and D: of the small problem, of the timed one, the largest.
pub const fn dims([b, nh, nkv, s, d]: [[usize; 3]; 5]) -> [Dim; 5] {
    [
        Dim::new("B", "sequences of the batch", b),
        Dim::new("NH", "heads of Q of each, a multiple of NKV", nh),
        Dim::new("NKV", "heads of K and V of each", nkv),
        Dim::new("S", "positions of each", s),
        Dim::new("D", "columns of a head", d).in_steps_of(STEP),
    ]
}

/// B, NH, NKV, S, D by their names.
pub fn sizes([b, nh, nkv, s, d]: [usize; 5]) -> Dims {
    Dims::new([("B", b), ("NH", nh), ("NKV", nkv), ("S", s), ("D", d)])
}

/// B, NH, NKV, S, D of a checked problem's tensors: of packed sequences, those of the one that they make together.
pub fn sizes_of(dims: &Dims) -> [usize; 5] {
    let of = |name| dims.get(name);
    match packed_sequences(dims) {
        Some(_) => [1, of("NH"), of("NKV"), of("T"), of("D")],
        None => ["B", "NH", "NKV", "S", "D"].map(of),
    }
}

/// Whether these options ask for the causal one.
pub fn is_causal(info: &Info, options: &Options) -> bool {
    options.text(info, CAUSAL.name) == "yes"
}

/// The tensors of a plan for both passes, or for the forward pass: inputs and outputs under their names.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    /// Queries.
    pub q: Slot,
    /// Keys.
    pub k: Slot,
    /// Values.
    pub v: Slot,
    /// What comes out.
    pub o: Slot,
    /// log Σ exp of the scores of each row.
    pub lse: Slot,
    /// `do`, dq, dk, dv.
    pub gradients: Option<[Slot; 4]>,
    /// Where packed sequences begin and end.
    pub packed: PackedSlot,
}

impl Slots {
    /// Adds them to a plan.
    pub fn new(plan: &mut Plan, request: &Request<'_>) -> Self {
        let [b, nh, nkv, s, d] = sizes_of(&request.dims);
        let [q, k, v] = request.inputs(plan, ["q", "k", "v"]);
        let o = request.output(plan, "o", request.dtype, &[b, nh, s, d]);
        let lse = plan.output("lse", DType::F32, &[b, nh, s]);
        let gradients = request.has("do").then(|| {
            let [of_o] = request.inputs(plan, ["do"]);
            let [dq, dk, dv] = [("dq", nh), ("dk", nkv), ("dv", nkv)]
                .map(|(name, heads)| request.output(plan, name, request.dtype, &[b, heads, s, d]));
            [of_o, dq, dk, dv]
        });
        let packed = packed_slot(plan, request);
        Self { q, k, v, o, lse, gradients, packed }
    }
}

impl Family for Attention {
    fn name(&self) -> &'static str {
        if self.backward { "attention_fwbw" } else { "attention" }
    }

    /// Standard normal, so that scores are, too.
    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        drawn(problem, self.backward)
    }

    fn reference(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
    ) -> Vec<(&'static str, Vec<f64>)> {
        named(computed(attention, inputs, is_causal(info, options)), self.backward)
    }

    fn magnitudes(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
        _: &Reference,
    ) -> Magnitudes {
        each(named(computed_magnitudes(inputs, is_causal(info, options)), self.backward))
    }

    /// Those of K and V, each with all of Q that read it.
    fn independent_heads(&self, dims: &Dims) -> usize {
        let [b, _, nkv, ..] = sizes_of(dims);
        b * nkv
    }

    /// Two products forward and five backward, of S² pairs each, 2 D operations a pair; where it is causal, of half of
    /// them, as all others count it. Each tensor is read or written once.
    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [b, nh, nkv, s, d] = sizes_of(dims).map(|size| size as f64);
        let products = if self.backward { 7.0 } else { 2.0 };
        let (own, shared) = (b * nh * s * d, b * nkv * s * d);
        let elements = if self.backward { 4.0 * (own + shared) } else { 2.0 * (own + shared) };
        Cost {
            flops: b * nh * products * s * s * d,
            bytes: elements * dtype.size() as f64 + 4.0 * b * nh * s,
        }
    }

    fn bench_shapes(&self, info: &Info, dtype: DType) -> Vec<Dims> {
        let timed = info.dims[3].timed;
        match dtype {
            DType::F32 => vec![sizes([1, 8, 8, timed, 64])],
            // The other type of halves takes as long: one problem shows it.
            DType::F16 => vec![sizes([4, 8, 8, 1024, 64])],
            _ => [
                [4, 8, 8, 1024, 64],
                [8, 16, 16, 2048, 128],
                [8, 32, 32, 2048, 64],
                [4, 8, 8, 2048, 256],
                [2, 16, 16, 8192, 128],
            ]
            .into_iter()
            .filter(|shape| shape[4] <= info.dims[4].max)
            // Pairs in memory are timed where they are few.
            .filter(|shape| shape[3] <= timed || timed >= 2048)
            .map(sizes)
            .collect(),
        }
    }

    fn checks(&self) -> &'static [VersionCheck] {
        checks::OF_EACH
    }
}

/// Standard normal.
fn drawn(problem: &Problem, backward: bool) -> Tensors {
    let [b, nh, nkv, s, d] = sizes_of(&problem.dims);
    let mut all = tensor::tensors([
        ("q", problem.normal(0, &[b, nh, s, d])),
        ("k", problem.normal(1, &[b, nkv, s, d])),
        ("v", problem.normal(2, &[b, nkv, s, d])),
    ]);
    if backward {
        all.insert("do".to_owned(), problem.normal(3, &[b, nh, s, d]));
    }
    all
}

/// Numbers of both passes, or of the forward pass, by name.
fn named(all: Outputs, backward: bool) -> Vec<(&'static str, Vec<f64>)> {
    let mut named = vec![("o", all.o), ("lse", all.lse)];
    if backward {
        named.extend([("dq", all.dq), ("dk", all.dk), ("dv", all.dv)]);
    }
    named
}

/// What the rounding errors of each output are relative to.
fn computed_magnitudes(inputs: &Tensors, causal: bool) -> Outputs {
    let normal = if inputs["q"].dtype == DType::F16 { 2f64.powi(-14) } else { 0.0 };
    computed(|inputs: Inputs<'_>, sizes| magnitudes(inputs, sizes, normal), inputs, causal)
}

/// What a function of the reference makes of these inputs.
fn computed(of: impl Fn(Inputs<'_>, Sizes) -> Outputs, inputs: &Tensors, causal: bool) -> Outputs {
    let [b, nh, positions, columns] = inputs["q"].shape[..] else { panic!("q of four indices") };
    let group = nh / inputs["k"].shape[1];
    let [q, k, v] = ["q", "k", "v"].map(|name| inputs[name].values());
    let grad = inputs.get("do").map(|grad| grad.values());
    let sizes = Sizes { heads: b * nh, group, positions, columns, causal };
    of(Inputs { q: &q, k: &k, v: &v, grad: grad.as_deref() }, sizes)
}

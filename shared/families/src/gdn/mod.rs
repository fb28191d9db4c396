//! The family of the gated delta rule, and of linear attention with a decay, which erases nothing: what all their versions
//! share. Tensors, reference, cost, checks; sizes and error bounds are a version's own.
//!
//! q, k \[B, NKV, S, DHQK\], v \[B, NH, S, DHHV\], g and beta \[B, NH, S\] in f32 → h \[B, NH, S, DHHV\]; row-major. NH is a
//! multiple of NKV: head h reads head h NKV / NH of q and k, rounded down. g ≤ 0 is the logarithm of what a position keeps of
//! the state, beta in (0, 1) how much of a key's old value it replaces; keys have length one. A version may begin with a
//! state C0 \[B, NH, DHQK, DHHV\], and give the state behind the last position; states are f32 in runs of every type. The
//! equations are those of [`lab_reference::gdn`]. Linear attention has no beta; a version may take w > 0 \[B, NH, S\] in f32, the
//! weight of what a position writes. With sigmoid gates, those of mLSTMsig without a normaliser, f and i \[B, NH, S\] take the
//! place of g and w: g = log σ(f), w = σ(i).

mod backward;
mod backward_checks;
pub mod checks;
mod packed;
pub mod packed_checks;
pub mod step;
mod step_checks;
mod step_problem;

use lab_device::DType;
use lab_reference::gdn::{self, Inputs, Outputs, Sizes};
use lab_reference::vlstm::log_sigmoid;

pub use self::backward::*;
use self::backward::{backward_magnitudes, backward_reference, drawn_backward};
pub use self::packed::*;
use self::packed::{of_nothing, with_lengths};
use crate::packed::{PackedSlot, by_sequence, packed_slot};
pub use crate::qkv::group_of;
use lab_harness::compare::each;
use lab_harness::plan::Slot;
use lab_harness::suite::VersionCheck;
use lab_harness::{
    Cost, Dim, Dims, Family, Info, Input, Magnitudes, Options, Output, Plan, Problem, Reference,
    Request, Setting, Tensor, Tensors, tensor,
};

/// The family of the forward pass: q, k, v, g, beta → h.
pub static FORWARD: Gated = Gated { backward: false, cell: Cell::Delta, packed: false };

/// The family of both passes: q, k, v, g, beta, dh → h, dq, dk, dv, dg, dbeta.
pub static FORWARD_BACKWARD: Gated = Gated { backward: true, cell: Cell::Delta, packed: false };

/// The family of linear attention's forward pass: q, k, v, g → h.
pub static LINEAR_FORWARD: Gated = Gated { backward: false, cell: Cell::Decay, packed: false };

/// The family of both its passes: q, k, v, g, dh → h, dq, dk, dv, dg.
pub static LINEAR_FORWARD_BACKWARD: Gated =
    Gated { backward: true, cell: Cell::Decay, packed: false };

/// The family of the same with sigmoid gates: q, k, v, i, f → h.
pub static SIGMOID_FORWARD: Gated = Gated { backward: false, cell: Cell::Sigmoid, packed: false };

/// The family of both its passes: q, k, v, i, f, dh → h, dq, dk, dv, di, df.
pub static SIGMOID_FORWARD_BACKWARD: Gated =
    Gated { backward: true, cell: Cell::Sigmoid, packed: false };

/// See [`FORWARD`], [`LINEAR_FORWARD`], [`SIGMOID_FORWARD`], those of both passes, and each of packed sequences.
#[derive(Debug)]
pub struct Gated {
    backward: bool,
    cell: Cell,
    packed: bool,
}

/// What says how much is kept, and how much is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    /// g and beta, which erases.
    Delta,
    /// g, and w or 1.
    Decay,
    /// log σ(f) and σ(i).
    Sigmoid,
}

impl Cell {
    /// Of a version, whatever its family.
    fn of(info: &Info) -> Self {
        match (info.takes("beta"), info.takes("f")) {
            (true, _) => Self::Delta,
            (_, true) => Self::Sigmoid,
            _ => Self::Decay,
        }
    }

    /// Of what goes in.
    fn asked(request: &Request<'_>) -> Self {
        match (request.has("beta"), request.has("f")) {
            (true, _) => Self::Delta,
            (_, true) => Self::Sigmoid,
            _ => Self::Decay,
        }
    }

    /// What says how much is kept, and how much is written.
    fn gates(self) -> [&'static str; 2] {
        match self {
            Self::Delta => ["g", "beta"],
            Self::Decay => ["g", "w"],
            Self::Sigmoid => ["f", "i"],
        }
    }
}

/// The state that a version may take.
pub const STATE_INPUTS: &[Input] =
    &[Input::new("C0", &["B", "NH", "DHQK", "DHHV"]).always(DType::F32).optional("state")];

/// What goes into the forward pass.
pub const FORWARD_INPUTS: &[Input] = &[
    Input::new("q", &["B", "NKV", "S", "DHQK"]),
    Input::new("k", &["B", "NKV", "S", "DHQK"]),
    Input::new("v", &["B", "NH", "S", "DHHV"]),
    Input::new("g", &["B", "NH", "S"]).always(DType::F32),
    Input::new("beta", &["B", "NH", "S"]).always(DType::F32),
    STATE_INPUTS[0],
];

/// What goes into the forward pass of linear attention.
pub const LINEAR_INPUTS: &[Input] = &[
    FORWARD_INPUTS[0],
    FORWARD_INPUTS[1],
    FORWARD_INPUTS[2],
    FORWARD_INPUTS[3],
    WEIGHT,
    STATE_INPUTS[0],
];

const WEIGHT: Input = Input::new("w", &["B", "NH", "S"]).always(DType::F32).optional("weight");

const INPUT_GATE: Input = Input::new("i", &["B", "NH", "S"]).always(DType::F32);

const FORGET_GATE: Input = Input::new("f", &["B", "NH", "S"]).always(DType::F32);

/// What goes into the forward pass with sigmoid gates.
pub const SIGMOID_INPUTS: &[Input] = &[
    FORWARD_INPUTS[0],
    FORWARD_INPUTS[1],
    FORWARD_INPUTS[2],
    INPUT_GATE,
    FORGET_GATE,
    STATE_INPUTS[0],
];

/// What q is multiplied by: read it with [`scale_of`].
pub const SCALE: Setting =
    Setting::number("scale", "the factor of q in h; 0 stands for 1 / √DHQK", "0");

/// Whether the state behind the last position comes out: with these bounds `CN`, to be given as `C0` to the positions that
/// follow.
pub const fn last_state(outputs: &'static [Output]) -> Setting {
    Setting::choice("last_state", "whether the state CN comes out", &["no", "yes"])
        .adds("yes", outputs)
}

/// Columns of a head come in multiples of this.
pub const STEP: usize = 16;

/// The sizes of B, NH, NKV, S, DHQK and DHHV: of the small problem, of the timed one, the largest. The last two in multiples
/// of [`STEP`].
pub const fn dims([b, nh, nkv, s, dhqk, dhhv]: [[usize; 3]; 6]) -> [Dim; 6] {
    [
        Dim::new("B", "sequences of the batch", b),
        Dim::new("NH", "heads of V of each, a multiple of NKV", nh),
        Dim::new("NKV", "heads of Q and K of each", nkv),
        Dim::new("S", "positions of each", s),
        Dim::new("DHQK", "columns of Q and K of a head", dhqk).in_steps_of(STEP),
        Dim::new("DHHV", "columns of V and H of a head", dhhv).in_steps_of(STEP),
    ]
}

/// B, NH, NKV, S, DHQK, DHHV by their names.
pub fn sizes([b, nh, nkv, s, dhqk, dhhv]: [usize; 6]) -> Dims {
    Dims::new([("B", b), ("NH", nh), ("NKV", nkv), ("S", s), ("DHQK", dhqk), ("DHHV", dhhv)])
}

/// B, NH, NKV, S, DHQK, DHHV of a checked problem's tensors: of packed sequences, those of the one that they make together.
pub fn sizes_of(dims: &Dims) -> [usize; 6] {
    let [b, s] = match packed_sequences(dims) {
        Some(_) => [1, dims.get("T")],
        None => ["B", "S"].map(|name| dims.get(name)),
    };
    let [nh, nkv, dhqk, dhhv] = ["NH", "NKV", "DHQK", "DHHV"].map(|name| dims.get(name));
    [b, nh, nkv, s, dhqk, dhhv]
}

/// The axes of the states of a checked problem: those of B sequences, or of each packed one.
fn sizes_of_state(dims: &Dims) -> [usize; 4] {
    let [b, nh, _, _, dhqk, dhhv] = sizes_of(dims);
    [packed_sequences(dims).unwrap_or(b), nh, dhqk, dhhv]
}

/// s of these options for heads of `dhqk` columns of q.
pub fn scale_of(info: &Info, options: &Options, dhqk: usize) -> f64 {
    match options.number(info, SCALE.name) {
        0.0 => 1.0 / (dhqk as f64).sqrt(),
        scale => scale,
    }
}

/// The tensors of a plan for the forward pass. What is not asked for is memory of one element, which a kernel must not
/// touch: so that it has the same parameters in all cases.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    /// Queries.
    pub q: Slot,
    /// Keys.
    pub k: Slot,
    /// Values.
    pub v: Slot,
    /// The logarithms of what is kept, or forget gates.
    pub g: Slot,
    /// How much of a key's old value is replaced, or is written, or input gates; memory of one element where none go in.
    pub beta: Slot,
    /// What comes out.
    pub h: Slot,
    /// `C0`, and whether it is given.
    pub first: (Slot, bool),
    /// `CN`, and whether it is wanted.
    pub last: (Slot, bool),
    /// Where packed sequences begin and end.
    pub packed: PackedSlot,
}

impl Slots {
    /// Adds them to a plan.
    pub fn new(plan: &mut Plan, request: &Request<'_>) -> Self {
        let [b, nh, _, s, _, dhhv] = sizes_of(&request.dims);
        let [kept, written] = Cell::asked(request).gates();
        let [q, k, v, g] = request.inputs(plan, ["q", "k", "v", kept]);
        let beta = match request.has(written) {
            true => request.input(plan, written),
            false => plan.scratch(DType::F32, 1),
        };
        let h = plan.output("h", request.dtype, &[b, nh, s, dhhv]);
        let (given, wanted) = (request.has("C0"), request.text("last_state") == "yes");
        let first = if given { request.input(plan, "C0") } else { plan.scratch(DType::F32, 1) };
        let last = if wanted {
            plan.output("CN", DType::F32, &sizes_of_state(&request.dims))
        } else {
            plan.scratch(DType::F32, 1)
        };
        let packed = packed_slot(plan, request);
        Self { q, k, v, g, beta, h, first: (first, given), last: (last, wanted), packed }
    }
}

impl Family for Gated {
    fn name(&self) -> &'static str {
        let [alike, packed] = match (self.cell, self.backward) {
            (Cell::Delta, true) => ["gdn_fwbw", "gdn_fwbw_packed"],
            (Cell::Delta, false) => ["gdn_fw", "gdn_fw_packed"],
            (Cell::Decay, true) => ["linear_fwbw", "linear_fwbw_packed"],
            (Cell::Decay, false) => ["linear_fw", "linear_fw_packed"],
            (Cell::Sigmoid, true) => ["sigmoid_fwbw", "sigmoid_fwbw_packed"],
            (Cell::Sigmoid, false) => ["sigmoid_fw", "sigmoid_fw_packed"],
        };
        if self.packed { packed } else { alike }
    }

    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        let mut all = if self.backward { drawn_backward(problem) } else { drawn(problem) };
        if self.cell != Cell::Delta {
            all.remove("beta");
        }
        if self.cell == Cell::Sigmoid {
            let shape = all.remove("g").expect("drawn").shape;
            for (name, mean, stream) in [("i", 0.0, 4), ("f", 3.0, 3)] {
                let gate = problem.normal_around(mean, DType::F64, stream, &shape).values();
                all.insert(name.to_owned(), Tensor::rounded(DType::F32, &shape, &gate));
            }
        }
        if self.packed { with_lengths(all, problem) } else { all }
    }

    fn given_to_some(&self) -> &'static [Input] {
        match (self.packed, self.backward) {
            (true, _) => &[], // each version takes them
            (false, true) => STATES_OF_BACKWARD,
            (false, false) => STATE_INPUTS,
        }
    }

    fn reference(&self, info: &Info, inputs: &Tensors, options: &Options) -> Named {
        let of_one = |own: &Tensors| match self.backward {
            true => backward_reference(info, own, options),
            false => under(info, options, of_inputs(info, own, options, gdn::forward)),
        };
        if self.packed {
            return by_sequence(inputs, of_one, |own| of_nothing(info, own, options));
        }
        of_one(inputs)
    }

    fn magnitudes(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
        _: &Reference,
    ) -> Magnitudes {
        let of_one = |own: &Tensors| match self.backward {
            true => backward_magnitudes(info, own, options),
            false => under(info, options, of_inputs(info, own, options, gdn::magnitudes)),
        };
        if self.packed {
            let absolute = |(name, values): (&'static str, Vec<f64>)| {
                (name, values.into_iter().map(f64::abs).collect())
            };
            let of_none = |own: &Tensors| of_nothing(info, own, options).into_iter();
            return each(by_sequence(inputs, of_one, |own| of_none(own).map(absolute).collect()));
        }
        each(of_one(inputs))
    }

    /// Those of q and k, each with all of v that read it.
    fn independent_heads(&self, dims: &Dims) -> usize {
        let [b, _, nkv, ..] = sizes_of(dims);
        b * nkv
    }

    /// The recurrence: 7 operations for each element of the state and position, 2 for k's reading, 2 for what is written, 2
    /// for q's reading and 1 for what is kept. Its reverse has 18: 2 for each of the products that make dq, du, dk (two of them)
    /// and dg, and that change dC (two), 1 for what is kept, and 3 for the state that is made again. Who erases nothing has 2 less for k's reading, and 4 less in its
    /// reverse. Each tensor is read or
    /// written once, and of a backward pass there are twice as many.
    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [b, nh, nkv, s, dhqk, dhhv] = sizes_of(dims).map(|size| size as f64);
        let (operations, tensors) = match (self.cell == Cell::Delta, self.backward) {
            (true, false) => (7.0, 2.0),
            (true, true) => (25.0, 4.0),
            (false, false) => (5.0, 2.0),
            (false, true) => (19.0, 4.0),
        };
        let of_rows = (nkv * dhqk + nh * dhhv) * dtype.size() as f64;
        Cost {
            flops: b * nh * s * operations * dhqk * dhhv,
            bytes: b * s * tensors * (of_rows + 4.0 * nh),
        }
    }

    fn bench_shapes(&self, info: &Info, dtype: DType) -> Vec<Dims> {
        if self.packed { vec![info.timed(dtype)] } else { bench_shapes(info, dtype) }
    }

    fn checks(&self) -> &'static [VersionCheck] {
        if self.packed {
            return if self.backward { packed_checks::BACKWARD } else { packed_checks::FORWARD };
        }
        match (self.cell == Cell::Delta, self.backward) {
            (true, true) => backward_checks::CHECKS,
            (true, false) => checks::FORWARD,
            (false, true) => backward_checks::LINEAR_CHECKS,
            (false, false) => checks::LINEAR_FORWARD,
        }
    }
}

/// The problems that are timed: narrow heads, those of Qwen3-Next or of Mamba-2, and wide ones.
fn bench_shapes(info: &Info, dtype: DType) -> Vec<Dims> {
    match dtype {
        DType::BF16 => [
            [4, 8, 8, 1024, 64, 64],
            [4, 32, 32, 4096, 128, 128],
            [4, 32, 16, 4096, 128, 128],
            [1, 16, 16, 4096, 256, 256],
        ]
        .map(sizes)
        .into_iter()
        .filter(|dims| dims.get("DHQK") <= info.dims[4].max)
        .collect(),
        // The other types show one problem.
        _ => vec![sizes([4, 8, 8, 1024, 64, 64])],
    }
}

/// q and v standard normal; keys of length one, in any direction; g a log-sigmoid of a normal about 3, a gate that keeps
/// 95 %, and beta a sigmoid of a standard normal.
fn drawn(problem: &Problem) -> Tensors {
    let [b, nh, nkv, s, dhqk, dhhv] = sizes_of(&problem.dims);
    let gate = |mean, stream| problem.normal_around(mean, DType::F64, stream, &[b, nh, s]).values();
    let rounded = |values: Vec<f64>| Tensor::rounded(DType::F32, &[b, nh, s], &values);
    let k = problem.normal_around(0.0, DType::F64, 1, &[b, nkv, s, dhqk]);
    let g = gate(3.0, 3).into_iter().map(|x| -(-x).exp().ln_1p()).collect();
    let beta = gate(0.0, 4).into_iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
    tensor::tensors([
        ("q", problem.normal(0, &[b, nkv, s, dhqk])),
        ("k", Tensor::rounded(problem.dtype, &k.shape, &unit_rows(k.values(), dhqk))),
        ("v", problem.normal(2, &[b, nh, s, dhhv])),
        ("g", rounded(g)),
        ("beta", rounded(beta)),
    ])
}

/// Rows divided by their lengths.
fn unit_rows(mut all: Vec<f64>, columns: usize) -> Vec<f64> {
    for row in all.chunks_mut(columns) {
        let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        row.iter_mut().for_each(|x| *x /= length);
    }
    all
}

type Named = Vec<(&'static str, Vec<f64>)>;

/// Those outputs that these options ask for.
fn under(info: &Info, options: &Options, all: Outputs) -> Named {
    let expected = info.outputs_under(options);
    let named = [("h", all.h), ("CN", all.c)];
    named.into_iter().filter(|(name, _)| expected.iter().any(|o| o.name == *name)).collect()
}

/// What a function makes of these inputs.
fn of_inputs<R>(
    info: &Info,
    inputs: &Tensors,
    options: &Options,
    of: impl FnOnce(Inputs<'_>, Sizes) -> R,
) -> R {
    let (b, nkv) = (inputs["q"].shape[0], inputs["q"].shape[1]);
    let (nh, positions, hv) = (inputs["v"].shape[1], inputs["v"].shape[2], inputs["v"].shape[3]);
    let qk = inputs["q"].shape[3];
    let cell = Cell::of(info);
    let [kept, written] = cell.gates();
    let [q, k, v, mut g] = ["q", "k", "v", kept].map(|name| inputs[name].values());
    let ones = || vec![1.0; g.len()];
    let mut beta = inputs.get(written).map_or_else(ones, Tensor::values);
    if cell == Cell::Sigmoid {
        g.iter_mut().for_each(|f| *f = log_sigmoid(*f));
        beta.iter_mut().for_each(|i| *i = log_sigmoid(*i).exp());
    }
    let erases = cell == Cell::Delta;
    let c0 = inputs.get("C0").map(Tensor::values);
    let scale = scale_of(info, options, qk);
    let sizes = Sizes { heads: b * nh, group: nh / nkv, positions, qk, hv, scale, erases };
    let x = Inputs { q: &q, k: &k, v: &v, g: &g, beta: &beta, c0: c0.as_deref() };
    of(x, sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_that_of_the_recurrence() {
        let cost = FORWARD.cost(&sizes([2, 4, 2, 10, 16, 32]), DType::F16);
        assert_eq!(cost.flops, 8.0 * 10.0 * 7.0 * 16.0 * 32.0);
        // q and k of two heads, v and h of four; g and beta.
        let of_position = (2.0 * 2.0 * 16.0 + 2.0 * 4.0 * 32.0) * 2.0 + 2.0 * 4.0 * 4.0;
        assert_eq!(cost.bytes, 2.0 * 10.0 * of_position);
    }

    #[test]
    fn keys_have_length_one_and_gates_keep_some() {
        let all = drawn(&Problem::new(sizes([1, 2, 1, 9, 16, 32]), DType::F32));
        for key in all["k"].values().chunks(16) {
            let length = key.iter().map(|x| x * x).sum::<f64>();
            assert!((length - 1.0).abs() < 1e-6, "{length}");
        }
        assert!(all["g"].values().iter().all(|g| *g < 0.0));
        assert!(all["beta"].values().iter().all(|beta| (0.0..1.0).contains(beta)));
    }
}

//! The families of the vLSTM (the mLSTM of xLSTM) in its parallel form. What all versions of each
//! share: tensors, reference, cost, checks. Sizes and error bounds are a version's own.
//!
//! q, k \[B, NH, S, DHQK\], v \[B, NH, S, DHHV\], gate pre-activations i, f \[B, NH, S\] →
//! h \[B, NH, S, DHHV\], and of each row the largest exponent m and the normaliser n, \[B, NH, S\];
//! row-major. i, f, m and n are f32 in runs of every type: a gate in halves would forget wrongly
//! for good. A version may begin with a state C0 \[B, NH, DHQK, DHHV\], n0 \[B, NH, DHQK\], m0 \[B, NH\],
//! and give the state behind the last position; states are f32 too. Backward, from dh as h: dq, dk, dv as q, k, v, and di, df as i, f. The equations are
//! those of [`lab_reference::vlstm`].

mod asserts;
pub mod checks;
pub mod f16_checks;
mod magnitudes;
pub mod overflow;
mod packed;
mod packed_checks;
mod state_checks;
mod states;
pub mod step;
mod step_checks;
mod step_problem;

use lab_device::DType;
use lab_reference::vlstm::{
    Inputs, NormalizerGrad, Sizes, State, StateGradient, backward_in_pieces, forward_in_pieces,
    forward_ungated,
};

pub use self::packed::*;
pub use self::state_checks::{set_last_gradient, set_state};
pub use self::states::*;
use crate::qkv::{self, sizes_of};
use lab_harness::compare::each;
use lab_harness::plan::{Scope, Slot};
use lab_harness::suite::VersionCheck;
use lab_harness::{
    Cost, Dim, Dims, Error, Family, Info, Input, Magnitudes, Options, Plan, Problem, Reference,
    Request, Setting, Tensors, named,
};

/// The family of the causal products without gates and normaliser: q, k, v → h.
pub static UNGATED: Ungated = Ungated;

/// The family of the forward pass: q, k, v, i, f → h, m, n.
pub static FORWARD: Gated = Gated { backward: false };

/// What goes into the causal products.
pub const UNGATED_INPUTS: &[Input] = qkv::INPUTS;

/// What goes into the forward pass.
pub const FORWARD_INPUTS: &[Input] = &[
    qkv::INPUTS[0],
    qkv::INPUTS[1],
    qkv::INPUTS[2],
    Input::new("i", &["B", "NH", "S"]).always(DType::F32),
    Input::new("f", &["B", "NH", "S"]).always(DType::F32),
];

/// The family of the forward and the backward pass: q, k, v, i, f, dh → h, m, n, dq, dk, dv, di,
/// df.
pub static FORWARD_BACKWARD: Gated = Gated { backward: true };

/// See [`UNGATED`].
#[derive(Debug)]
pub struct Ungated;

impl Family for Ungated {
    fn name(&self) -> &'static str {
        "causal_qkv"
    }

    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        qkv::inputs(problem)
    }

    fn reference(&self, _: &Info, inputs: &Tensors, _: &Options) -> Vec<(&'static str, Vec<f64>)> {
        ungated_reference(inputs)
    }

    /// The products of the absolute values.
    fn magnitudes(&self, _: &Info, inputs: &Tensors, _: &Options, _: &Reference) -> Magnitudes {
        each(ungated_reference(&qkv::absolute(inputs)))
    }

    fn independent_heads(&self, dims: &Dims) -> usize {
        qkv::heads_of(dims)
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        ungated_cost(dims, dtype)
    }

    fn bench_shapes(&self, info: &Info, dtype: DType) -> Vec<Dims> {
        bench_shapes(info, dtype)
    }

    fn checks(&self) -> &'static [VersionCheck] {
        checks::UNGATED
    }
}

/// See [`FORWARD`] and [`FORWARD_BACKWARD`].
#[derive(Debug)]
pub struct Gated {
    backward: bool,
}

impl Family for Gated {
    fn name(&self) -> &'static str {
        if self.backward { "vlstm_fwbw" } else { "vlstm_fw" }
    }

    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        if self.backward { forward_backward_inputs(problem) } else { forward_inputs(problem) }
    }

    fn reference(&self, info: &Info, inputs: &Tensors, options: &Options) -> References {
        let eps = options.number(info, EPSILON.name);
        let all = if self.backward {
            forward_backward_reference(inputs, eps, normalizer_grad(info, options))
        } else {
            forward_reference(inputs, eps)
        };
        under(info, options, all)
    }

    fn magnitudes(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
        reference: &Reference,
    ) -> Magnitudes {
        let eps = options.number(info, EPSILON.name);
        let through = self.backward.then(|| normalizer_grad(info, options));
        each(magnitudes::magnitudes(inputs, eps, through, reference))
    }

    fn given_to_some(&self) -> &'static [Input] {
        if self.backward { STATES_OF_BACKWARD } else { STATE_INPUTS }
    }

    fn independent_heads(&self, dims: &Dims) -> usize {
        qkv::heads_of(dims)
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        if self.backward { forward_backward_cost(dims, dtype) } else { forward_cost(dims, dtype) }
    }

    fn bench_shapes(&self, info: &Info, dtype: DType) -> Vec<Dims> {
        bench_shapes(info, dtype)
    }

    fn checks(&self) -> &'static [VersionCheck] {
        if self.backward { checks::FORWARD_BACKWARD } else { checks::FORWARD }
    }
}

/// What goes into the forward and the backward pass.
pub const FORWARD_BACKWARD_INPUTS: &[Input] = &[
    FORWARD_INPUTS[0],
    FORWARD_INPUTS[1],
    FORWARD_INPUTS[2],
    FORWARD_INPUTS[3],
    FORWARD_INPUTS[4],
    Input::new("dh", &["B", "NH", "S", "DHHV"]).from_above(),
];

/// ε, which keeps the division from a zero normaliser: read it with [`epsilon`].
pub const EPSILON: Setting =
    Setting::number("eps", "added to the normaliser n before the division", "1e-6");

/// Whether the gradient goes through the normaliser n: read it with [`normalizer_grad`].
pub const NORMALIZER_GRAD: Setting = Setting::choice(
    "normalizer_grad",
    "of the gradient: the normaliser n is held constant, or is not",
    &["constant", "exact"],
);

/// Columns of a head come in multiples of this.
pub const STEP: usize = 16;

/// The sizes of B, NH, S, DHQK and DHHV: of the small problem, of the timed one, the largest. The
/// last two in multiples of [`STEP`].
pub const fn dims(sizes: [[usize; 3]; 5]) -> [Dim; 5] {
    let [b, nh, s, dhqk, dhhv] = qkv::dims(sizes);
    [b, nh, s, dhqk.in_steps_of(STEP), dhhv.in_steps_of(STEP)]
}

/// The problems that are timed: many heads, few, and a long sequence. In f16 the one that `lab compare` takes.
fn bench_shapes(info: &Info, dtype: DType) -> Vec<Dims> {
    match dtype {
        DType::F16 => vec![info.timed(dtype)],
        _ => [[4, 8, 1024, 64, 64], [1, 8, 8192, 64, 64], [8, 16, 2048, 128, 128]]
            .map(qkv::sizes)
            .to_vec(),
    }
}

/// The same and, in bf16, heads as wide as those of xLSTM's large models: of versions whose work grows with S, not with
/// its square. Of packed sequences it is the timed problem alone.
pub fn wide_bench_shapes(info: &Info, dtype: DType) -> Vec<Dims> {
    if info.takes("cu_seqlens") {
        return vec![info.timed(dtype)];
    }
    let mut all = bench_shapes(info, dtype);
    if dtype == DType::BF16 {
        all.push(qkv::sizes([8, 16, 2048, 128, 256]));
        if info.dims[3].max >= 256 && info.dims[4].max >= 512 {
            all.push(qkv::sizes([8, 8, 2048, 256, 512]));
        }
    }
    all
}

/// ε of these options.
///
/// # Errors
/// It is negative.
pub fn epsilon(info: &Info, options: &Options) -> Result<f64, Error> {
    match options.number(info, EPSILON.name) {
        eps if eps >= 0.0 => Ok(eps),
        eps => Err(Error::bad("--set eps", "a number that is not negative", eps)),
    }
}

/// What these options say of the gradient through n.
pub fn normalizer_grad(info: &Info, options: &Options) -> NormalizerGrad {
    match options.text(info, NORMALIZER_GRAD.name) {
        "exact" => NormalizerGrad::Exact,
        _ => NormalizerGrad::Constant,
    }
}

/// q, k, v, i standard normal; f normal about 3, a gate that keeps 95 %, as trained ones and their
/// usual initialisation are: a row looks back some dozen positions.
pub fn forward_inputs(problem: &Problem) -> Tensors {
    let [b, nh, s, ..] = sizes_of(&problem.dims);
    let mut all = qkv::inputs(problem);
    for (name, mean, stream) in [("i", 0.0, 3), ("f", 3.0, 4)] {
        let gate = problem.normal_around(mean, DType::F32, stream, &[b, nh, s]);
        all.insert(name.to_owned(), gate);
    }
    all
}

/// As [`forward_inputs`], and dh standard normal.
fn forward_backward_inputs(problem: &Problem) -> Tensors {
    let [b, nh, s, _, dhhv] = sizes_of(&problem.dims);
    let mut all = forward_inputs(problem);
    all.insert("dh".to_owned(), problem.normal(5, &[b, nh, s, dhhv]));
    all
}

/// The slots of the family's tensors, and the arguments that its kernels have under one name.
#[derive(Clone, Debug)]
pub struct ForwardBackwardSlots {
    /// The forget gates.
    pub f: Slot,
    /// `q` … `df` by their names, `S`, `dhqk`, `dhhv` and `scale`, which is 1 / √DHQK.
    pub scope: Scope,
}

/// Adds the inputs and outputs of the forward and the backward pass to a plan.
pub fn forward_backward_slots(plan: &mut Plan, request: &Request<'_>) -> ForwardBackwardSlots {
    let [b, nh, s, dhqk, dhhv] = tensor_sizes(&request.dims);
    let [q, k, v, i, f, dh] = request.inputs(plan, ["q", "k", "v", "i", "f", "dh"]);
    let mut output = |name, dtype, shape: &[usize]| request.output(plan, name, dtype, shape);
    let (keys, values) = ([b, nh, s, dhqk], [b, nh, s, dhhv]);
    let h = output("h", request.dtype, &values);
    let [m, n] = ["m", "n"].map(|name| output(name, DType::F32, &[b, nh, s]));
    let [dq, dk] = ["dq", "dk"].map(|name| output(name, request.dtype, &keys));
    let dv = output("dv", request.dtype, &values);
    let [di, df] = ["di", "df"].map(|name| output(name, DType::F32, &[b, nh, s]));
    let scale = 1.0 / (dhqk as f64).sqrt();
    let scope = Scope::new()
        .with(named![q, k, v, i, f, dh, h, m, n, dq, dk, dv, di, df])
        .with(named![S: s, dhqk, dhhv, scale]);
    ForwardBackwardSlots { f, scope }
}

/// Those of a version's outputs that these options ask for.
fn under(info: &Info, options: &Options, all: References) -> References {
    let expected = info.outputs_under(options);
    all.into_iter().filter(|(name, _)| expected.iter().any(|output| output.name == *name)).collect()
}

type References = Vec<(&'static str, Vec<f64>)>;

fn head_sizes(inputs: &Tensors) -> Sizes {
    let [q, v] = ["q", "v"].map(|name| &inputs[name].shape);
    Sizes { positions: q[2], qk: q[3], hv: v[3] }
}

/// How many positions the reference takes at a time: all, so that it is the equations as they stand, while that does not take
/// too long.
fn piece_of(sizes: Sizes) -> usize {
    if sizes.positions > 2048 { 512 } else { sizes.positions }
}

/// `h` of the causal products in f64.
///
/// # Panics
/// The inputs have not been checked with [`Info::problem_of`].
fn ungated_reference(inputs: &Tensors) -> Vec<(&'static str, Vec<f64>)> {
    let [q, k, v] = ["q", "k", "v"].map(|name| inputs[name].values());
    vec![("h", forward_ungated(&q, &k, &v, head_sizes(inputs)))]
}

/// The state that goes in, or none.
fn first_state(inputs: &Tensors) -> State {
    match ["C0", "n0", "m0"].map(|name| inputs.get(name)) {
        [Some(c), Some(n), Some(m)] => State { c: c.values(), n: n.values(), m: m.values() },
        _ => head_sizes(inputs).no_state(inputs["i"].shape[..2].iter().product()),
    }
}

/// The gradient by the last state that goes in, or none of as many elements as `state`.
fn last_gradient(inputs: &Tensors, state: &State) -> StateGradient {
    match ["dCN", "dnN"].map(|name| inputs.get(name)) {
        [Some(c), Some(n)] => StateGradient { c: c.values(), n: n.values() },
        _ => StateGradient { c: vec![0.0; state.c.len()], n: vec![0.0; state.n.len()] },
    }
}

/// `h`, `m`, `n`, `CN`, `nN` and `mN` in f64.
///
/// # Panics
/// The inputs have not been checked with [`Info::problem_of`].
pub fn forward_reference(inputs: &Tensors, epsilon: f64) -> Vec<(&'static str, Vec<f64>)> {
    let [q, k, v, i, f] = ["q", "k", "v", "i", "f"].map(|name| inputs[name].values());
    let x = Inputs { q: &q, k: &k, v: &v, i: &i, f: &f };
    let (sizes, state) = (head_sizes(inputs), first_state(inputs));
    let (out, last) = forward_in_pieces(x, &state, sizes, epsilon, piece_of(sizes));
    vec![("h", out.h), ("m", out.m), ("n", out.n), ("CN", last.c), ("nN", last.n), ("mN", last.m)]
}

/// The same, and `dq`, `dk`, `dv`, `di`, `df`, `dC0` and `dn0` in f64.
///
/// # Panics
/// The inputs have not been checked with [`Info::problem_of`].
pub fn forward_backward_reference(
    inputs: &Tensors,
    epsilon: f64,
    through: NormalizerGrad,
) -> Vec<(&'static str, Vec<f64>)> {
    let [q, k, v, i, f] = ["q", "k", "v", "i", "f"].map(|name| inputs[name].values());
    let x = Inputs { q: &q, k: &k, v: &v, i: &i, f: &f };
    let mut all = forward_reference(inputs, epsilon);
    let state = first_state(inputs);
    let last = last_gradient(inputs, &state);
    let dh = inputs["dh"].values();
    let sizes = head_sizes(inputs);
    let piece = piece_of(sizes);
    let (g, first) = backward_in_pieces(x, &dh, &state, &last, sizes, epsilon, through, piece);
    all.extend([("dq", g.dq), ("dk", g.dk), ("dv", g.dv), ("di", g.di), ("df", g.df)]);
    all.extend([("dC0", first.c), ("dn0", first.n)]);
    all
}

/// Both products for the S (S + 1) / 2 pairs j ≤ i of each head: 2 (DHQK + DHHV) operations a
/// pair. Each input read once, h written once.
fn ungated_cost(dims: &Dims, dtype: DType) -> Cost {
    let [b, nh, s, dhqk, dhhv] = sizes_of(dims).map(|size| size as f64);
    Cost {
        flops: b * nh * s * (s + 1.0) * (dhqk + dhhv),
        bytes: b * nh * s * 2.0 * (dhqk + dhhv) * dtype.size() as f64,
    }
}

/// As [`ungated_cost`], with i and f read and m and n written. The few operations of each pair
/// that make an exponent and its exponential are not counted.
fn forward_cost(dims: &Dims, dtype: DType) -> Cost {
    let [b, nh, s, ..] = sizes_of(dims).map(|size| size as f64);
    let cost = ungated_cost(dims, dtype);
    Cost { bytes: cost.bytes + b * nh * s * 4.0 * DType::F32.size() as f64, ..cost }
}

/// As [`forward_cost`], with two products for the gradients of each of the two: dh · v and what
/// goes into dq, dk and dv. What a backward pass computes once more is not counted.
fn forward_backward_cost(dims: &Dims, dtype: DType) -> Cost {
    let [b, nh, s, dhqk, dhhv] = sizes_of(dims).map(|size| size as f64);
    let forward = forward_cost(dims, dtype);
    let gradients = (2.0 * (dhqk + dhhv)) * dtype.size() as f64 + 2.0 * DType::F32.size() as f64;
    Cost { flops: 3.0 * forward.flops, bytes: forward.bytes + b * nh * s * gradients }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qkv::sizes;
    use lab_harness::Output;
    use lab_harness::Tensor;

    const INFO: Info = Info {
        stage: "s",
        name: "v",
        family: &FORWARD,
        parent: None,
        change: "",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &dims([[1, 1, 9], [1, 1, 9], [10, 10, 99], [16, 16, 256], [16, 16, 256]]),
        settings: &[EPSILON, NORMALIZER_GRAD],
        inputs: FORWARD_INPUTS,
        outputs: &[Output { name: "h", bounds: &[], elements: &[] }],
    };

    #[test]
    fn the_cost_is_that_of_the_pairs() {
        // 55 pairs of 10 positions, for each of 2 · 4 heads.
        let dims = sizes([2, 4, 10, 16, 32]);
        let cost = forward_cost(&dims, DType::F16);
        assert_eq!(cost.flops, 8.0 * 55.0 * 2.0 * (16.0 + 32.0));
        assert_eq!(ungated_cost(&dims, DType::F16).bytes, 8.0 * 10.0 * (16.0 + 32.0) * 2.0 * 2.0);
        assert_eq!(cost.bytes, 8.0 * 10.0 * ((16.0 + 32.0) * 2.0 * 2.0 + 4.0 * 4.0));
        // dh, dq, dk, dv: as many halves as h, q, k, v; di and df.
        let both = forward_backward_cost(&dims, DType::F16);
        assert_eq!(both.flops, 3.0 * cost.flops);
        assert_eq!(both.bytes, 8.0 * 10.0 * ((16.0 + 32.0) * 4.0 * 2.0 + 6.0 * 4.0));
    }

    #[test]
    fn gates_are_f32_in_runs_of_every_type() {
        for &dtype in INFO.dtypes {
            let dims = sizes([1, 2, 10, 16, 32]);
            let all = forward_inputs(&Problem::new(dims.clone(), dtype));
            assert_eq!(INFO.problem_of(&all).unwrap(), (dims, dtype));
            assert_eq!((all["q"].dtype, all["f"].dtype), (dtype, DType::F32));
            let out = forward_reference(&all, 1e-6);
            let lengths: Vec<usize> = out.iter().map(|o| o.1.len()).collect();
            assert_eq!(lengths, [640, 20, 20, 2 * 16 * 32, 2 * 16, 2]);
        }
        let mut all = forward_inputs(&Problem::new(sizes([1, 2, 10, 16, 32]), DType::F16));
        let f = all["f"].values();
        assert!((f.iter().sum::<f64>() / 20.0 - 3.0).abs() < 1.0, "{f:?}");
        all.insert("f".into(), Tensor::rounded(DType::F16, &[1, 2, 10], &f));
        let error = INFO.problem_of(&all).unwrap_err().to_string();
        assert_eq!(error, "tensor 'f': expected f32 in runs of every type, got f16");
    }

    #[test]
    fn a_state_is_there_as_a_whole_and_refused_by_a_version_that_takes_none() {
        const STATE: &[Output] = &[
            Output { name: "CN", bounds: &[], elements: &[] },
            Output { name: "nN", bounds: &[], elements: &[] },
        ];
        const SETTINGS: &[Setting] = &[EPSILON, last_state(STATE)];
        let with_state = Info { inputs: FORWARD_INPUTS_WITH_STATE, settings: SETTINGS, ..INFO };
        let mut all = forward_inputs(&Problem::new(sizes([1, 2, 10, 16, 32]), DType::F32));
        assert!(with_state.problem_of(&all).is_ok());
        for (name, shape) in [("C0", &[1, 2, 16, 32][..]), ("m0", &[1, 2])] {
            let zeros = vec![0f32; shape.iter().product()];
            all.insert(name.to_owned(), Tensor::new(shape, &zeros));
        }
        let said = |info: &Info, all: &Tensors| info.problem_of(all).unwrap_err().to_string();
        assert_eq!(
            said(&with_state, &all),
            "tensor 'n0': expected a tensor [\"B\", \"NH\", \"DHQK\"], as 'C0' is there: all of the state \
             or nothing of it, got a file with C0, f, i, k, m0, q, v"
        );
        assert_eq!(
            said(&INFO, &all),
            "tensor 'C0': expected none, for s:v takes no state, got f32 [1, 2, 16, 32]"
        );
        all.insert("n0".to_owned(), Tensor::new(&[1, 2, 16], &[0f32; 32]));
        assert!(with_state.problem_of(&all).is_ok());

        let outputs = |texts: &[&str]| -> Vec<_> {
            let options = Options::parse(texts, &with_state).unwrap();
            with_state.outputs_under(&options).iter().map(|o| o.name).collect()
        };
        assert_eq!(outputs(&[]), ["h"]);
        assert_eq!(outputs(&["last_state=yes"]), ["h", "CN", "nN"]);
    }

    #[test]
    fn sizes_and_options_that_do_not_fit_are_refused() {
        for size in [0, 8, 24, 272] {
            let error = INFO.complete(&Dims::new([("DHQK", size)])).unwrap_err().to_string();
            let said =
                format!("dimension DHQK: expected a multiple of 16 from 16 to 256, got {size}");
            assert_eq!(error, said);
        }
        assert!(INFO.complete(&Dims::new([("DHQK", 48), ("DHHV", 256)])).is_ok());
        let eps = |text: &str| epsilon(&INFO, &Options::parse(&[text], &INFO).unwrap());
        assert_eq!(eps("eps=0").unwrap(), 0.0);
        let said = "--set normalizer_grad: expected constant or exact, got 'both'";
        let grad = |text: &str| Options::parse(&[text], &INFO).map(|o| normalizer_grad(&INFO, &o));
        assert_eq!(grad("normalizer_grad=both").unwrap_err().to_string(), said);
        assert_eq!(grad("normalizer_grad=exact").unwrap(), NormalizerGrad::Exact);
        assert_eq!(grad("eps=1").unwrap(), NormalizerGrad::Constant);
        let error = eps("eps=-1").unwrap_err().to_string();
        assert_eq!(error, "--set eps: expected a number that is not negative, got -1");
    }
}

//! The family of the recurrent step: one position of each head, behind a state that is updated where it lies.
//!
//! q, k \[B, NH, DHQK\], v \[B, NH, DHHV\], gate pre-activations i, f \[B, NH\], and the state C0
//! \[B, NH, DHQK, DHHV\], n0 \[B, NH, DHQK\], m0 \[B, NH\] → h \[B, NH, DHHV\] and, in the memory of the state,
//! CN, nN, mN. The equations are those of [`lab_reference::vlstm`] with one position. A state that
//! [`super::FORWARD`] leaves can be given, and the other way round.
//!
//! C is nearly all that is moved. It may be f32, or in runs of bf16 half as wide; n and m are always f32.

use lab_device::DType;
use lab_reference::vlstm::{Inputs, Sizes, State, forward_from};

use super::EPSILON;
pub use super::step_problem::{no_state, sizes, sizes_of};
pub use crate::step_state::{STATE, state_dtype};
use crate::step_state::{check_state, drawn_dtype};
use lab_harness::compare::each;
use lab_harness::plan::{Scope, Slot};
use lab_harness::suite::VersionCheck;
use lab_harness::{
    Cost, Dim, Dims, Error, Family, Info, Input, Magnitudes, Options, Plan, Problem, Reference,
    Request, Tensors, named, tensor,
};

/// The family.
pub static FAMILY: Step = Step;

/// The recurrent step.
#[derive(Debug)]
pub struct Step;

/// What goes in. All of the state must be there, for it is also where the next one goes: zeros and m0 = −∞ stand for
/// none.
pub const INPUTS: &[Input] = &[
    Input::new("q", &["B", "NH", "DHQK"]),
    Input::new("k", &["B", "NH", "DHQK"]),
    Input::new("v", &["B", "NH", "DHHV"]),
    Input::new("i", &["B", "NH"]).always(DType::F32),
    Input::new("f", &["B", "NH"]).always(DType::F32),
    Input::new("C0", &["B", "NH", "DHQK", "DHHV"]).always(DType::F32).or(&[DType::BF16]),
    Input::new("n0", &["B", "NH", "DHQK"]).always(DType::F32),
    Input::new("m0", &["B", "NH"]).always(DType::F32),
];

/// The sizes of B, NH, DHQK and DHHV: of the small problem, of the timed one, the largest. The last two in multiples of
/// [`super::STEP`].
pub const fn dims([b, nh, dhqk, dhhv]: [[usize; 3]; 4]) -> [Dim; 4] {
    [
        Dim::new("B", "sequences of the batch", b),
        Dim::new("NH", "heads of each", nh),
        Dim::new("DHQK", "columns of q and k of a head, rows of C", dhqk).in_steps_of(super::STEP),
        Dim::new("DHHV", "columns of v and h of a head, and of C", dhhv).in_steps_of(super::STEP),
    ]
}

impl Family for Step {
    fn name(&self) -> &'static str {
        "vlstm_step"
    }

    fn draw_inputs(&self, info: &Info, problem: &Problem) -> Tensors {
        let state = drawn_dtype(info, problem);
        inputs(problem, state)
    }

    fn reference(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
    ) -> Vec<(&'static str, Vec<f64>)> {
        reference(inputs, options.number(info, EPSILON.name))
    }

    fn magnitudes(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
        _: &Reference,
    ) -> Magnitudes {
        each(super::magnitudes::of_step(inputs, options.number(info, EPSILON.name)))
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        cost(dims, dtype, state_dtype(dtype))
    }

    fn bench_shapes(&self, info: &Info, dtype: DType) -> Vec<Dims> {
        bench_shapes(info, dtype)
    }

    fn checks(&self) -> &'static [VersionCheck] {
        super::step_checks::CHECKS
    }
}

/// A sequence alone, a small batch of narrow heads, a large one of wide heads. In f16 the one that `lab compare`
/// takes: its state is that of f32.
fn bench_shapes(info: &Info, dtype: DType) -> Vec<Dims> {
    match dtype {
        DType::F16 => vec![info.dims.iter().fold(Dims::default(), |mut dims, dim| {
            dims.set(dim.name, dim.timed);
            dims
        })],
        _ => [[1, 8, 256, 512], [8, 16, 128, 256], [64, 8, 256, 512]].map(sizes).to_vec(),
    }
}

/// Gates as in [`super::forward_inputs`], all else standard normal: about what some dozen positions leave.
fn inputs(problem: &Problem, state: DType) -> Tensors {
    let [b, nh, dhqk, dhhv] = sizes_of(&problem.dims);
    let f32s =
        |mean, stream, shape: &[usize]| problem.normal_around(mean, DType::F32, stream, shape);
    tensor::tensors([
        ("q", problem.normal(0, &[b, nh, dhqk])),
        ("k", problem.normal(1, &[b, nh, dhqk])),
        ("v", problem.normal(2, &[b, nh, dhhv])),
        ("i", f32s(0.0, 3, &[b, nh])),
        ("f", f32s(3.0, 4, &[b, nh])),
        ("C0", problem.normal_around(0.0, state, 5, &[b, nh, dhqk, dhhv])),
        ("n0", f32s(0.0, 6, &[b, nh, dhqk])),
        ("m0", f32s(0.0, 7, &[b, nh])),
    ])
}

/// `h`, `CN`, `nN` and `mN` in f64, of a sequence of one position.
///
/// # Panics
/// The inputs have not been checked with [`Info::problem_of`].
pub fn reference(inputs: &Tensors, epsilon: f64) -> Vec<(&'static str, Vec<f64>)> {
    let [q, k, v, i, f] = ["q", "k", "v", "i", "f"].map(|name| inputs[name].values());
    let x = Inputs { q: &q, k: &k, v: &v, i: &i, f: &f };
    let [c, n, m] = ["C0", "n0", "m0"].map(|name| inputs[name].values());
    let sizes = Sizes { positions: 1, qk: inputs["q"].shape[2], hv: inputs["v"].shape[2] };
    let (out, last) = forward_from(x, &State { c, n, m }, sizes, epsilon);
    vec![("h", out.h), ("CN", last.c), ("nN", last.n), ("mN", last.m)]
}

/// Five operations for each element of C: two make it, one keeps what was there, two read it. The state is read and written once, all
/// else read or written once.
fn cost(dims: &Dims, dtype: DType, state: DType) -> Cost {
    let [b, nh, dhqk, dhhv] = sizes_of(dims).map(|size| size as f64);
    let of_state = 2.0 * (dhqk * dhhv * state.size() as f64 + (dhqk + 1.0) * 4.0);
    let of_position = 2.0 * (dhqk + dhhv) * dtype.size() as f64 + 2.0 * 4.0;
    Cost { flops: b * nh * 5.0 * dhqk * dhhv, bytes: b * nh * (of_state + of_position) }
}

/// The slots of a step, and the arguments that its kernels have under one name.
#[derive(Clone, Debug)]
pub struct StepSlots {
    /// The type of C.
    pub state: DType,
    /// `q`, `k`, `v`, `i_gate`, `f_gate`, `C`, `n`, `m`, `h`, `dhqk`, `dhhv`, `scale`, which is 1 / √DHQK, and
    /// `eps`.
    pub scope: Scope,
}

/// Adds what a step reads and writes to a plan.
///
/// # Errors
/// ε is negative; C0 is not of the type that was asked for, or is narrower than f32 in a run that is not.
pub fn slots(plan: &mut Plan, info: &Info, request: &Request<'_>) -> Result<StepSlots, Error> {
    let [b, nh, dhqk, dhhv] = sizes_of(&request.dims);
    let eps = super::epsilon(info, request.options())?;
    let state = request.shape("C0").dtype;
    check_state(state, request.dtype, request.text(STATE.name))?;
    let [q, k, v, i_gate, f_gate] = request.inputs(plan, ["q", "k", "v", "i", "f"]);
    let keys: &[usize] = &[b, nh, dhqk];
    let c: Slot = plan.updated("C0", "CN", state, &[b, nh, dhqk, dhhv]);
    let n = plan.updated("n0", "nN", DType::F32, keys);
    let m = plan.updated("m0", "mN", DType::F32, &[b, nh]);
    let h = plan.output("h", request.dtype, &[b, nh, dhhv]);
    let scale = 1.0 / (dhqk as f64).sqrt();
    let scope = Scope::new()
        .with(named![q, k, v, i_gate, f_gate, C: c, n, m, h])
        .with(named![dhqk, dhhv, scale, eps]);
    Ok(StepSlots { state, scope })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_harness::Tensor;

    const INFO: Info = Info {
        stage: "s",
        name: "v",
        family: &FAMILY,
        parent: None,
        change: "",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &dims([[1, 1, 9], [1, 1, 9], [16, 16, 512], [16, 16, 512]]),
        settings: &[EPSILON, STATE],
        inputs: INPUTS,
        outputs: &[],
    };

    #[test]
    fn the_cost_is_that_of_the_state_read_and_written() {
        let dims = sizes([2, 4, 16, 32]);
        let cost = FAMILY.cost(&dims, DType::BF16);
        assert_eq!(cost.flops, 8.0 * 5.0 * 16.0 * 32.0);
        // C in bf16, n and m; q, k, v and h; the two gates.
        let of_head = 2.0 * (512.0 * 2.0 + 17.0 * 4.0) + 2.0 * 48.0 * 2.0 + 8.0;
        assert_eq!(cost.bytes, 8.0 * of_head);
        let of_head = 2.0 * (512.0 * 4.0 + 17.0 * 4.0) + 2.0 * 48.0 * 2.0 + 8.0;
        assert_eq!(FAMILY.cost(&dims, DType::F16).bytes, 8.0 * of_head);
    }

    #[test]
    fn the_states_type_is_as_asked_and_as_the_run_else() {
        let drawn = |dtype, texts: &[&str]| {
            let options = Options::parse(texts, &INFO).unwrap();
            let problem = Problem { options, ..Problem::new(sizes([1, 2, 16, 32]), dtype) };
            let all = FAMILY.draw_inputs(&INFO, &problem);
            assert_eq!(INFO.problem_of(&all).unwrap(), (problem.dims, dtype));
            all["C0"].dtype
        };
        assert_eq!(drawn(DType::F32, &[]), DType::F32);
        assert_eq!(drawn(DType::F16, &[]), DType::F32);
        assert_eq!(drawn(DType::BF16, &[]), DType::BF16);
        assert_eq!(drawn(DType::BF16, &["state=f32"]), DType::F32);

        let mut all = FAMILY.draw_inputs(&INFO, &Problem::new(sizes([1, 2, 16, 32]), DType::F16));
        let halves = Tensor::rounded(DType::F16, &[1, 2, 16, 32], &[0.0; 1024]);
        all.insert("C0".into(), halves);
        let error = INFO.problem_of(&all).unwrap_err().to_string();
        assert_eq!(error, "tensor 'C0': expected f32 or bf16 in runs of every type, got f16");
    }

    #[test]
    fn the_reference_is_the_recurrence_as_it_stands() {
        let problem = Problem::new(sizes([1, 2, 16, 32]), DType::F32);
        let all = FAMILY.draw_inputs(&INFO, &problem);
        let at =
            |name: &str, head: usize, len: usize| all[name].values()[head * len..][..len].to_vec();
        let out = reference(&all, 0.5);
        for head in 0..2 {
            let [q, k, v] = [at("q", head, 16), at("k", head, 16), at("v", head, 32)];
            let [i, f, m0] = ["i", "f", "m0"].map(|name| at(name, head, 1)[0]);
            let (c0, n0) = (at("C0", head, 512), at("n0", head, 16));
            let old = m0 - (-f).exp().ln_1p();
            let m = old.max(i);
            let (kept, written) = ((old - m).exp(), (i - m).exp());
            let near = |name: &str, got: f64, expected: f64| {
                assert!((got - expected).abs() <= 1e-12 * (1.0 + expected.abs()), "{name}");
            };
            let of = |name: &str| &out.iter().find(|o| o.0 == name).unwrap().1;
            near("mN", of("mN")[head], m);
            let n: Vec<f64> = (0..16).map(|r| kept * n0[r] + written * k[r]).collect();
            let l = 0.25 * (0..16).map(|r| q[r] * n[r]).sum::<f64>();
            for c in 0..32 {
                let cell = |r: usize| kept * c0[r * 32 + c] + written * k[r] * v[c];
                (0..16).for_each(|r| near("CN", of("CN")[head * 512 + r * 32 + c], cell(r)));
                let sum: f64 = (0..16).map(|r| 0.25 * q[r] * cell(r)).sum();
                near("h", of("h")[head * 32 + c], sum / (l.abs().max((-m).exp()) + 0.5));
            }
            (0..16).for_each(|r| near("nN", of("nN")[head * 16 + r], n[r]));
        }
    }
}

//! The families of a step: one position of each head, behind a state that is updated where it lies.
//!
//! q, k \[B, NKV, DHQK\], v \[B, NH, DHHV\], g and beta \[B, NH\] in f32, and the state C0 \[B, NH, DHQK, DHHV\] →
//! h \[B, NH, DHHV\] and, in the memory of the state, CN. The equations are those of [`lab_reference::gdn`] with one position. A
//! state that [`super::FORWARD`] leaves can be given, and the other way round. C may be f32, or in runs of bf16 half as wide.
//!
//! Linear attention has no beta; w \[B, NH\] may go in, and is 1 where it does not. With sigmoid gates f and i take the place of g and w.
//! mLSTMsig is that with a normaliser: n0 → nN \[B, NH, DHQK\] in f32 is the sum of its keys, and h is divided by max(|s n·q|, 1) + ε.

use lab_device::DType;
use lab_reference::gdn;

pub use super::step_problem::{sizes, sizes_of};
use super::{Cell, Named, STEP, group_of, of_inputs, scale_of, step_checks, unit_rows};
pub use crate::step_state::{STATE, state_dtype};
use crate::step_state::{check_state, drawn_dtype};
use crate::vlstm::{EPSILON, epsilon};
use lab_harness::compare::each;
use lab_harness::plan::{Scope, Slot};
use lab_harness::suite::VersionCheck;
use lab_harness::{
    Cost, Dim, Dims, Error, Family, Info, Input, Magnitudes, Options, Plan, Problem, Reference,
    Request, Tensor, Tensors, named, tensor,
};

/// The family of the delta rule.
pub static FAMILY: Step = Step { cell: Cell::Delta, normalised: false };

/// The family of linear attention.
pub static LINEAR: Step = Step { cell: Cell::Decay, normalised: false };

/// The family of the same with sigmoid gates.
pub static SIGMOID: Step = Step { cell: Cell::Sigmoid, normalised: false };

/// The family of mLSTMsig.
pub static NORMALISED: Step = Step { cell: Cell::Sigmoid, normalised: true };

/// See the module.
#[derive(Debug)]
pub struct Step {
    cell: Cell,
    normalised: bool,
}

/// What goes in. The state must be there, for it is also where the next one goes: zeros stand for none.
pub const INPUTS: &[Input] = &[Q, K, V, gate("g"), gate("beta"), C0];

/// What goes into a step of linear attention.
pub const LINEAR_INPUTS: &[Input] = &[Q, K, V, gate("g"), gate("w").optional("weight"), C0];

/// What goes into a step with sigmoid gates.
pub const SIGMOID_INPUTS: &[Input] = &[Q, K, V, gate("i"), gate("f"), C0];

/// What goes into a step of mLSTMsig.
pub const NORMALISED_INPUTS: &[Input] = &[Q, K, V, gate("i"), gate("f"), C0, N0];

const Q: Input = Input::new("q", &["B", "NKV", "DHQK"]);
const K: Input = Input::new("k", &["B", "NKV", "DHQK"]);
const V: Input = Input::new("v", &["B", "NH", "DHHV"]);
const C0: Input =
    Input::new("C0", &["B", "NH", "DHQK", "DHHV"]).always(DType::F32).or(&[DType::BF16]);
const N0: Input = Input::new("n0", &["B", "NH", "DHQK"]).always(DType::F32);

const fn gate(name: &'static str) -> Input {
    Input::new(name, &["B", "NH"]).always(DType::F32)
}

/// The sizes of B, NH, NKV, DHQK and DHHV: of the small problem, of the timed one, the largest. The last two in multiples of
/// [`STEP`].
pub const fn dims([b, nh, nkv, dhqk, dhhv]: [[usize; 3]; 5]) -> [Dim; 5] {
    [
        Dim::new("B", "sequences of the batch", b),
        Dim::new("NH", "heads of v of each, a multiple of NKV", nh),
        Dim::new("NKV", "heads of q and k of each", nkv),
        Dim::new("DHQK", "columns of q and k of a head, rows of C", dhqk).in_steps_of(STEP),
        Dim::new("DHHV", "columns of v and h of a head, and of C", dhhv).in_steps_of(STEP),
    ]
}

/// The slots of a step, and the arguments that its kernels have under one name.
#[derive(Clone, Debug)]
pub struct StepSlots {
    /// The type of C.
    pub state: DType,
    /// `q`, `k`, `v`, `C`, `h`, `dhqk`, `dhhv` and `scale`; of the delta rule `g`, `beta` and `group`; of the others `f_gate`, `i_gate`,
    /// `sharing`, `weighed`, whether there are input gates or weights, `n`, `m`, memory of one element where there is none, and `eps`.
    pub scope: Scope,
}

/// Adds what a step reads and writes to a plan.
///
/// # Errors
/// NH is no multiple of NKV; C0 is not of the type that was asked for, or is narrower than f32 in a run that is not; ε is negative.
pub fn slots(plan: &mut Plan, info: &Info, request: &Request<'_>) -> Result<StepSlots, Error> {
    let [b, nh, _, dhqk, dhhv] = sizes_of(&request.dims);
    let group = group_of(&request.dims)?;
    let state = request.shape("C0").dtype;
    check_state(state, request.dtype, request.text(STATE.name))?;
    let cell = Cell::asked(request);
    let [kept, written] = cell.gates();
    let [q, k, v, g] = request.inputs(plan, ["q", "k", "v", kept]);
    let weighed = request.has(written);
    let one_element = |plan: &mut Plan| -> Slot { plan.scratch(DType::F32, 1) };
    let beta = if weighed { request.input(plan, written) } else { one_element(plan) };
    let c = plan.updated("C0", "CN", state, &[b, nh, dhqk, dhhv]);
    let h = plan.output("h", request.dtype, &[b, nh, dhhv]);
    let scale = scale_of(info, request.options(), dhqk);
    let scope = Scope::new().with(named![q, k, v, C: c, h, dhqk, dhhv, scale]);
    if cell == Cell::Delta {
        return Ok(StepSlots { state, scope: scope.with(named![g, beta, group]) });
    }
    let (n, eps) = match request.has("n0") {
        true => {
            let n = plan.updated("n0", "nN", DType::F32, &[b, nh, dhqk]);
            (n, epsilon(info, request.options())?)
        }
        false => (one_element(plan), 0.0),
    };
    let m = one_element(plan);
    let scope = scope
        .with(named![f_gate: g, i_gate: beta, n, m, eps])
        .with(named![sharing: group, weighed]);
    Ok(StepSlots { state, scope })
}

impl Family for Step {
    fn name(&self) -> &'static str {
        match (self.cell, self.normalised) {
            (Cell::Delta, _) => "gdn_step",
            (Cell::Decay, _) => "linear_step",
            (Cell::Sigmoid, false) => "sigmoid_step",
            (Cell::Sigmoid, true) => "mlstm_sig_step",
        }
    }

    /// As [`super::FORWARD`] has them; the state is standard normal over √DHQK, about what many positions leave. Weights are those of
    /// beta, and so are sigmoid gates.
    fn draw_inputs(&self, info: &Info, problem: &Problem) -> Tensors {
        let [b, nh, nkv, dhqk, dhhv] = sizes_of(&problem.dims);
        let state = drawn_dtype(info, problem);
        let exact = |mean, stream, shape: &[usize]| {
            problem.normal_around(mean, DType::F64, stream, shape).values()
        };
        let k = unit_rows(exact(0.0, 1, &[b, nkv, dhqk]), dhqk);
        let (mut g, mut beta) = (exact(3.0, 3, &[b, nh]), exact(0.0, 4, &[b, nh]));
        if self.cell != Cell::Sigmoid {
            g.iter_mut().for_each(|x| *x = -(-*x).exp().ln_1p());
            beta.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
        }
        let c = exact(0.0, 5, &[b, nh, dhqk, dhhv]);
        let c: Vec<f64> = c.into_iter().map(|x| x / (dhqk as f64).sqrt()).collect();
        let of_heads = |values: Vec<f64>| Tensor::rounded(DType::F32, &[b, nh], &values);
        let [kept, written] = self.cell.gates();
        let mut all = tensor::tensors([
            ("q", problem.normal(0, &[b, nkv, dhqk])),
            ("k", Tensor::rounded(problem.dtype, &[b, nkv, dhqk], &k)),
            ("v", problem.normal(2, &[b, nh, dhhv])),
            (kept, of_heads(g)),
            (written, of_heads(beta)),
            ("C0", Tensor::rounded(state, &[b, nh, dhqk, dhhv], &c)),
        ]);
        if self.normalised {
            all.insert("n0".into(), problem.normal_around(0.0, DType::F32, 6, &[b, nh, dhqk]));
        }
        all
    }

    fn reference(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
    ) -> Vec<(&'static str, Vec<f64>)> {
        if self.normalised {
            return normalised(inputs, options.number(info, EPSILON.name), |own| {
                of_inputs(info, own, options, gdn::forward)
            });
        }
        let all = of_inputs(info, &of_one_position(inputs), options, gdn::forward);
        vec![("h", all.h), ("CN", all.c)]
    }

    fn magnitudes(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
        _: &Reference,
    ) -> Magnitudes {
        if self.normalised {
            let epsilon = options.number(info, EPSILON.name);
            return each(magnitudes_of_normalised(info, inputs, options, epsilon));
        }
        let all = of_inputs(info, &of_one_position(inputs), options, gdn::magnitudes);
        each(vec![("h", all.h), ("CN", all.c)])
    }

    /// Seven operations for each element of C, as the forward pass, or five where nothing is erased. The state, in the type that it has
    /// without `state=`, is read and written once, all else read or written once.
    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [b, nh, nkv, dhqk, dhhv] = sizes_of(dims).map(|size| size as f64);
        let of_n = if self.normalised { 2.0 * nh * dhqk * 4.0 } else { 0.0 };
        let of_state = 2.0 * nh * dhqk * dhhv * state_dtype(dtype).size() as f64 + of_n;
        let of_position = 2.0 * (nkv * dhqk + nh * dhhv) * dtype.size() as f64 + 2.0 * 4.0 * nh;
        let operations = if self.cell == Cell::Delta { 7.0 } else { 5.0 };
        Cost { flops: b * nh * operations * dhqk * dhhv, bytes: b * (of_state + of_position) }
    }

    /// A sequence alone, a small batch and a large one.
    fn bench_shapes(&self, info: &Info, dtype: DType) -> Vec<Dims> {
        match dtype {
            DType::F16 => vec![info.timed(dtype)],
            // Mamba-2's heads, whose keys are shared, and those of simple GLA.
            _ if self.cell == Cell::Decay => {
                [[1, 32, 1, 128, 64], [64, 32, 1, 128, 64], [64, 32, 32, 128, 128]]
                    .map(sizes)
                    .to_vec()
            }
            _ if self.cell == Cell::Sigmoid => {
                [[1, 16, 16, 128, 256], [64, 16, 16, 128, 256]].map(sizes).to_vec()
            }
            _ => [[1, 32, 16, 128, 128], [8, 32, 16, 128, 128], [64, 32, 16, 128, 128]]
                .map(sizes)
                .to_vec(),
        }
    }

    fn checks(&self) -> &'static [VersionCheck] {
        step_checks::CHECKS
    }
}

/// n is the state of a column of v that is 1: its keys' sum. So `of` a problem with that column more gives what is divided, and l
/// behind it.
fn with_column_of_ones(inputs: &Tensors) -> Tensors {
    let joined = |values: Vec<f64>, columns: usize, last: &dyn Fn(usize) -> f64| -> Vec<f64> {
        let rows = values.chunks(columns).enumerate();
        rows.flat_map(|(n, row)| row.iter().copied().chain([last(n)]).collect::<Vec<_>>()).collect()
    };
    let mut all = of_one_position(inputs);
    let n0 = inputs["n0"].values();
    for (name, last) in [("v", &(|_| 1.0) as &dyn Fn(usize) -> f64), ("C0", &|row: usize| n0[row])]
    {
        let mut shape = all[name].shape.clone();
        let columns = shape[3];
        shape[3] += 1;
        let values = joined(all[name].values(), columns, last);
        all.insert(name.into(), Tensor::rounded(DType::F64, &shape, &values));
    }
    all.remove("n0");
    all
}

/// Rows of `columns` numbers apart from the one behind each.
fn without_last(values: &[f64], columns: usize) -> (Vec<f64>, Vec<f64>) {
    let rows = || values.chunks(columns + 1);
    (
        rows().flat_map(|row| row[..columns].to_vec()).collect(),
        rows().map(|row| row[columns]).collect(),
    )
}

/// `h`, `CN` and `nN` of mLSTMsig.
fn normalised(inputs: &Tensors, epsilon: f64, of: impl FnOnce(&Tensors) -> gdn::Outputs) -> Named {
    let all = of(&with_column_of_ones(inputs));
    let columns = inputs["v"].shape[2];
    let ((mut h, l), (c, n)) = (without_last(&all.h, columns), without_last(&all.c, columns));
    for (row, l) in h.chunks_mut(columns).zip(&l) {
        row.iter_mut().for_each(|h| *h /= l.abs().max(1.0) + epsilon);
    }
    vec![("h", h), ("CN", c), ("nN", n)]
}

/// What roundings of these are relative to: of h those of what is divided, and of l, by which it is.
fn magnitudes_of_normalised(
    info: &Info,
    inputs: &Tensors,
    options: &Options,
    epsilon: f64,
) -> Named {
    let own = with_column_of_ones(inputs);
    let [exact, all] = [gdn::forward, gdn::magnitudes].map(|of| of_inputs(info, &own, options, of));
    let columns = inputs["v"].shape[2];
    let ((divided, l), (mut h, of_l)) =
        (without_last(&exact.h, columns), without_last(&all.h, columns));
    for (n, h) in h.iter_mut().enumerate() {
        let over = l[n / columns].abs().max(1.0) + epsilon;
        *h = (*h + divided[n].abs() / over * of_l[n / columns]) / over;
    }
    let (c, n) = without_last(&all.c, columns);
    vec![("h", h), ("CN", c), ("nN", n)]
}

/// The same tensors as those of a sequence.
fn of_one_position(inputs: &Tensors) -> Tensors {
    let with_position = |(name, tensor): (&String, &Tensor)| {
        let mut tensor = tensor.clone();
        if !matches!(name.as_str(), "C0" | "n0") {
            tensor.shape.insert(2, 1);
        }
        (name.clone(), tensor)
    };
    inputs.iter().map(with_position).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_that_of_the_state_read_and_written() {
        let cost = FAMILY.cost(&sizes([2, 4, 2, 16, 32]), DType::BF16);
        assert_eq!(cost.flops, 8.0 * 7.0 * 16.0 * 32.0);
        // C of four heads; q and k of two, v and h of four; g and beta.
        let of_sequence = 2.0 * 4.0 * 512.0 * 2.0 + 2.0 * (2.0 * 16.0 + 4.0 * 32.0) * 2.0 + 32.0;
        assert_eq!(cost.bytes, 2.0 * of_sequence);
    }
}

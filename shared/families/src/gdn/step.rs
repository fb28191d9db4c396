//! The family of a step: one position of each head, behind a state that is updated where it lies.
//!
//! q, k \[B, NKV, DHQK\], v \[B, NH, DHHV\], g and beta \[B, NH\] in f32, and the state C0 \[B, NH, DHQK, DHHV\] →
//! h \[B, NH, DHHV\] and, in the memory of the state, CN. The equations are those of [`lab_reference::gdn`] with one position. A
//! state that [`super::FORWARD`] leaves can be given, and the other way round. C may be f32, or in runs of bf16 half as wide.

use lab_device::DType;
use lab_reference::gdn;

pub use super::step_problem::{sizes, sizes_of};
use super::{STEP, group_of, of_inputs, scale_of, step_checks, unit_rows};
pub use crate::step_state::{STATE, state_dtype};
use crate::step_state::{check_state, drawn_dtype};
use lab_harness::compare::each;
use lab_harness::plan::Scope;
use lab_harness::suite::VersionCheck;
use lab_harness::{
    Cost, Dim, Dims, Error, Family, Info, Input, Magnitudes, Options, Plan, Problem, Reference,
    Request, Tensor, Tensors, named, tensor,
};

/// The family.
pub static FAMILY: Step = Step;

/// See the module.
#[derive(Debug)]
pub struct Step;

/// What goes in. The state must be there, for it is also where the next one goes: zeros stand for none.
pub const INPUTS: &[Input] = &[
    Input::new("q", &["B", "NKV", "DHQK"]),
    Input::new("k", &["B", "NKV", "DHQK"]),
    Input::new("v", &["B", "NH", "DHHV"]),
    Input::new("g", &["B", "NH"]).always(DType::F32),
    Input::new("beta", &["B", "NH"]).always(DType::F32),
    Input::new("C0", &["B", "NH", "DHQK", "DHHV"]).always(DType::F32).or(&[DType::BF16]),
];

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
    /// `q`, `k`, `v`, `g`, `beta`, `C`, `h`, `dhqk`, `dhhv`, `group` and `scale`.
    pub scope: Scope,
}

/// Adds what a step reads and writes to a plan.
///
/// # Errors
/// NH is no multiple of NKV; C0 is not of the type that was asked for, or is narrower than f32 in a run that is not.
pub fn slots(plan: &mut Plan, info: &Info, request: &Request<'_>) -> Result<StepSlots, Error> {
    let [b, nh, _, dhqk, dhhv] = sizes_of(&request.dims);
    let group = group_of(&request.dims)?;
    let state = request.shape("C0").dtype;
    check_state(state, request.dtype, request.text(STATE.name))?;
    let [q, k, v, g, beta] = request.inputs(plan, ["q", "k", "v", "g", "beta"]);
    let c = plan.updated("C0", "CN", state, &[b, nh, dhqk, dhhv]);
    let h = plan.output("h", request.dtype, &[b, nh, dhhv]);
    let scale = scale_of(info, request.options(), dhqk);
    let scope = Scope::new().with(named![q, k, v, g, beta, C: c, h, dhqk, dhhv, group, scale]);
    Ok(StepSlots { state, scope })
}

impl Family for Step {
    fn name(&self) -> &'static str {
        "gdn_step"
    }

    /// As [`super::FORWARD`] has them; the state is standard normal over √DHQK, about what many positions leave.
    fn draw_inputs(&self, info: &Info, problem: &Problem) -> Tensors {
        let [b, nh, nkv, dhqk, dhhv] = sizes_of(&problem.dims);
        let state = drawn_dtype(info, problem);
        let exact = |mean, stream, shape: &[usize]| {
            problem.normal_around(mean, DType::F64, stream, shape).values()
        };
        let k = unit_rows(exact(0.0, 1, &[b, nkv, dhqk]), dhqk);
        let g = exact(3.0, 3, &[b, nh]).into_iter().map(|x| -(-x).exp().ln_1p());
        let beta = exact(0.0, 4, &[b, nh]).into_iter().map(|x| 1.0 / (1.0 + (-x).exp()));
        let c = exact(0.0, 5, &[b, nh, dhqk, dhhv]);
        let c: Vec<f64> = c.into_iter().map(|x| x / (dhqk as f64).sqrt()).collect();
        let of_heads = |values: Vec<f64>| Tensor::rounded(DType::F32, &[b, nh], &values);
        tensor::tensors([
            ("q", problem.normal(0, &[b, nkv, dhqk])),
            ("k", Tensor::rounded(problem.dtype, &[b, nkv, dhqk], &k)),
            ("v", problem.normal(2, &[b, nh, dhhv])),
            ("g", of_heads(g.collect())),
            ("beta", of_heads(beta.collect())),
            ("C0", Tensor::rounded(state, &[b, nh, dhqk, dhhv], &c)),
        ])
    }

    fn reference(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
    ) -> Vec<(&'static str, Vec<f64>)> {
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
        let all = of_inputs(info, &of_one_position(inputs), options, gdn::magnitudes);
        each(vec![("h", all.h), ("CN", all.c)])
    }

    /// Seven operations for each element of C, as the forward pass. The state, in the type that it has without `state=`, is read
    /// and written once, all else read or written once.
    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [b, nh, nkv, dhqk, dhhv] = sizes_of(dims).map(|size| size as f64);
        let of_state = 2.0 * nh * dhqk * dhhv * state_dtype(dtype).size() as f64;
        let of_position = 2.0 * (nkv * dhqk + nh * dhhv) * dtype.size() as f64 + 2.0 * 4.0 * nh;
        Cost { flops: b * nh * 7.0 * dhqk * dhhv, bytes: b * (of_state + of_position) }
    }

    /// A sequence alone, a small batch and a large one.
    fn bench_shapes(&self, info: &Info, dtype: DType) -> Vec<Dims> {
        match dtype {
            DType::F16 => vec![info.timed(dtype)],
            _ => [[1, 32, 16, 128, 128], [8, 32, 16, 128, 128], [64, 32, 16, 128, 128]]
                .map(sizes)
                .to_vec(),
        }
    }

    fn checks(&self) -> &'static [VersionCheck] {
        step_checks::CHECKS
    }
}

/// The same tensors as those of a sequence.
fn of_one_position(inputs: &Tensors) -> Tensors {
    let with_position = |(name, tensor): (&String, &Tensor)| {
        let mut tensor = tensor.clone();
        if name != "C0" {
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

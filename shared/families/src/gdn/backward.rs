//! The family of both passes: q, k, v, g, beta, dh → h, dq, dk, dv, dg, dbeta. Tensors as those of the forward pass, and each
//! gradient as what it is by. A version may begin with a state C0 and the gradient dCN of the state behind the last position,
//! and give CN and dC0.

use lab_device::DType;
use lab_reference::gdn::{Gradients, backward, backward_magnitudes, forward, magnitudes};

use super::{
    FORWARD_INPUTS, STATE_INPUTS, Slots, backward_checks, bench_shapes, drawn, group_of, of_inputs,
    sizes_of,
};
use lab_harness::compare::each;
use lab_harness::plan::Slot;
use lab_harness::suite::VersionCheck;
use lab_harness::{
    Cost, Dims, Error, Family, Info, Input, Magnitudes, Options, Output, Plan, Problem, Reference,
    Request, Setting, Tensor, Tensors,
};

/// The family.
pub static FORWARD_BACKWARD: ForwardBackward = ForwardBackward;

/// See [`FORWARD_BACKWARD`].
#[derive(Debug)]
pub struct ForwardBackward;

/// The states that a version may take: what goes in, and the gradient of what comes out.
pub const STATES_OF_BACKWARD: &[Input] = &[
    STATE_INPUTS[0],
    Input::new("dCN", &["B", "NH", "DHQK", "DHHV"])
        .always(DType::F32)
        .optional("last state's gradient"),
];

/// What goes into both passes.
pub const FORWARD_BACKWARD_INPUTS: &[Input] = &[
    FORWARD_INPUTS[0],
    FORWARD_INPUTS[1],
    FORWARD_INPUTS[2],
    FORWARD_INPUTS[3],
    FORWARD_INPUTS[4],
    Input::new("dh", &["B", "NH", "S", "DHHV"]),
    STATES_OF_BACKWARD[0],
    STATES_OF_BACKWARD[1],
];

/// Whether the gradient of the state before the first position comes out, as `dC0`: with these bounds.
pub const fn state_grad(outputs: &'static [Output]) -> Setting {
    Setting::choice("state_grad", "whether dC0 comes out, the gradient of C0", &["no", "yes"])
        .adds("yes", outputs)
}

/// The tensors of a plan for both passes. What is not asked for is memory of one element.
#[derive(Clone, Copy, Debug)]
pub struct BackwardSlots {
    /// Those of the forward pass.
    pub forward: Slots,
    /// The gradient by h.
    pub dh: Slot,
    /// `dq`, `dk`, `dv`.
    pub of_rows: [Slot; 3],
    /// `dg`, `dbeta`.
    pub of_gates: [Slot; 2],
    /// `dCN`, and whether it is given.
    pub last: (Slot, bool),
    /// `dC0`, and whether it is wanted.
    pub first: (Slot, bool),
}

impl BackwardSlots {
    /// Adds them to a plan.
    ///
    /// # Errors
    /// NH is no multiple of NKV; the gradient of a state is wanted that is not there.
    pub fn new(plan: &mut Plan, request: &Request<'_>) -> Result<Self, Error> {
        group_of(&request.dims)?;
        let [b, nh, nkv, s, dhqk, dhhv] = sizes_of(&request.dims);
        let forward = Slots::new(plan, request);
        let (given, wanted) = (request.has("dCN"), request.text("state_grad") == "yes");
        if wanted && !forward.first.1 {
            return Err(Error::bad("--set state_grad", "no, where no state C0 goes in", "yes"));
        }
        let [dh] = request.inputs(plan, ["dh"]);
        let [dq, dk] =
            ["dq", "dk"].map(|name| plan.output(name, request.dtype, &[b, nkv, s, dhqk]));
        let dv = plan.output("dv", request.dtype, &[b, nh, s, dhhv]);
        let of_gates = ["dg", "dbeta"].map(|name| plan.output(name, DType::F32, &[b, nh, s]));
        let last = if given { request.input(plan, "dCN") } else { plan.scratch(DType::F32, 1) };
        let first = match wanted {
            true => plan.output("dC0", DType::F32, &[b, nh, dhqk, dhhv]),
            false => plan.scratch(DType::F32, 1),
        };
        let of_rows = [dq, dk, dv];
        Ok(Self { forward, dh, of_rows, of_gates, last: (last, given), first: (first, wanted) })
    }
}

/// Numbers of both passes by name, those that these options ask for.
fn named(
    info: &Info,
    options: &Options,
    h: Vec<f64>,
    c: Vec<f64>,
    all: Gradients,
) -> Vec<(&'static str, Vec<f64>)> {
    let expected = info.outputs_under(options);
    let named = [
        ("h", h),
        ("CN", c),
        ("dq", all.q),
        ("dk", all.k),
        ("dv", all.v),
        ("dg", all.g),
        ("dbeta", all.beta),
        ("dC0", all.c0),
    ];
    named.into_iter().filter(|(name, _)| expected.iter().any(|o| o.name == *name)).collect()
}

impl Family for ForwardBackward {
    fn name(&self) -> &'static str {
        "gdn_fwbw"
    }

    /// As [`super::FORWARD`] has them, and dh standard normal.
    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        let [b, nh, _, s, _, dhhv] = sizes_of(&problem.dims);
        let mut all = drawn(problem);
        all.insert("dh".to_owned(), problem.normal(5, &[b, nh, s, dhhv]));
        all
    }

    fn given_to_some(&self) -> &'static [Input] {
        STATES_OF_BACKWARD
    }

    fn reference(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
    ) -> Vec<(&'static str, Vec<f64>)> {
        let (dh, dc) = (inputs["dh"].values(), inputs.get("dCN").map(Tensor::values));
        of_inputs(info, inputs, options, |x, sizes| {
            let out = forward(x, sizes);
            named(info, options, out.h, out.c, backward(x, &dh, dc.as_deref(), sizes))
        })
    }

    fn magnitudes(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
        _: &Reference,
    ) -> Magnitudes {
        let (dh, dc) = (inputs["dh"].values(), inputs.get("dCN").map(Tensor::values));
        each(of_inputs(info, inputs, options, |x, sizes| {
            let out = magnitudes(x, sizes);
            let gradients = backward_magnitudes(x, &dh, dc.as_deref(), sizes);
            named(info, options, out.h, out.c, gradients)
        }))
    }

    /// Those of q and k, each with all of v that read it.
    fn independent_heads(&self, dims: &Dims) -> usize {
        let [b, _, nkv, ..] = sizes_of(dims);
        b * nkv
    }

    /// The recurrence and its reverse: for each element of the state and position the 7 operations of the forward pass, and 18 of the
    /// backward pass: 2 for each of the products that make dq, du, dk (two of them) and dg, and that change dC (two), 1 for what is
    /// kept, and 3 for the state that is made again. Each tensor is read or written once.
    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [b, nh, nkv, s, dhqk, dhhv] = sizes_of(dims).map(|size| size as f64);
        let elements = 4.0 * (nkv * dhqk + nh * dhhv);
        Cost {
            flops: b * nh * s * 25.0 * dhqk * dhhv,
            bytes: b * s * (elements * dtype.size() as f64 + 4.0 * 4.0 * nh),
        }
    }

    fn bench_shapes(&self, info: &Info, dtype: DType) -> Vec<Dims> {
        bench_shapes(info, dtype)
    }

    fn checks(&self) -> &'static [VersionCheck] {
        backward_checks::CHECKS
    }
}

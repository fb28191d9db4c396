//! The family of both passes: q, k, v, g, beta, dh → h, dq, dk, dv, dg, dbeta. Tensors as those of the forward pass, and each
//! gradient as what it is by. A version may begin with a state C0 and the gradient dCN of the state behind the last position,
//! and give CN and dC0.

use lab_device::DType;
use lab_reference::gdn::{self, Gradients, Outputs};
use lab_reference::vlstm::log_sigmoid;

use super::{
    Cell, FORGET_GATE, FORWARD_INPUTS, INPUT_GATE, Named, STATE_INPUTS, Slots, WEIGHT, drawn,
    group_of, of_inputs, sizes_of, sizes_of_state,
};
use lab_harness::plan::Slot;
use lab_harness::{
    Error, Info, Input, Options, Output, Plan, Problem, Request, Setting, Tensor, Tensors,
};

/// The states that a version may take: what goes in, and the gradient of what comes out.
pub const STATES_OF_BACKWARD: &[Input] = &[
    STATE_INPUTS[0],
    Input::new("dCN", &["B", "NH", "DHQK", "DHHV"])
        .always(DType::F32)
        .optional("last state's gradient")
        .from_above(),
];

/// What goes into both passes.
pub const FORWARD_BACKWARD_INPUTS: &[Input] = &[
    FORWARD_INPUTS[0],
    FORWARD_INPUTS[1],
    FORWARD_INPUTS[2],
    FORWARD_INPUTS[3],
    FORWARD_INPUTS[4],
    Input::new("dh", &["B", "NH", "S", "DHHV"]).from_above(),
    STATES_OF_BACKWARD[0],
    STATES_OF_BACKWARD[1],
];

/// What goes into both passes of linear attention.
pub const LINEAR_BACKWARD_INPUTS: &[Input] = &[
    FORWARD_INPUTS[0],
    FORWARD_INPUTS[1],
    FORWARD_INPUTS[2],
    FORWARD_INPUTS[3],
    WEIGHT,
    FORWARD_BACKWARD_INPUTS[5],
    STATES_OF_BACKWARD[0],
    STATES_OF_BACKWARD[1],
];

/// What goes into both passes with sigmoid gates.
pub const SIGMOID_BACKWARD_INPUTS: &[Input] = &[
    FORWARD_INPUTS[0],
    FORWARD_INPUTS[1],
    FORWARD_INPUTS[2],
    INPUT_GATE,
    FORGET_GATE,
    FORWARD_BACKWARD_INPUTS[5],
    STATES_OF_BACKWARD[0],
    STATES_OF_BACKWARD[1],
];

/// Whether the gradient of the weights comes out, as `dw`: with these bounds. It is 0 where a weight is 0.
pub const fn weight_grad(outputs: &'static [Output]) -> Setting {
    Setting::choice("weight_grad", "whether dw comes out, the gradient of w", &["no", "yes"])
        .adds("yes", outputs)
}

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
    /// `dg`, `dbeta`, or `df`, `di`; of linear attention the second is `dw`, or memory of one element.
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
        let cell = Cell::asked(request);
        let weight_wanted = cell != Cell::Decay || request.text("weight_grad") == "yes";
        if weight_wanted && !request.has(cell.gates()[1]) {
            return Err(Error::bad("--set weight_grad", "no, where no weights w go in", "yes"));
        }
        let of_gates = match cell {
            Cell::Delta => ["dg", "dbeta"],
            Cell::Decay => ["dg", "dw"],
            Cell::Sigmoid => ["df", "di"],
        };
        let mut add = |(name, wanted)| match wanted {
            true => plan.output(name, DType::F32, &[b, nh, s]),
            false => plan.scratch(DType::F32, 1),
        };
        let of_gates = [add((of_gates[0], true)), add((of_gates[1], weight_wanted))];
        let last = if given { request.input(plan, "dCN") } else { plan.scratch(DType::F32, 1) };
        let first = if wanted {
            plan.output("dC0", DType::F32, &sizes_of_state(&request.dims))
        } else {
            plan.scratch(DType::F32, 1)
        };
        let of_rows = [dq, dk, dv];
        Ok(Self { forward, dh, of_rows, of_gates, last: (last, given), first: (first, wanted) })
    }
}

/// Numbers of both passes by name, those that these options ask for.
fn named(
    info: &Info,
    inputs: &Tensors,
    options: &Options,
    out: Outputs,
    mut all: Gradients,
) -> Named {
    let expected = info.outputs_under(options);
    let cell = Cell::of(info);
    if cell == Cell::Sigmoid {
        // σ′ / σ of what is kept, σ′ of what is written.
        let of = |gate: &str| inputs[gate].values();
        all.g.iter_mut().zip(of("f")).for_each(|(g, f)| *g *= log_sigmoid(-f).exp());
        let slope = |i: f64| (log_sigmoid(i) + log_sigmoid(-i)).exp();
        all.beta.iter_mut().zip(of("i")).for_each(|(b, i)| *b *= slope(i));
    }
    let [of_kept, of_written] = match cell {
        Cell::Delta => ["dg", "dbeta"],
        Cell::Decay => ["dg", "dw"],
        Cell::Sigmoid => ["df", "di"],
    };
    let named = [
        ("h", out.h),
        ("CN", out.c),
        ("dq", all.q),
        ("dk", all.k),
        ("dv", all.v),
        (of_kept, all.g),
        (of_written, all.beta),
        ("dC0", all.c0),
    ];
    named.into_iter().filter(|(name, _)| expected.iter().any(|o| o.name == *name)).collect()
}

/// As those of the forward pass, and dh standard normal.
pub(super) fn drawn_backward(problem: &Problem) -> Tensors {
    let [b, nh, _, s, _, dhhv] = sizes_of(&problem.dims);
    let mut all = drawn(problem);
    all.insert("dh".to_owned(), problem.normal(5, &[b, nh, s, dhhv]));
    all
}

/// The outputs in f64.
pub(super) fn backward_reference(info: &Info, inputs: &Tensors, options: &Options) -> Named {
    let (dh, dc) = (inputs["dh"].values(), inputs.get("dCN").map(Tensor::values));
    of_inputs(info, inputs, options, |x, sizes| {
        let out = gdn::forward(x, sizes);
        named(info, inputs, options, out, gdn::backward(x, &dh, dc.as_deref(), sizes))
    })
}

/// What the rounding errors of each element are relative to.
pub(super) fn backward_magnitudes(info: &Info, inputs: &Tensors, options: &Options) -> Named {
    let (dh, dc) = (inputs["dh"].values(), inputs.get("dCN").map(Tensor::values));
    of_inputs(info, inputs, options, |x, sizes| {
        let out = gdn::magnitudes(x, sizes);
        named(info, inputs, options, out, gdn::backward_magnitudes(x, &dh, dc.as_deref(), sizes))
    })
}

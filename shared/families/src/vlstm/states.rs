//! States that go into a pass over positions, and that come out of it; and their gradients.

use lab_device::DType;

use super::{FORWARD_BACKWARD_INPUTS, FORWARD_INPUTS, packed_sequences, tensor_sizes};
use lab_harness::plan::Slot;
use lab_harness::{Error, Input, Output, Plan, Request, Setting};

/// What earlier positions have left, which a version may take: the matrix C that its rows of k have
/// written and q reads, the sum n of those rows, and the exponent m by which both are too small.
/// f32 in runs of every type, for they are sums over a whole sequence.
pub const STATE_INPUTS: &[Input] = &[
    Input::new("C0", &["B", "NH", "DHQK", "DHHV"]).always(DType::F32).optional("state"),
    Input::new("n0", &["B", "NH", "DHQK"]).always(DType::F32).optional("state"),
    Input::new("m0", &["B", "NH"]).always(DType::F32).optional("state"),
];

/// What goes into a forward pass that may begin with a state.
pub const FORWARD_INPUTS_WITH_STATE: &[Input] = &[
    FORWARD_INPUTS[0],
    FORWARD_INPUTS[1],
    FORWARD_INPUTS[2],
    FORWARD_INPUTS[3],
    FORWARD_INPUTS[4],
    STATE_INPUTS[0],
    STATE_INPUTS[1],
    STATE_INPUTS[2],
];

/// The gradient of the state behind the last position, which a version of the backward pass may take. That of the exponent
/// there is none: the state stands for the same at any, and m is a constant of the pass.
pub const LAST_STATE_GRADIENT: [Input; 2] = [
    Input::new("dCN", &["B", "NH", "DHQK", "DHHV"])
        .always(DType::F32)
        .optional("last state's gradient")
        .from_above(),
    Input::new("dnN", &["B", "NH", "DHQK"])
        .always(DType::F32)
        .optional("last state's gradient")
        .from_above(),
];

/// What goes into a forward and backward pass that may begin with a state, and end with the gradient of one.
pub const FORWARD_BACKWARD_INPUTS_WITH_STATES: &[Input] = &[
    FORWARD_BACKWARD_INPUTS[0],
    FORWARD_BACKWARD_INPUTS[1],
    FORWARD_BACKWARD_INPUTS[2],
    FORWARD_BACKWARD_INPUTS[3],
    FORWARD_BACKWARD_INPUTS[4],
    FORWARD_BACKWARD_INPUTS[5],
    STATE_INPUTS[0],
    STATE_INPUTS[1],
    STATE_INPUTS[2],
    LAST_STATE_GRADIENT[0],
    LAST_STATE_GRADIENT[1],
];

/// The states among them.
pub const STATES_OF_BACKWARD: &[Input] = &[
    STATE_INPUTS[0],
    STATE_INPUTS[1],
    STATE_INPUTS[2],
    LAST_STATE_GRADIENT[0],
    LAST_STATE_GRADIENT[1],
];

/// Whether the state behind the last position comes out: with these bounds `CN`, `nN` and `mN`, to be
/// given as `C0`, `n0` and `m0` to the positions that follow. A version asks [`state_slots`] for them.
pub const fn last_state(outputs: &'static [Output]) -> Setting {
    Setting::choice("last_state", "whether the state CN, nN, mN comes out", &["no", "yes"])
        .adds("yes", outputs)
}

/// Whether the gradient of the state before the first position comes out, as `dC0` and `dn0`: with these bounds.
pub const fn state_grad(outputs: &'static [Output]) -> Setting {
    Setting::choice(
        "state_grad",
        "whether dC0, dn0 come out, the gradient of C0, n0",
        &["no", "yes"],
    )
    .adds("yes", outputs)
}

/// The slots of a state that goes in and of one that comes out. What is not asked for is memory of one
/// element, which a kernel must not touch: so that it has the same parameters in all cases.
#[derive(Clone, Debug)]
pub struct StateSlots {
    /// Whether a state goes in.
    pub given: bool,
    /// Whether one comes out.
    pub wanted: bool,
    /// `C0`, `n0` and `m0`.
    pub first: [Slot; 3],
    /// `CN`, `nN` and `mN`.
    pub last: [Slot; 3],
}

/// B, NH, DHQK, DHHV of a request's states: of packed sequences, a state for each.
fn state_sizes(request: &Request<'_>) -> [usize; 4] {
    let [b, nh, _, dhqk, dhhv] = tensor_sizes(&request.dims);
    [packed_sequences(&request.dims).unwrap_or(b), nh, dhqk, dhhv]
}

/// Adds the states of a request to a plan, of a version that has [`STATE_INPUTS`] and [`last_state`].
pub fn state_slots(plan: &mut Plan, request: &Request<'_>) -> StateSlots {
    let [b, nh, dhqk, dhhv] = state_sizes(request);
    let (given, wanted) = (request.has("C0"), request.text("last_state") == "yes");
    let first = ["C0", "n0", "m0"]
        .map(|name| if given { request.input(plan, name) } else { plan.scratch(DType::F32, 1) });
    let shapes: [(&str, &[usize]); 3] =
        [("CN", &[b, nh, dhqk, dhhv]), ("nN", &[b, nh, dhqk]), ("mN", &[b, nh])];
    let last = shapes.map(|(name, shape)| {
        if wanted { plan.output(name, DType::F32, shape) } else { plan.scratch(DType::F32, 1) }
    });
    StateSlots { given, wanted, first, last }
}

/// The same where no state goes in, and none comes out.
pub fn no_state_slots(plan: &mut Plan) -> StateSlots {
    let [first, last] = [(); 2].map(|()| [(); 3].map(|()| plan.scratch(DType::F32, 1)));
    StateSlots { given: false, wanted: false, first, last }
}

/// The slots of a backward pass's states, as [`StateSlots`] those of a forward pass.
#[derive(Clone, Debug)]
pub struct StateGradientSlots {
    /// The states of the forward pass, whose last is there, too, where its gradient goes in.
    pub states: StateSlots,
    /// Whether the gradient of the last state goes in.
    pub given: bool,
    /// Whether that of the first comes out.
    pub wanted: bool,
    /// `dCN` and `dnN`.
    pub last: [Slot; 2],
    /// `dC0` and `dn0`; the latter is there wherever a state goes in.
    pub first: [Slot; 2],
}

/// Adds the states of a request and their gradients to a plan, of a version that has [`STATES_OF_BACKWARD`], [`last_state`] and
/// [`state_grad`].
///
/// # Errors
/// The gradient of a state is wanted that is not there.
pub fn state_gradient_slots(
    plan: &mut Plan,
    request: &Request<'_>,
) -> Result<StateGradientSlots, Error> {
    let [b, nh, dhqk, dhhv] = state_sizes(request);
    let mut states = state_slots(plan, request);
    let (given, wanted) = (request.has("dCN"), request.text("state_grad") == "yes");
    if wanted && !states.given {
        return Err(Error::bad("--set state_grad", "no, where no state C0, n0, m0 goes in", "yes"));
    }
    let shapes: [(&str, &[usize]); 2] = [("dC0", &[b, nh, dhqk, dhhv]), ("dn0", &[b, nh, dhqk])];
    let sizes = [b * nh * dhqk * dhhv, b * nh * dhqk];
    if given && !states.wanted {
        states.wanted = true;
        states.last = [sizes[0], sizes[1], b * nh].map(|size| plan.scratch(DType::F32, size));
    }
    let last = ["dCN", "dnN"]
        .map(|name| if given { request.input(plan, name) } else { plan.scratch(DType::F32, 1) });
    let first = [0, 1].map(|at| {
        if wanted {
            plan.output(shapes[at].0, DType::F32, shapes[at].1)
        } else {
            plan.scratch(DType::F32, if at == 1 && states.given { sizes[at] } else { 1 })
        }
    });
    Ok(StateGradientSlots { states, given, wanted, last, first })
}

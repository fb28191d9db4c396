//! The families of the sLSTM, forward and backward, and forward alone: what all their versions share. Tensors,
//! reference, cost; sizes and error bounds are a version's own.
//!
//! wx \[T, B, 4, NH, DH\], which W makes of x before the loop, r \[4, NH, DH, DH\], b \[4, NH, DH\], and the state h0, c0,
//! n0, m0 \[B, NH, DH\] → y \[T, B, NH, DH\] and hn, cn, nn, mn; and backward through time, from dy, dhn, dcn and dnn: the
//! gradient by each of what went in but m0, under its name with `d` before. The equations are those of
//! [`lab_reference::slstm`].

use lab_device::DType;
use lab_reference::slstm::{self, Gradients, Outputs, Roundings, Sizes, State, Upstream};

use lab_harness::compare::{each, unit, unit_roundoff};
use lab_harness::{
    Cost, Dim, Dims, Family, Info, Input, Magnitudes, Options, Problem, Reference, Tensor, Tensors,
};

/// The family of the forward and the backward pass.
pub static FAMILY: Slstm = Slstm { backward: true };

/// The family of the forward pass alone: as [`FAMILY`], without what goes in and comes out for the way back.
pub static FORWARD: Slstm = Slstm { backward: false };

/// See [`FAMILY`] and [`FORWARD`].
#[derive(Debug)]
pub struct Slstm {
    backward: bool,
}

impl Family for Slstm {
    fn name(&self) -> &'static str {
        if self.backward { "slstm" } else { "slstm_fw" }
    }

    fn draw_inputs(&self, info: &Info, problem: &Problem) -> Tensors {
        let mut all = inputs(problem);
        all.retain(|name, _| info.takes(name));
        all
    }

    fn reference(&self, _: &Info, inputs: &Tensors, _: &Options) -> Vec<(&'static str, Vec<f64>)> {
        if self.backward { reference(inputs) } else { forward_reference(inputs) }
    }

    fn magnitudes(&self, _: &Info, inputs: &Tensors, _: &Options, _: &Reference) -> Magnitudes {
        each(magnitudes(inputs, self.backward))
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        if self.backward { cost(dims, dtype) } else { forward_cost(dims, dtype) }
    }
}

/// The axes of a state.
const OF_STATE: &[&str] = &["B", "NH", "DH"];

/// The group of the state before the first step.
pub const STATE: &str = "state";

/// The group of the gradient by the state behind the last step.
pub const LAST_STATE_GRADIENT: &str = "last state's gradient";

/// What goes in. c, n and m are f32 in runs of every type: sums over a whole sequence, and the exponent of both.
pub const INPUTS: &[Input] = &[
    Input::new("wx", &["T", "B", "4", "NH", "DH"]),
    Input::new("r", &["4", "NH", "DH", "DH"]),
    Input::new("b", &["4", "NH", "DH"]),
    Input::new("h0", OF_STATE).optional(STATE),
    Input::new("c0", OF_STATE).always(DType::F32).optional(STATE),
    Input::new("n0", OF_STATE).always(DType::F32).optional(STATE),
    Input::new("m0", OF_STATE).always(DType::F32).optional(STATE),
    Input::new("dy", &["T", "B", "NH", "DH"]).from_above(),
    Input::new("dhn", OF_STATE).optional(LAST_STATE_GRADIENT).from_above(),
    Input::new("dcn", OF_STATE).always(DType::F32).optional(LAST_STATE_GRADIENT).from_above(),
    Input::new("dnn", OF_STATE).always(DType::F32).optional(LAST_STATE_GRADIENT).from_above(),
];

/// What goes in of the forward pass.
pub const FORWARD_INPUTS: &[Input] = INPUTS.split_at(7).0;

/// How many of [`OUTPUTS`] are the forward pass's.
pub const FORWARD_OUTPUTS: usize = 5;

/// What comes out.
pub const OUTPUTS: [&str; 11] =
    ["y", "hn", "cn", "nn", "mn", "dwx", "dr", "db", "dh0", "dc0", "dn0"];

/// The sizes of B, T, NH and DH: of the small problem, of the timed one, the largest.
pub const fn dims([b, t, nh, dh]: [[usize; 3]; 4]) -> [Dim; 4] {
    [
        Dim::new("B", "rows of a step", b),
        Dim::new("T", "steps", t),
        Dim::new("NH", "heads of each", nh),
        Dim::new("DH", "units of a head", dh),
    ]
}

/// As sizes of a problem.
pub fn sizes([b, t, nh, dh]: [usize; 4]) -> Dims {
    Dims::new([("B", b), ("T", t), ("NH", nh), ("DH", dh)])
}

/// B, T, NH and DH.
pub fn sizes_of(dims: &Dims) -> [usize; 4] {
    ["B", "T", "NH", "DH"].map(|name| dims.get(name))
}

/// wx, h0 and gradients are normal, h0 half as wide; r with the deviation 1 / √DH and b with 1/2, the forget gate's with the
/// mean 1. A state as steps leave one: n from 1 on, c within n.
pub fn inputs(problem: &Problem) -> Tensors {
    let [b, t, nh, dh] = sizes_of(&problem.dims);
    let drawn = |dtype, stream, shape: &[usize], of: &dyn Fn(usize, f64) -> f64| {
        let raw = problem.normal_around(0.0, DType::F64, stream, shape).values();
        let values: Vec<f64> = raw.into_iter().enumerate().map(|(at, v)| of(at, v)).collect();
        Tensor::rounded(dtype, shape, &values)
    };
    let plain = |stream, shape: &[usize], scale: f64| {
        drawn(problem.dtype, stream, shape, &|_, v| v * scale)
    };
    let of_state =
        |stream, of: &dyn Fn(f64) -> f64| drawn(DType::F32, stream, &[b, nh, dh], &|_, v| of(v));
    let forget = nh * dh..2 * nh * dh;
    let bias = |at, v: f64| v * 0.5 + f64::from(u8::from(forget.contains(&at)));
    lab_harness::tensor::tensors([
        ("wx", plain(0, &[t, b, 4, nh, dh], 1.0)),
        ("r", plain(1, &[4, nh, dh, dh], 1.0 / (dh as f64).sqrt())),
        ("b", drawn(problem.dtype, 2, &[4, nh, dh], &bias)),
        ("dy", plain(3, &[t, b, nh, dh], 1.0)),
        ("h0", plain(4, &[b, nh, dh], 0.5)),
        ("c0", of_state(5, &f64::tanh)),
        ("n0", of_state(6, &|v| 1.0 + v.abs())),
        ("m0", of_state(7, &|v| v)),
        ("dhn", plain(8, &[b, nh, dh], 1.0)),
        ("dcn", of_state(9, &|v| v)),
        ("dnn", of_state(10, &|v| v)),
    ])
}

/// Of these inputs, if they are there.
fn several<const N: usize>(inputs: &Tensors, names: [&str; N]) -> Option<[Vec<f64>; N]> {
    inputs.contains_key(names[0]).then(|| names.map(|name| inputs[name].values()))
}

/// What `work` makes of the forward pass's inputs.
fn with_inputs<R>(inputs: &Tensors, work: impl FnOnce(Sizes, slstm::Inputs<'_>) -> R) -> R {
    let [steps, batch, _, heads, units] = inputs["wx"].shape[..] else { panic!("five indices") };
    let [wx, r, b] = ["wx", "r", "b"].map(|name| inputs[name].values());
    let state = several(inputs, ["h0", "c0", "n0", "m0"]);
    let state = state.as_ref().map(|[h, c, n, m]| State { h, c, n, m });
    work(Sizes { steps, batch, heads, units }, slstm::Inputs { wx: &wx, r: &r, b: &b, state })
}

type Named = Vec<(&'static str, Vec<f64>)>;

/// What `work` makes of the gradients from above.
fn with_upstream<R>(inputs: &Tensors, work: impl FnOnce(Upstream<'_>) -> R) -> R {
    let dy = inputs["dy"].values();
    let last = several(inputs, ["dhn", "dcn", "dnn"]);
    let state = last.as_ref().map(|all| all.each_ref().map(|of| &of[..]));
    work(Upstream { dy: &dy, state })
}

fn named(out: Outputs) -> Named {
    let [hn, cn, nn, mn] = out.state;
    OUTPUTS.into_iter().zip([out.y, hn, cn, nn, mn]).collect()
}

fn named_gradients(back: Gradients) -> Named {
    let [dh0, dc0, dn0] = back.state;
    let all = [back.dwx, back.dr, back.db, dh0, dc0, dn0];
    OUTPUTS.into_iter().skip(FORWARD_OUTPUTS).zip(all).collect()
}

/// All outputs in f64.
///
/// # Panics
/// The inputs have not been checked with [`Info::problem_of`].
pub fn reference(inputs: &Tensors) -> Named {
    let back = with_upstream(inputs, |upstream| {
        with_inputs(inputs, |sizes, given| sizes.backward(given, upstream))
    });
    forward_reference(inputs).into_iter().chain(named_gradients(back)).collect()
}

/// Of the forward pass alone, in f64.
///
/// # Panics
/// The inputs have not been checked with [`Info::problem_of`].
pub fn forward_reference(inputs: &Tensors) -> Named {
    named(with_inputs(inputs, |sizes, given| sizes.forward(given)))
}

/// What the roundings of each element are relative to, in the unit roundoff of the run's type: see [`Sizes::magnitudes`]. All is
/// computed in f32, and what units hand to each other is of the type.
fn magnitudes(inputs: &Tensors, backward: bool) -> Named {
    let dtype = inputs["wx"].dtype;
    let handed = if dtype == DType::F32 { 0.0 } else { 1.0 };
    let roundings = Roundings { sums: unit::F32 / unit_roundoff(dtype), handed };
    let mut all = named(with_inputs(inputs, |sizes, given| sizes.magnitudes(given, roundings)));
    if backward {
        let back = with_upstream(inputs, |upstream| {
            with_inputs(inputs, |sizes, given| {
                sizes.backward_magnitudes(given, upstream, roundings)
            })
        });
        all.extend(named_gradients(back));
    }
    all
}

/// Two operations for each weight, row and step, and twice as many on the way back: by h and by the weight. The few dozen
/// of each unit are not counted. Each input read once, each output written once.
pub fn cost(dims: &Dims, dtype: DType) -> Cost {
    let [b, t, nh, dh] = sizes_of(dims).map(|size| size as f64);
    let (hidden, weights) = (nh * dh, 4.0 * nh * dh * dh);
    // wx and y with their gradients, the parameters with theirs, h0, hn and their gradients.
    let elements = 2.0 * (t * b * 5.0 * hidden + weights + 4.0 * hidden + 2.0 * b * hidden);
    // c0, n0, m0, cn, nn, mn, and the gradients but those by m.
    let singles = 10.0 * b * hidden;
    Cost {
        flops: 6.0 * t * b * weights,
        bytes: elements * dtype.size() as f64 + singles * DType::F32.size() as f64,
    }
}

/// The same of the forward pass alone.
fn forward_cost(dims: &Dims, dtype: DType) -> Cost {
    let [b, t, nh, dh] = sizes_of(dims).map(|size| size as f64);
    let (hidden, weights) = (nh * dh, 4.0 * nh * dh * dh);
    let elements = t * b * 5.0 * hidden + weights + 4.0 * hidden + 2.0 * b * hidden;
    let singles = 6.0 * b * hidden;
    Cost {
        flops: cost(dims, dtype).flops / 3.0,
        bytes: elements * dtype.size() as f64 + singles * DType::F32.size() as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_harness::Output;

    const INFO: Info = Info {
        stage: "s",
        name: "v",
        family: &FAMILY,
        parent: None,
        change: "",
        dtypes: &[DType::F32, DType::F16],
        dims: &dims([[1, 1, 99], [1, 1, 99], [1, 1, 99], [1, 1, 99]]),
        settings: &[],
        inputs: INPUTS,
        outputs: &[Output { name: "y", bounds: &[], elements: &[] }],
    };

    #[test]
    fn the_tensors_pose_the_problem_and_have_an_output_each() {
        let problem = Problem::new(sizes([2, 5, 3, 4]), DType::F16);
        let mut all = inputs(&problem);
        assert_eq!(INFO.problem_of(&all).unwrap(), (problem.dims.clone(), DType::F16));
        let out = reference(&all);
        assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), OUTPUTS);
        for (name, values) in &out[5..] {
            assert_eq!(values.len(), all[&name[1..]].len(), "{name}");
        }
        for name in ["h0", "c0", "n0", "m0", "dhn", "dcn", "dnn"] {
            assert!(INFO.problem_of(&all).is_ok() == (name == "h0" || name == "dhn"), "{name}");
            all.remove(name);
        }
        assert_eq!(INFO.problem_of(&all).unwrap(), (problem.dims, DType::F16));
        all.insert("r".into(), Tensor::rounded(DType::F16, &[3, 3, 4, 4], &[0.0; 144]));
        let error = INFO.problem_of(&all).unwrap_err().to_string();
        let said =
            "tensor 'r': expected shape [\"4\", \"NH\", \"DH\", \"DH\"], got f16 [3, 3, 4, 4]";
        assert_eq!(error, said);
    }

    #[test]
    fn the_cost_is_that_of_each_weight_at_each_step() {
        let problem = Problem::new(sizes([2, 5, 3, 4]), DType::F32);
        let (cost, forward) =
            (cost(&problem.dims, DType::F32), forward_cost(&problem.dims, DType::F32));
        // 10 rows in all, 4 · 3 · 16 weights, forward and twice backward.
        assert_eq!(cost.flops, 10.0 * 192.0 * 2.0 * 3.0);
        assert_eq!(forward.flops, 10.0 * 192.0 * 2.0);
        let mut inputs = inputs(&problem);
        for (cost, reference) in [
            (cost, reference as fn(&Tensors) -> Vec<(&'static str, Vec<f64>)>),
            (forward, forward_reference),
        ] {
            let read: usize = inputs.values().map(Tensor::len).sum();
            let written: usize = reference(&inputs).iter().map(|o| o.1.len()).sum();
            assert_eq!(cost.bytes, 4.0 * (read + written) as f64);
            inputs.retain(|name, _| FORWARD_INPUTS.iter().any(|input| input.name == name));
        }
    }
}

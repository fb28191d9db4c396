//! The family of the LSTM of one layer and one direction: what all its versions share. Tensors,
//! reference, cost; sizes and error bounds are a version's own.
//!
//! x \[T, B, I\], the parameters under PyTorch's names, h0 and c0 \[1, B, H\] → y \[T, B, H\], hn and cn
//! \[1, B, H\]; and backward through time, from dy, dhn and dcn: the gradient by each of what went
//! in, under its name with `d` before. The equations are those of [`lab_reference::lstm`].

use lab_device::DType;
use lab_reference::lstm::{
    Gradients, Inputs, Network, Outputs, Roundings, Tensors as Parameters, Upstream,
};

use lab_harness::compare::{each, unit, unit_roundoff};
use lab_harness::{
    Cost, Dim, Dims, Family, Info, Input, Magnitudes, Options, Problem, Reference, Tensor, Tensors,
};

/// The family of the forward and the backward pass.
pub static FAMILY: Lstm = Lstm { backward: true };

/// The family of the forward pass alone: as [`FAMILY`], without what goes in and comes out for the
/// way back.
pub static FORWARD: Lstm = Lstm { backward: false };

/// See [`FAMILY`] and [`FORWARD`].
#[derive(Debug)]
pub struct Lstm {
    backward: bool,
}

impl Family for Lstm {
    fn name(&self) -> &'static str {
        if self.backward { "lstm" } else { "lstm_fw" }
    }

    fn draw_inputs(&self, info: &Info, problem: &Problem) -> Tensors {
        let mut all = inputs(problem);
        all.retain(|name, _| info.inputs.iter().any(|input| input.name == name));
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

/// What goes in.
pub const INPUTS: &[Input] = &[
    Input::new("x", &["T", "B", "I"]),
    Input::new("weight_ih_l0", &["4H", "I"]),
    Input::new("weight_hh_l0", &["4H", "H"]),
    Input::new("bias_ih_l0", &["4H"]),
    Input::new("bias_hh_l0", &["4H"]),
    Input::new("h0", &["1", "B", "H"]),
    Input::new("c0", &["1", "B", "H"]),
    Input::new("dy", &["T", "B", "H"]).from_above(),
    Input::new("dhn", &["1", "B", "H"]).from_above(),
    Input::new("dcn", &["1", "B", "H"]).from_above(),
];

/// What goes in of the forward pass.
pub const FORWARD_INPUTS: &[Input] = INPUTS.split_at(7).0;

/// How many of [`OUTPUTS`] are the forward pass's.
pub const FORWARD_OUTPUTS: usize = 3;

/// What comes out.
pub const OUTPUTS: [&str; 10] = [
    "y",
    "hn",
    "cn",
    "dx",
    "dh0",
    "dc0",
    "dweight_ih_l0",
    "dweight_hh_l0",
    "dbias_ih_l0",
    "dbias_hh_l0",
];

/// The parameters.
const PARAMETERS: [&str; 4] = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"];

/// The sizes of B, T, I and H: of the small problem, of the timed one, the largest.
pub const fn dims([b, t, i, h]: [[usize; 3]; 4]) -> [Dim; 4] {
    [
        Dim::new("B", "rows of a step", b),
        Dim::new("T", "steps", t),
        Dim::new("I", "columns of x", i),
        Dim::new("H", "hidden units", h),
    ]
}

/// As sizes of a problem.
pub fn sizes([b, t, i, h]: [usize; 4]) -> Dims {
    Dims::new([("B", b), ("T", t), ("I", i), ("H", h)])
}

/// B, T, I and H.
pub fn sizes_of(dims: &Dims) -> [usize; 4] {
    ["B", "T", "I", "H"].map(|name| dims.get(name))
}

/// x, the gradients, h0 and c0 normal, the last two half as wide. Weights are normal with the
/// deviation 1 / √(I + H), and biases with 1/2, so that gates are neither shut nor all alike; the
/// forget gate's bias has the mean 1, as training begins.
pub fn inputs(problem: &Problem) -> Tensors {
    let [b, t, i, h] = sizes_of(&problem.dims);
    let scaled = |stream, shape: &[usize], scale: f64, mean: f64, at: std::ops::Range<usize>| {
        let raw = problem.normal_around(0.0, DType::F64, stream, shape).values();
        let of = |(n, v): (usize, f64)| v * scale + if at.contains(&n) { mean } else { 0.0 };
        let values: Vec<f64> = raw.into_iter().enumerate().map(of).collect();
        Tensor::rounded(problem.dtype, shape, &values)
    };
    let plain = |stream, shape: &[usize], scale| scaled(stream, shape, scale, 0.0, 0..0);
    let weight = 1.0 / ((i + h) as f64).sqrt();
    lab_harness::tensor::tensors([
        ("x", plain(0, &[t, b, i], 1.0)),
        ("weight_ih_l0", plain(1, &[4 * h, i], weight)),
        ("weight_hh_l0", plain(2, &[4 * h, h], weight)),
        ("bias_ih_l0", scaled(3, &[4 * h], 0.5, 1.0, h..2 * h)),
        ("bias_hh_l0", plain(4, &[4 * h], 0.5)),
        ("h0", plain(5, &[1, b, h], 0.5)),
        ("c0", plain(6, &[1, b, h], 0.5)),
        ("dy", plain(7, &[t, b, h], 1.0)),
        ("dhn", plain(8, &[1, b, h], 1.0)),
        ("dcn", plain(9, &[1, b, h], 1.0)),
    ])
}

/// What `work` makes of the forward pass's inputs.
fn with_inputs<R>(inputs: &Tensors, work: impl FnOnce(Network, &Parameters, Inputs<'_>) -> R) -> R {
    let shape = &inputs["x"].shape;
    let values = |name: &str| inputs[name].values();
    let parameters = PARAMETERS.map(|name| (name.to_owned(), values(name))).into();
    let [x, h0, c0] = ["x", "h0", "c0"].map(values);
    let data = Inputs { h0: Some(&h0), c0: Some(&c0), ..Inputs::new(shape[1], &x) };
    work(Network::lstm(shape[2], inputs["h0"].shape[2]), &parameters, data)
}

type Named = Vec<(&'static str, Vec<f64>)>;

/// What `work` makes of the gradients from above.
fn with_upstream<R>(inputs: &Tensors, work: impl FnOnce(Upstream<'_>) -> R) -> R {
    let [dy, dhn, dcn] = ["dy", "dhn", "dcn"].map(|name| inputs[name].values());
    work(Upstream { dy: Some(&dy), dhn: Some(&dhn), dcn: Some(&dcn) })
}

/// Under the names of [`OUTPUTS`].
fn named(out: Outputs, back: Option<Gradients>) -> Named {
    let mut all = vec![("y", out.y), ("hn", out.hn), ("cn", out.cn)];
    if let Some(mut back) = back {
        all.extend([("dx", back.dx), ("dh0", back.dh0), ("dc0", back.dc0)]);
        for name in &OUTPUTS[6..] {
            all.push((name, back.parameters.remove(*name).expect("of each parameter")));
        }
    }
    all
}

/// All outputs in f64.
///
/// # Panics
/// The inputs have not been checked with [`lab_harness::Info::problem_of`].
pub fn reference(inputs: &Tensors) -> Named {
    with_inputs(inputs, |network, parameters, data| {
        let back = with_upstream(inputs, |upstream| network.backward(parameters, data, upstream));
        named(network.forward(parameters, data), Some(back))
    })
}

/// What is rounded in runs of a type, in its unit roundoff, on whatever device.
///
/// In f32 and f64 a GPU's exponential may be off by 2 units in the last place, and so may a quick division: by 4 units of roundoff each.
/// A sigmoid 1 / (1 + e) is off by 5 of itself then, and by 4 (1 − σ); a tanh, (1 − e) / (1 + e) from 1/4 on, by 13. In runs of
/// halves gates are f32 and are made of `ex2` and `rcp`, off by 5 of its units beside 1, or 9; those of bf16 of `tanh.approx`, off by a
/// part in 2¹¹. What is handed on is a half.
fn roundings(dtype: DType) -> Roundings {
    let sums = unit::F32 / unit_roundoff(dtype);
    match dtype {
        DType::BF16 => {
            Roundings { sums, handed: 1.0, sigmoid: [0.0, 1.0 / 16.0], tangent: [1.0 / 8.0, 0.0] }
        }
        DType::F16 => {
            Roundings { sums, handed: 1.0, sigmoid: [0.0, 5.0 * sums], tangent: [0.0, 9.0 * sums] }
        }
        _ => Roundings { sums: 1.0, handed: 0.0, sigmoid: [9.0, 0.0], tangent: [13.0, 0.0] },
    }
}

/// What the roundings of each element are relative to: see [`Network::magnitudes`].
fn magnitudes(inputs: &Tensors, backward: bool) -> Named {
    let roundings = roundings(inputs["x"].dtype);
    with_inputs(inputs, |network, parameters, data| {
        let of = |upstream: Option<Upstream<'_>>| {
            network.magnitudes(parameters, data, upstream, roundings)
        };
        let (out, back) =
            if backward { with_upstream(inputs, |upstream| of(Some(upstream))) } else { of(None) };
        named(out, back)
    })
}

/// Two operations for each weight, row and step, and twice as many on the way back: by the input and
/// by the weight. The few dozen of each unit are not counted. Each input read once, each output
/// written once.
pub fn cost(dims: &Dims, dtype: DType) -> Cost {
    let [b, t, i, h] = sizes_of(dims).map(|size| size as f64);
    let parameters = 4.0 * h * (i + h + 2.0);
    let elements = 2.0 * (t * b * (i + h) + parameters + 4.0 * b * h);
    Cost { flops: 6.0 * t * b * 4.0 * h * (i + h), bytes: elements * dtype.size() as f64 }
}

/// Of the forward pass alone: y, hn and cn in f64.
///
/// # Panics
/// The inputs have not been checked with [`lab_harness::Info::problem_of`].
fn forward_reference(inputs: &Tensors) -> Named {
    let out = with_inputs(inputs, |network, parameters, data| network.forward(parameters, data));
    named(out, None)
}

/// The same as [`cost`], of the forward pass alone.
fn forward_cost(dims: &Dims, dtype: DType) -> Cost {
    let [b, t, i, h] = sizes_of(dims).map(|size| size as f64);
    let parameters = 4.0 * h * (i + h + 2.0);
    let elements = t * b * (i + h) + parameters + 4.0 * b * h;
    Cost { flops: cost(dims, dtype).flops / 3.0, bytes: elements * dtype.size() as f64 }
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
        let all = inputs(&problem);
        assert_eq!(INFO.problem_of(&all).unwrap(), (problem.dims, DType::F16));
        let out = reference(&all);
        assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), OUTPUTS);
        for (name, values) in &out[3..] {
            assert_eq!(values.len(), all[&name[1..]].len(), "{name}");
        }
        let mut wrong = all;
        wrong.insert("weight_hh_l0".into(), Tensor::rounded(DType::F16, &[15, 4], &[0.0; 60]));
        let error = INFO.problem_of(&wrong).unwrap_err().to_string();
        let said = "tensor 'weight_hh_l0': expected shape [\"4H\", \"H\"], got f16 [15, 4]";
        assert_eq!(error, said);
    }

    #[test]
    fn the_cost_is_that_of_each_weight_at_each_step() {
        let cost = cost(&sizes([2, 5, 3, 4]), DType::F32);
        // 10 rows in all, 16 · 7 weights, forward and twice backward.
        assert_eq!(cost.flops, 10.0 * 112.0 * 2.0 * 3.0);
        let inputs = inputs(&Problem::new(sizes([2, 5, 3, 4]), DType::F32));
        let read: usize = inputs.values().map(Tensor::len).sum();
        let written: usize = reference(&inputs).iter().map(|o| o.1.len()).sum();
        assert_eq!(cost.bytes, 4.0 * (read + written) as f64);
    }
}

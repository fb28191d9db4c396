//! Decoding: one position behind those that a cache holds.

use lab_device::{DType, Device, Instance, KernelSource};
use lab_harness::compare::{Magnitudes, each, unit};
use lab_harness::plan::Scope;
use lab_harness::suite::VersionCheck;
use lab_harness::tensor::tensors;
use lab_harness::{
    Cost, Dim, Dims, Error, Family, Info, Input, Options, Output, Plan, Preference, Problem,
    Request, Tensor, Tensors, Version, arguments, compare, run, version_checks,
};
use lab_reference::attention_step::{Sizes, attention_step, magnitudes};

use crate::{blocks_of, kernels};

/// q \[B, NH, D\] and caches k, v \[B, NKV, T, D\], of which sequence b has its first `lengths[b]` positions, i32 → o as q.
#[derive(Debug)]
pub(crate) struct OfStep;

static FAMILY: OfStep = OfStep;

/// A version of the step.
#[derive(Debug)]
pub struct Step {
    info: Info,
    way: Way,
}

/// Who reads a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A block for each head of q, on CUDA cores.
    Whole,
    /// Several blocks, for 16 heads of q at most each, on tensor cores.
    Split,
}

const NAMES: [&str; 5] = ["B", "NH", "NKV", "T", "D"];

fn sizes(all: [usize; 5]) -> Dims {
    Dims::new([0, 1, 2, 3, 4].map(|n| (NAMES[n], all[n])))
}

fn sizes_of(dims: &Dims) -> [usize; 5] {
    NAMES.map(|name| dims.get(name))
}

const INFO: Info = Info {
    stage: "attention",
    name: "step",
    family: &FAMILY,
    parent: None,
    change: "one position over a cache: a block a head, a thread a position, then a thread a column",
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dims: &[
        Dim::new("B", "sequences of the batch", [2, 64, 65535]),
        Dim::new("NH", "heads of Q of each, a multiple of NKV", [4, 32, 65535]),
        Dim::new("NKV", "heads of K and V of each", [2, 8, 65535]),
        Dim::new("T", "positions that the caches have room for", [150, 2048, 1 << 24]),
        Dim::new("D", "columns of a head", [64, 128, 256]).in_steps_of(16),
    ],
    settings: &[],
    inputs: &[
        Input::new("q", &["B", "NH", "D"]),
        Input::new("k", &["B", "NKV", "T", "D"]),
        Input::new("v", &["B", "NKV", "T", "D"]),
        Input::new("lengths", &["B"]).always(DType::I32),
    ],
    // f32: sums of up to T terms, one after the other. Halves: the one rounding of the result.
    outputs: &[Output {
        name: "o",
        bounds: &[(DType::F32, 1.7e-6), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
        elements: &[
            (DType::F32, 2.0 * unit::F32),
            (DType::F16, 2.0 * unit::F32),
            (DType::BF16, 2.0 * unit::F32),
        ],
    }],
};

/// A block a head.
pub static STEP: Step = Step { info: INFO, way: Way::Whole };

/// A sequence split over blocks.
pub static STEP_SPLIT: Step = Step {
    info: Info {
        name: "step_split",
        parent: Some("step"),
        change: "tensor cores, 16 heads of q by one read of their cache, which several blocks share",
        dtypes: &[DType::F16, DType::BF16],
        // The weights and o are rounded once each.
        outputs: &[Output {
            name: "o",
            bounds: &[(DType::F16, 1e-3), (DType::BF16, 8e-3)],
            elements: &[(DType::F16, 0.2 * unit::F16), (DType::BF16, unit::BF16)],
        }],
        ..INFO
    },
    way: Way::Split,
};

impl Family for OfStep {
    fn name(&self) -> &'static str {
        "attention_step"
    }

    /// Standard normal. The first sequence has one position, the last all that there is room for; all have where that is much, as in
    /// what is timed.
    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        let [b, nh, nkv, t, d] = sizes_of(&problem.dims);
        let length = |n: usize| if n + 1 == b || t >= 2048 { t } else { 1 + n * 71 % t };
        let lengths: Vec<i32> = (0..b).map(|n| length(n) as i32).collect();
        tensors([
            ("q", problem.normal(0, &[b, nh, d])),
            ("k", problem.normal(1, &[b, nkv, t, d])),
            ("v", problem.normal(2, &[b, nkv, t, d])),
            ("lengths", Tensor::new(&[b], &lengths)),
        ])
    }

    fn reference(&self, _: &Info, inputs: &Tensors, _: &Options) -> Vec<(&'static str, Vec<f64>)> {
        vec![("o", computed(attention_step, inputs))]
    }

    fn magnitudes(
        &self,
        _: &Info,
        inputs: &Tensors,
        _: &Options,
        _: &lab_harness::Reference,
    ) -> Magnitudes {
        each(vec![("o", computed(magnitudes, inputs))])
    }

    /// Keys and values are read once; two products with them, for each head of q. As if all sequences were as long as there is room for.
    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [b, nh, nkv, t, d] = sizes_of(dims).map(|size| size as f64);
        let elements = 2.0 * b * d * (nkv * t + nh);
        Cost { flops: 4.0 * b * nh * t * d, bytes: elements * dtype.size() as f64 + 4.0 * b }
    }

    /// Many texts, and one of a length at which its cache is read for as long.
    fn bench_shapes(&self, _: &Info, dtype: DType) -> Vec<Dims> {
        match dtype {
            DType::F32 => vec![sizes([4, 8, 8, 1024, 64])],
            _ => [[64, 32, 8, 2048, 128], [1, 32, 8, 65536, 128]].map(sizes).to_vec(),
        }
    }

    fn checks(&self) -> &'static [VersionCheck] {
        version_checks![
            what_lies_behind_the_length_does_not_matter,
            large_scores_are_right_too in Large,
            nan_reaches_its_heads_alone,
            heads_of_no_whole_group_are_refused,
        ]
    }
}

/// What a function of the reference makes of these inputs.
fn computed(of: impl Fn([&[f64]; 3], &[usize], Sizes) -> Vec<f64>, inputs: &Tensors) -> Vec<f64> {
    let [_, heads, columns] = inputs["q"].shape[..] else { panic!("q of three indices") };
    let [_, shared_heads, room, _] = inputs["k"].shape[..] else { panic!("k of four indices") };
    let [q, k, v] = ["q", "k", "v"].map(|name| inputs[name].values());
    let lengths: Vec<usize> = inputs["lengths"].values().into_iter().map(|n| n as usize).collect();
    of([&q, &k, &v], &lengths, Sizes { heads, shared_heads, room, columns })
}

impl Version for Step {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(match self.info.name {
            "step_split" => Preference::new(10),
            "step" => Preference::new(20),
            _ => return None,
        })
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        match self.way {
            Way::Whole => vec![&kernels::STEP],
            Way::Split => vec![&kernels::STEP_SPLIT],
        }
    }

    fn test_shapes(&self) -> Vec<Dims> {
        [
            [1, 1, 1, 1, 16],
            // A tile of positions; one more; one less, and the widest heads.
            [1, 1, 1, 128, 64],
            [1, 2, 1, 129, 48],
            [1, 1, 1, 127, 256],
            // Heads that share, sequences of several lengths; more columns than threads.
            [3, 4, 2, 90, 32],
            [2, 6, 2, 300, 144],
            // More heads of a group than a block has; more parts of a sequence than blocks at once.
            [1, 40, 2, 70, 64],
            [1, 2, 1, 2100, 16],
        ]
        .map(sizes)
        .to_vec()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let [b, nh, nkv, room, columns] = sizes_of(&request.dims);
        if !nh.is_multiple_of(nkv) {
            return Err(Error::bad("NKV", format!("a divisor of NH, {nh}"), nkv));
        }
        let mut plan = Plan::new(device);
        let [q, k, v, lengths] = request.inputs(&mut plan, ["q", "k", "v", "lengths"]);
        let o = plan.output("o", request.dtype, &[b, nh, columns]);
        let log2_scale = std::f64::consts::LOG2_E / (columns as f64).sqrt();
        let group = nh / nkv;
        let scope = Scope::new()
            .with(arguments![q, k, v, lengths, o, heads: nh, group, room, D: columns, log2_scale]);
        if self.way == Way::Whole {
            let name = format!("attention_step<{}, 128>", request.dtype.cpp());
            let kernel = device.kernel(&kernels::STEP, &name)?;
            let grid = kernel.grid([blocks_of(b * nh)?, 1, 1])?;
            plan.launch_in(&scope, &kernel, grid, arguments![])?;
            return Ok(plan);
        }
        let has_room = |i: &Instance| i.has("T", request.dtype.cpp()) && columns <= i.size("ROOM");
        let instance = kernels::STEP_SPLIT.instances("attention_split").find(has_room);
        let kernel = device.load(instance.expect("D of a checked problem"))?;
        // Blocks that share a cache, for as many heads of q as a block has.
        let caches = b * nkv * group.div_ceil(SIXTEEN);
        let launch = kernel.grid([blocks_of(caches)?, 1, 1])?;
        let at_once = kernel.resident_blocks(launch.block[0], launch.dynamic_shared)?;
        let splits = splits(caches, at_once as usize, room);
        let sums = plan.scratch(DType::F32, b * nh * splits * columns);
        let rows = plan.scratch(DType::F32, 2 * b * nh * splits);
        let tickets = plan.zeros(DType::U32, caches);
        let grid = kernel.grid([blocks_of(caches * splits)?, 1, 1])?;
        plan.launch_in(
            &scope.with(arguments![sums, rows, tickets, splits]),
            &kernel,
            grid,
            arguments![],
        )?;
        Ok(plan)
    }
}

/// Heads of q of a block, and positions of a tile, of kernels/step_split.cu.
const SIXTEEN: usize = 16;

/// Parts of each sequence: the fewest with which the blocks that run at once are busy for 95 % of the time, or as many as keep the
/// most of them busy. A part has 128 positions or more.
fn splits(caches: usize, at_once: usize, room: usize) -> usize {
    let busy = |splits: usize| {
        let blocks = caches * splits;
        blocks as f64 / (blocks.div_ceil(at_once) * at_once) as f64
    };
    let most = (room / 128).clamp(1, 128);
    let enough = (1..=most).find(|&splits| busy(splits) >= 0.95);
    enough.unwrap_or_else(|| (1..=most).max_by(|&a, &b| busy(a).total_cmp(&busy(b))).expect("one"))
}

fn output_of(version: &dyn Version, device: &Device, inputs: &Tensors) -> Vec<f64> {
    run(version, device, inputs, &Options::default()).unwrap()["o"].values()
}

fn inputs_of(version: &dyn Version, shape: [usize; 5], dtype: DType) -> Tensors {
    version.inputs(&Problem::new(sizes(shape), dtype))
}

/// The same, with all elements of `name` from `first` to `end` set to a value.
fn with(inputs: &Tensors, name: &str, places: std::ops::Range<usize>, value: f64) -> Tensors {
    let mut changed = inputs.clone();
    let mut values = inputs[name].values();
    values[places].fill(value);
    let tensor = Tensor::rounded(inputs[name].dtype, &inputs[name].shape, &values);
    changed.insert(name.to_owned(), tensor);
    changed
}

/// Not even NaN, of which poison is made; the last position within it does.
fn what_lies_behind_the_length_does_not_matter(version: &dyn Version, device: &Device) {
    let (room, d) = (140, 16);
    for length in [1, 127, 128, 129, 140] {
        let mut inputs = inputs_of(version, [1, 1, 1, room, d], version.info().dtypes[0]);
        inputs.insert("lengths".into(), Tensor::new(&[1], &[length as i32]));
        let before = output_of(version, device, &inputs);
        for name in ["k", "v"] {
            let behind = with(&inputs, name, length * d..room * d, f64::NAN);
            assert_eq!(output_of(version, device, &behind), before, "{name} behind {length}");
            let within = with(&inputs, name, (length - 1) * d..length * d, 2.0);
            // One that sees itself alone has a weight of 1, whatever its score.
            let is_constant = name == "k" && length == 1;
            let after = output_of(version, device, &within);
            assert_eq!(after == before, is_constant, "{name} of {length}");
        }
    }
}

/// Where one position has nearly all of the weight, and most exponentials underflow; then where no score is near 0.
fn large_scores_are_right_too(version: &dyn Version, device: &Device) {
    let far_below = |x: f64| -40.0 * x.abs();
    let of_q: [fn(f64) -> f64; 2] = [|x| 8.0 * x, far_below];
    let of_k: [fn(f64) -> f64; 2] = [|x| x, f64::abs];
    let all = version.info().dtypes.iter();
    for (&dtype, case) in all.flat_map(|dtype| [(dtype, 0), (dtype, 1)]) {
        let mut inputs = inputs_of(version, [1, 2, 1, 300, 64], dtype);
        for (name, of) in [("q", of_q[case]), ("k", of_k[case])] {
            let values: Vec<f64> = inputs[name].values().into_iter().map(of).collect();
            let changed = Tensor::rounded(dtype, &inputs[name].shape, &values);
            inputs.insert(name.into(), changed);
        }
        let outputs = run(version, device, &inputs, &Options::default()).unwrap();
        for comparison in compare(version, &inputs, &outputs, &Options::default(), dtype) {
            assert!(comparison.passed(), "{comparison:?}");
        }
    }
}

fn nan_reaches_its_heads_alone(version: &dyn Version, device: &Device) {
    let (nh, nkv, room, d) = (4, 2, 150, 16);
    let inputs = inputs_of(version, [1, nh, nkv, room, d], version.info().dtypes[0]);
    let before = output_of(version, device, &inputs);
    let in_second = (room + 40) * d + 3;
    for (name, at, touched) in [("q", d + 3, 1..2), ("k", in_second, 2..4), ("v", in_second, 2..4)]
    {
        let after = output_of(version, device, &with(&inputs, name, at..at + 1, f64::NAN));
        for head in 0..nh {
            let own = head * d..(head + 1) * d;
            if touched.contains(&head) {
                assert!(after[own].iter().any(|x| x.is_nan()), "{name}: head {head}")
            } else {
                assert_eq!(after[own.clone()], before[own], "{name}: head {head}")
            }
        }
    }
}

fn heads_of_no_whole_group_are_refused(version: &dyn Version, device: &Device) {
    let dtype = version.info().dtypes[0];
    let ones = |shape: &[usize]| Tensor::rounded(dtype, shape, &vec![1.0; shape.iter().product()]);
    let inputs = tensors([
        ("q", ones(&[1, 3, 16])),
        ("k", ones(&[1, 2, 9, 16])),
        ("v", ones(&[1, 2, 9, 16])),
        ("lengths", Tensor::new(&[1], &[9i32])),
    ]);
    let refused = run(version, device, &inputs, &Options::default()).unwrap_err().to_string();
    assert_eq!(refused, "NKV: expected a divisor of NH, 3, got 2");
}

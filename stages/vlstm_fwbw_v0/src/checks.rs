//! What must hold beside the error bounds.

use lab_device::emulator::{self, Order};
use lab_device::{DType, Device, DeviceKind, Launch};
use lab_harness::qkv::sizes;
use lab_harness::suite::{Check, check, every_kernel_loads, without_checks};
use lab_harness::tensor::tensors;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, run};
use lab_reference::vlstm::log_sigmoid;

use crate::{CLASSES, FLAGS, ForwardBackward, GATES, GRID_SYNC, STAGE, THREADS, kernels};

pub(crate) static CHECKS: &[Check] = &[
    Check { name: "the_exact_gradient", run: the_exact_gradient },
    Check { name: "a_gate_that_shut_long_ago", run: a_gate_that_shut_long_ago },
    Check { name: "extreme_gates_give_numbers", run: extreme_gates_give_numbers },
    Check { name: "all_equal_and_one_alone", run: all_equal_and_one_alone },
    Check { name: "the_gates_gradients_add_up", run: the_gates_gradients_add_up },
    Check { name: "blocks_may_begin_in_any_order", run: blocks_may_begin_in_any_order },
    Check { name: "any_schedule_gives_the_same", run: any_schedule_gives_the_same },
    Check { name: "a_second_launch_gives_the_same", run: a_second_launch_gives_the_same },
    Check { name: "heads_do_not_meet", run: heads_do_not_meet },
    Check { name: "what_comes_later_does_not_matter", run: what_comes_later_does_not_matter },
    Check { name: "large_problems", run: large_problems },
    Check { name: "shapes_that_do_not_fit_are_refused", run: shapes_that_do_not_fit_are_refused },
    Check { name: "tiles_fit_an_rtx_4060", run: tiles_fit_an_rtx_4060 },
    Check { name: "every_kernel_loads_on_every_device", run: every_kernel_loads_on_every_device },
];

const VERSIONS: [&ForwardBackward; 2] = [&GRID_SYNC, &FLAGS];

/// Those of the forward pass first.
const OUTPUTS: [&str; 8] = ["h", "m", "n", "dq", "dk", "dv", "di", "df"];

fn options(normalizer_grad: &str) -> Options {
    let text = format!("normalizer_grad={normalizer_grad}");
    Options::parse(&[text], FLAGS.info()).unwrap()
}

fn problem(shape: [usize; 5]) -> Problem {
    Problem::new(sizes(shape), DType::F32)
}

fn outputs(version: &ForwardBackward, device: &Device, inputs: &Tensors) -> Tensors {
    run(version, device, inputs, &Options::default()).unwrap()
}

/// `inputs` with a gate that is `at(t)` at position t of each head.
fn with_gate(inputs: &mut Tensors, name: &str, at: impl Fn(usize) -> f32) {
    let shape = inputs[name].shape.clone();
    let all: Vec<f32> = (0..shape.iter().product()).map(|n| at(n % shape[2])).collect();
    inputs.insert(name.to_owned(), Tensor::new(&shape, &all));
}

/// The gradient through n as well. It takes from the other what is along h, all of it where a row
/// sees one key: what is left there is ε of it. So errors are relative to the gradient with n held
/// constant; of df to di, as everywhere: see [`Scales`].
fn the_exact_gradient(device: &Device) {
    let shapes = [[1, 1, 1, 16, 16], [2, 1, 67, 64, 32], [1, 2, 150, 16, 128], [1, 1, 65, 256, 48]];
    for (seed, shape) in shapes.into_iter().enumerate() {
        for &dtype in FLAGS.info().dtypes {
            let inputs = FLAGS.inputs(&Problem { seed: seed as u64, dtype, ..problem(shape) });
            let worst = worst_of(&FLAGS, device, &inputs, "exact");
            let bound = |name: &str| match (name, dtype) {
                // The h of r_i is a rounded one.
                ("df", DType::F16) => 1.8e-4,
                ("df", DType::BF16) => 1.3e-3,
                (_, DType::F16) => 1.3e-3,
                (_, DType::BF16) => 2e-2,
                _ => 1e-5,
            };
            for (name, error) in &worst[3..] {
                assert!(*error <= bound(name), "{shape:?} {dtype} {name}: {error:.2e}");
            }
        }
    }
}

/// What errors of the gradients are relative to: the largest element of each output, with n held
/// constant or not, and for df that of di, for df adds up what nearly cancels and is as large as di.
struct Scales(Vec<(&'static str, f64)>);

impl Scales {
    fn of(version: &ForwardBackward, inputs: &Tensors) -> Self {
        let largest = |all: &[f64]| all.iter().fold(0f64, |a, b| a.max(b.abs()));
        let [constant, exact] =
            ["constant", "exact"].map(|through| version.reference(inputs, &options(through)));
        let pairs = constant.iter().zip(&exact);
        Self(pairs.map(|(a, b)| (a.0, largest(&a.1).max(largest(&b.1)))).collect())
    }

    fn get(&self, name: &str) -> f64 {
        let name = if name == "df" { "di" } else { name };
        self.0.iter().find(|s| s.0 == name).expect("every output").1
    }
}

/// The largest error of an element of each output, relative to its scale. What a float cannot hold
/// is right if it is infinite; below 1e-30 all is zero, for exp(−m) may be more than a float holds.
fn worst_of(
    version: &ForwardBackward,
    device: &Device,
    inputs: &Tensors,
    normalizer_grad: &str,
) -> Vec<(&'static str, f64)> {
    let options = options(normalizer_grad);
    let out = run(version, device, inputs, &options).unwrap();
    let scales = Scales::of(version, inputs);
    let of = |(name, expected): (&'static str, Vec<f64>)| {
        let scale = scales.get(name).max(1e-30);
        let error = |(got, expected): (f64, &f64)| match expected.abs() > f64::from(f32::MAX) {
            true if got == expected.signum() * f64::INFINITY => 0.0,
            _ => (got - expected).abs() / scale,
        };
        let worse = |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
        let got = out[name].values();
        (name, got.into_iter().zip(&expected).map(error).fold(0.0, |a, b| worse(b, a)))
    };
    version.reference(inputs, &options).into_iter().map(of).collect()
}

/// f = −100 over the first part, +5 over the second: F is −100000 where what counts are differences
/// of 0.007. From sums in one float h would be wrong by half.
fn a_gate_that_shut_long_ago(device: &Device) {
    let device = &without_checks(device).unwrap();
    let s = 2048;
    for (version, shut) in [(&GRID_SYNC, s / 2), (&FLAGS, s / 2), (&FLAGS, 1001)] {
        let problem = problem([1, 1, s, 16, 16]);
        let mut inputs = version.inputs(&problem);
        with_gate(&mut inputs, "f", |t| if t < shut { -100.0 } else { 5.0 });
        for (name, error) in worst_of(version, device, &inputs, "constant") {
            assert!(error <= 1e-4, "{name} of {}, shut to {shut}: {error:.2e}", version.info.name);
        }
    }
}

/// Every output a number, and right: but for what rows magnify whose l_i nearly cancels, as nothing
/// else holds n_i up where i is large.
fn assert_sane(version: &ForwardBackward, device: &Device, inputs: &Tensors, what: &str) {
    let bound = match inputs["q"].dtype {
        DType::F32 => 1e-3,
        DType::F16 => 4e-3,
        _ => 1.5e-2,
    };
    for through in ["constant", "exact"] {
        for (name, error) in worst_of(version, device, inputs, through) {
            assert!(error <= bound, "{what}, {through}, {name}: {error:.2e}");
        }
    }
}

fn extreme_gates_give_numbers(device: &Device) {
    // Positions shut out, as padding is: among them all of a tile.
    let mut inputs = FLAGS.inputs(&problem([1, 1, 200, 16, 16]));
    with_gate(&mut inputs, "i", |t| if (1..150).contains(&t) { f32::NEG_INFINITY } else { 0.0 });
    assert_sane(&FLAGS, device, &inputs, "padding");
    for (dtype, s) in [(DType::F32, 70), (DType::F32, 1), (DType::F16, 9), (DType::BF16, 33)] {
        for i in [-100.0, 0.0, 100.0] {
            for f in [-100.0, 0.0, 100.0] {
                let problem = Problem { dtype, ..problem([1, 1, s, 16, 16]) };
                let mut inputs = FLAGS.inputs(&problem);
                with_gate(&mut inputs, "i", |_| i);
                with_gate(&mut inputs, "f", |_| f);
                assert_sane(&FLAGS, device, &inputs, &format!("{dtype} S={s} i={i} f={f}"));
                with_gate(&mut inputs, "i", |t| if t % 3 == 0 { i } else { -i });
                with_gate(&mut inputs, "f", |t| if t % 5 == 0 { -f } else { f });
                assert_sane(&FLAGS, device, &inputs, &format!("{dtype} S={s} i=±{i} f=±{f}"));
            }
        }
    }
}

fn all_equal_and_one_alone(device: &Device) {
    let [s, dh] = [70, 16];
    for (gate, memory) in [(0f32, None), (3.0, None), (100.0, Some(0)), (100.0, Some(66))] {
        let ones = |columns: usize| Tensor::new(&[1, 1, s, columns], &vec![1f32; s * columns]);
        let one_hot = |n: usize| f32::from(u8::from(n.is_multiple_of(dh + 1)));
        let hot = Tensor::new(&[1, 1, s, dh], &(0..s * dh).map(one_hot).collect::<Vec<_>>());
        let row = Tensor::new(&[1, 1, s], &vec![gate; s]);
        let k = if memory.is_some() { hot } else { ones(dh) };
        let mut inputs = tensors([
            ("q", ones(dh)),
            ("k", k),
            ("v", ones(dh)),
            ("dh", ones(dh)),
            ("i", row.clone()),
            ("f", row),
        ]);
        if let Some(only) = memory {
            with_gate(&mut inputs, "i", |t| if t == only { 100.0 } else { -100.0 });
        }
        assert_sane(&FLAGS, device, &inputs, &format!("gates {gate}, memory {memory:?}"));
    }
}

/// df_0 is zero because Σ q·dq = Σ k·dk = Σ di, which nothing enforces. And it is written as zero.
fn the_gates_gradients_add_up(device: &Device) {
    let [s, dhqk] = [150, 32];
    for through in ["constant", "exact"] {
        let inputs = FLAGS.inputs(&problem([1, 1, s, dhqk, 64]));
        let out = run(&FLAGS, device, &inputs, &options(through)).unwrap();
        let (q, dq, di) = (inputs["q"].values(), out["dq"].values(), out["di"].values());
        let rows: f64 = q.iter().zip(&dq).map(|(q, dq)| q * dq).sum();
        let columns: f64 = di.iter().sum();
        let size: f64 = di.iter().map(|v| v.abs()).sum();
        assert!((rows - columns).abs() <= 4e-7 * size, "{through}: {rows} {columns}, of {size}");
        assert_eq!(out["df"].values()[0], 0.0);
    }
}

/// F by flags, of heads with so many positions each: the sums, as they are stored.
fn sums_by_flags(device: &Device, f: &[f32], s: usize) -> Vec<f64> {
    let (heads, tiles) = (f.len() / s, s.div_ceil(GATES));
    let kernel = device.kernel(&kernels::FLAGS, "gate_sums_flags<128>").unwrap();
    let uploaded = device.upload(f).unwrap();
    let mut carried = device.buffer::<f64>(heads * tiles).unwrap();
    let mut ready = device.upload(&vec![0u32; heads * tiles]).unwrap();
    let mut ticket = device.upload(&[0u32]).unwrap();
    let mut sums = device.buffer::<f32>(2 * f.len()).unwrap();
    let [heads, all, s] = [heads, heads * tiles, s].map(|n| n as i32);
    let arguments = [
        uploaded.arg(),
        carried.arg_mut(),
        ready.arg_mut(),
        ticket.arg_mut(),
        sums.arg_mut(),
        heads.into(),
        (all / heads).into(),
        s.into(),
    ];
    kernel.launch(Launch::new(all as u32, THREADS), &arguments).unwrap();
    let pairs = sums.download().unwrap();
    pairs.chunks(2).map(|pair| f64::from(pair[0]) + f64::from(pair[1])).collect()
}

/// More blocks than run at a time, each of which waits for another: 60 on a thread or some of the
/// emulator, in every order; 65536 on a GPU.
fn blocks_may_begin_in_any_order(device: &Device) {
    let emulated = device.kind() == DeviceKind::Emulator;
    let (heads, s) = if emulated { (15, 500) } else { (16, 1 << 19) };
    let gate = |n: usize| (n * 37 % 101) as f32 / 10.0 - 3.0;
    let f: Vec<f32> = (0..heads * s).map(gate).collect();
    let mut before = Vec::new();
    for device in schedules(device) {
        let sums = sums_by_flags(&device, &f, s);
        for (head, f) in f.chunks(s).enumerate() {
            let mut expected = 0.0;
            for (t, &f) in f.iter().enumerate() {
                expected += log_sigmoid(f64::from(f));
                let got = sums[head * s + t];
                // A term is in f32: CUDA promises expf to 2 units in the last place, log1pf to 1.
                let close = (got - expected).abs() <= 4e-7 * expected.abs();
                assert!(close, "{head} {t}: {got}, not {expected}");
            }
        }
        assert!(before.is_empty() || before == sums, "the same on {}", device.name());
        before = sums;
    }
}

/// The device as it is; of an emulator also one, two and five OS threads, each in other orders.
fn schedules(device: &Device) -> Vec<Device> {
    let mut all = vec![device.clone()];
    if let Some(mode) = device.mode() {
        let orders = [Order::Reverse, Order::Random(1), Order::Random(2), Order::Warps];
        for (order, threads) in orders.into_iter().zip([1, 2, 5, 2]) {
            let options = emulator::Options { order, threads, ..emulator::Options::default() };
            all.push(Device::emulator_with(mode, options).unwrap());
        }
    }
    all
}

/// Bit for bit, in both versions.
fn any_schedule_gives_the_same(device: &Device) {
    for version in VERSIONS {
        let inputs = version.inputs(&problem([1, 2, 260, 16, 16]));
        let mut before = None;
        for device in schedules(device) {
            let after = outputs(version, &device, &inputs);
            assert!(
                before.is_none_or(|b| b == after),
                "{} on {}",
                version.info.name,
                device.name()
            );
            before = Some(after);
        }
    }
}

/// Flags and ticket are set back, and nothing is taken from the launch before.
fn a_second_launch_gives_the_same(device: &Device) {
    for version in VERSIONS {
        let inputs = version.inputs(&problem([1, 2, 260, 16, 16]));
        let mut prepared = version.prepare(device, &inputs, &Options::default()).unwrap();
        prepared.launch().unwrap();
        let first = prepared.outputs().unwrap();
        prepared.poison_outputs().unwrap();
        prepared.launch().unwrap();
        assert_eq!(prepared.outputs().unwrap(), first, "{}", version.info.name);
    }
}

/// Each head alone gives the same as among others, bit for bit.
fn heads_do_not_meet(device: &Device) {
    let [b, nh, s] = [2, 2, 150];
    for version in VERSIONS {
        let inputs = version.inputs(&problem([b, nh, s, 16, 32]));
        let all = outputs(version, device, &inputs);
        let head_of = |t: &Tensor, head: usize| {
            let mut shape = t.shape.clone();
            (shape[0], shape[1]) = (1, 1);
            let len: usize = shape.iter().product();
            Tensor::rounded(DType::F32, &shape, &t.values()[head * len..][..len])
        };
        for head in 0..b * nh {
            let own = inputs.iter().map(|(n, t)| (n.clone(), head_of(t, head))).collect();
            for (name, alone) in outputs(version, device, &own) {
                assert_eq!(alone, head_of(&all[&name], head), "{name} of head {head}");
            }
        }
    }
}

/// Nothing of h, m, n comes from later positions, and nothing of a gradient goes to them.
fn what_comes_later_does_not_matter(device: &Device) {
    let [s, dh] = [150, 16];
    let inputs = FLAGS.inputs(&problem([1, 1, s, dh, dh]));
    let before = outputs(&FLAGS, device, &inputs);
    for t in [1, 63, 64, 149] {
        let mut changed = inputs.clone();
        for name in ["q", "k", "v", "i", "f"] {
            let mut tensor = inputs[name].values();
            let columns = tensor.len() / s;
            tensor[t * columns..].iter_mut().for_each(|v| *v = 10.0 - 3.0 * *v);
            changed
                .insert(name.to_owned(), Tensor::rounded(DType::F32, &inputs[name].shape, &tensor));
        }
        let after = outputs(&FLAGS, device, &changed);
        for name in ["h", "m", "n"] {
            let (before, after) = (before[name].values(), after[name].values());
            let columns = before.len() / s;
            assert_eq!(after[..t * columns], before[..t * columns], "{name} before {t}");
            assert_ne!(after[t * columns..], before[t * columns..], "{name} from {t} on");
        }
        let mut changed = inputs.clone();
        let mut dh_values = inputs["dh"].values();
        dh_values[..t * dh].iter_mut().for_each(|v| *v = 10.0 - 3.0 * *v);
        changed.insert("dh".into(), Tensor::rounded(DType::F32, &[1, 1, s, dh], &dh_values));
        let after = outputs(&FLAGS, device, &changed);
        for name in &OUTPUTS[3..] {
            let (before, after) = (before[*name].values(), after[*name].values());
            let columns = before.len() / s;
            assert_eq!(after[t * columns..], before[t * columns..], "{name} from {t} on");
        }
    }
}

/// S = 1000, on a GPU 4096: the emulator without its checks.
fn large_problems(device: &Device) {
    let device = &without_checks(device).unwrap();
    let emulated = device.kind() == DeviceKind::Emulator;
    for shape in match emulated {
        true => [[1, 1, 1000, 64, 64], [1, 1, 300, 128, 112], [1, 1, 200, 240, 256]],
        false => [[1, 2, 4096, 64, 64], [1, 4, 1000, 128, 112], [2, 2, 700, 240, 256]],
    } {
        for (version, &dtype) in VERSIONS.into_iter().cycle().zip(FLAGS.info().dtypes) {
            let case = check(version, device, &Problem { dtype, ..problem(shape) });
            assert!(case.passed(), "{}", case.describe());
        }
    }
}

fn shapes_that_do_not_fit_are_refused(device: &Device) {
    let inputs = FLAGS.inputs(&problem([1, 2, 9, 32, 16]));
    for (name, shape, said) in [
        ("k", &[1, 2, 9, 16][..], "expected DHQK=32 as 'q', got f32 [1, 2, 9, 16]"),
        ("v", &[1, 2, 8, 16], "expected S=9 as 'q', got f32 [1, 2, 8, 16]"),
        ("v", &[1, 2, 9, 24], "expected dimension DHHV: expected a multiple of 16 from 16 to 256"),
        ("q", &[1, 2, 9, 272], "expected dimension DHQK: expected a multiple of 16 from 16 to 256"),
        ("i", &[1, 2, 8], "expected S=9 as 'q', got f32 [1, 2, 8]"),
        ("f", &[1, 2, 9, 1], "expected shape [\"B\", \"NH\", \"S\"], got f32 [1, 2, 9, 1]"),
        ("dh", &[1, 2, 9, 32], "expected DHHV=16 as 'v', got f32 [1, 2, 9, 32]"),
        ("dh", &[1, 3, 9, 16], "expected NH=2 as 'q', got f32 [1, 3, 9, 16]"),
    ] {
        let mut wrong = inputs.clone();
        let len = shape.iter().product();
        wrong.insert(name.into(), Tensor::new(shape, &vec![1f32; len]));
        for version in VERSIONS {
            let error = run(version, device, &wrong, &Options::default()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("tensor '{name}': {said}")), "{error}");
        }
    }
    let mut halves = inputs.clone();
    halves.insert("f".into(), Tensor::rounded(DType::F16, &[1, 2, 9], &[0.0; 18]));
    let error = run(&FLAGS, device, &halves, &Options::default()).unwrap_err().to_string();
    assert_eq!(error, "tensor 'f': expected f32 in runs of every type, got f16");
    let eps = Options::parse(&["eps=-1"], FLAGS.info()).unwrap();
    let error = run(&FLAGS, device, &inputs, &eps).unwrap_err().to_string();
    assert_eq!(error, "--set eps: expected a number that is not negative, got -1");
}

/// 99 KB a block there, which the kernels ask for at once: nothing else says that they fit.
fn tiles_fit_an_rtx_4060(_: &Device) {
    for tiles in CLASSES {
        assert!(tiles.shared() <= 99 * 1024, "{tiles:?}: {} bytes", tiles.shared());
    }
}

fn every_kernel_loads_on_every_device(device: &Device) {
    every_kernel_loads(&STAGE, device);
}

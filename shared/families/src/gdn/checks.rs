//! What must hold of every version of the forward pass.

use lab_device::{DType, Device, DeviceKind};

use super::{sizes, unit_rows};
use crate::checking::{
    assert_inputs_right, assert_refused_with, assert_same_in_any_order_and_launch, part, set,
    with_last_state,
};
use crate::qkv::checks::dtype_of;
use lab_harness::suite::{VersionCheck, without_checks};
use lab_harness::{Options, Problem, Tensor, Tensors, Version, compare, run, version_checks};

pub(super) static FORWARD: &[VersionCheck] = version_checks![
    correlated_keys_are_right,
    extreme_gates_are_right,
    parts_are_the_whole,
    a_state_of_zeros_is_none,
    heads_of_a_group_share_queries_and_keys,
    what_comes_later_does_not_matter,
    nan_stays_in_its_head,
    a_scale_is_as_it_is_given,
    what_does_not_fit_is_refused,
    any_schedule_gives_the_same in Ends,
    large_problems in Large,
];

/// Of linear attention: the same but for what a key erases.
pub(super) static LINEAR_FORWARD: &[VersionCheck] = version_checks![
    weights_are_right if takes_weights,
    extreme_gates_are_right,
    parts_are_the_whole,
    a_state_of_zeros_is_none,
    heads_of_a_group_share_queries_and_keys,
    what_comes_later_does_not_matter,
    nan_stays_in_its_head,
    a_scale_is_as_it_is_given,
    what_does_not_fit_is_refused,
    any_schedule_gives_the_same in Ends,
    large_problems in Large,
];

pub(super) fn takes_weights(version: &dyn Version) -> bool {
    version.info().takes("w")
}

/// Weights of what is written: from nearly nothing to much, and one that is 0.
pub(super) fn set_weights(inputs: &mut Tensors) {
    let gates = inputs["g"].clone();
    inputs.insert("w".to_owned(), gates);
    set(inputs, "w", |at| if at == 5 { 0.0 } else { (2.0 * (1.3 * at as f64).sin()).exp() });
}

fn weights_are_right(version: &dyn Version, device: &Device) {
    for (&dtype, shape) in
        version.info().dtypes.iter().zip([[1, 2, 1, 70, 32, 48], [1, 1, 1, 130, 16, 80]])
    {
        let mut inputs = version.inputs(&Problem::new(sizes(shape), dtype));
        set_weights(&mut inputs);
        set_state(&mut inputs, "C0", 1.7);
        assert_right(version, device, &inputs, "weights");
        set(&mut inputs, "w", |_| 1.0);
        let ones = outputs_of(version, device, &inputs);
        inputs.remove("w");
        assert_eq!(outputs_of(version, device, &inputs), ones, "weights of 1 and none");
    }
}

/// Gives g these values, or the forget gates of which they are log σ.
pub(super) fn set_kept(inputs: &mut Tensors, of: impl Fn(usize) -> f64) {
    if inputs.contains_key("g") {
        return set(inputs, "g", of);
    }
    set(inputs, "f", |at| of(at) - (-of(at).exp_m1()).ln());
}

/// Inputs that have positions, of those there are.
fn with_positions(inputs: &Tensors) -> impl Iterator<Item = &'static str> {
    let names = ["q", "k", "v", "g", "beta", "w", "i", "f"].into_iter();
    names.filter(|name| inputs.contains_key(*name)).collect::<Vec<_>>().into_iter()
}

fn inputs_of(version: &dyn Version, shape: [usize; 6]) -> Tensors {
    version.inputs(&Problem::new(sizes(shape), dtype_of(version)))
}

fn outputs_of(version: &dyn Version, device: &Device, inputs: &Tensors) -> Tensors {
    run(version, device, inputs, &with_last_state(version)).unwrap()
}

/// These inputs give what the reference says, the last state too.
#[track_caller]
fn assert_right(version: &dyn Version, device: &Device, inputs: &Tensors, what: &str) {
    assert_inputs_right(version, device, inputs, &with_last_state(version), what);
}

/// A state, or the gradient of one, by its name.
pub(super) fn set_state(inputs: &mut Tensors, name: &str, step: f64) {
    set_state_of(inputs, name, step, inputs["v"].shape[0]);
}

/// The same of so many sequences.
pub(super) fn set_state_of(inputs: &mut Tensors, name: &str, step: f64, sequences: usize) {
    let [nh, dhqk] = [inputs["v"].shape[1], inputs["q"].shape[3]];
    let shape = [sequences, nh, dhqk, inputs["v"].shape[3]];
    let values: Vec<f64> = (0..shape.iter().product()).map(|at| (step * at as f64).sin()).collect();
    inputs.insert(name.to_owned(), Tensor::rounded(DType::F32, &shape, &values));
}

/// Makes keys of one head alike, 0.9 of each one direction, and beta 0.95.
pub(super) fn correlate_keys(inputs: &mut Tensors) {
    let (k, dhqk) = (inputs["k"].values(), inputs["k"].shape[3]);
    let mixed = k.iter().enumerate().map(|(at, own)| 0.9 * k[at % dhqk] + 0.1 * own);
    let mixed = unit_rows(mixed.collect(), dhqk);
    set(inputs, "k", |at| mixed[at]);
    set(inputs, "beta", |_| 0.95);
}

/// Keys that are alike, 0.9 of each one direction, and beta 0.95: then (I + A)⁻¹ is far from I, and who makes it by powers of
/// A has nothing left of it. Random keys do not show that.
///
/// # Panics
/// The version is further off than its bounds.
pub fn correlated_keys_are_right(version: &dyn Version, device: &Device) {
    for (&dtype, seed) in version.info().dtypes.iter().zip(0..) {
        let problem = Problem { seed, ..Problem::new(sizes([1, 1, 1, 130, 16, 16]), dtype) };
        let mut inputs = version.inputs(&problem);
        correlate_keys(&mut inputs);
        assert_right(version, device, &inputs, "correlated keys");
        set(&mut inputs, "g", |_| -1e-3);
        assert_right(version, device, &inputs, "correlated keys, kept for long");
    }
}

/// Gates that keep all, nothing, or one after the other; and beta at its ends.
fn extreme_gates_are_right(version: &dyn Version, device: &Device) {
    let gates: [(&str, &dyn Fn(usize) -> f64); 6] = [
        ("all is kept", &|_| 0.0),
        ("nothing is kept", &|_| -100.0),
        ("a gate is shut", &|t| if t == 40 { f64::NEG_INFINITY } else { -0.01 }),
        ("all gates are shut", &|_| f64::NEG_INFINITY),
        ("one in two", &|t| if t % 2 == 0 { -100.0 } else { -1e-3 }),
        ("shut for long, then open", &|t| if t < 60 { -100.0 } else { -0.01 }),
    ];
    let types = version.info().dtypes;
    for (n, (what, of)) in gates.into_iter().enumerate() {
        let s = 70;
        let mut inputs =
            version.inputs(&Problem::new(sizes([1, 1, 1, s, 16, 32]), types[n % types.len()]));
        set_kept(&mut inputs, |at| of(at % s));
        if n % 2 == 0 {
            set_state(&mut inputs, "C0", 1.7);
        }
        assert_right(version, device, &inputs, what);
        if !inputs.contains_key("beta") {
            continue;
        }
        set(&mut inputs, "beta", |at| (at % 2) as f64);
        assert_right(version, device, &inputs, &format!("{what}, beta 0 and 1"));
    }
}

/// A sequence in parts, each behind the state that the one before it has left, is the whole: within the bounds of the whole's
/// reference. Where chunks begin decides what is rounded when, so the bits may differ.
fn parts_are_the_whole(version: &dyn Version, device: &Device) {
    let s = 150;
    let cuts: [&[usize]; 4] = [&[1], &[64], &[37, 101], &[128, 129]];
    for (seed, cuts) in cuts.into_iter().enumerate() {
        let dtype = version.info().dtypes[seed % version.info().dtypes.len()];
        let columns = if seed == 0 { 80 } else { 32 };
        let dims = sizes([1, 1, 1, s, 32, columns]);
        let problem = Problem { seed: seed as u64, ..Problem::new(dims, dtype) };
        let mut inputs = version.inputs(&problem);
        if seed % 2 == 1 {
            set_state(&mut inputs, "C0", 1.7);
        }
        let mut state = inputs.get("C0").cloned();
        let mut h = Vec::new();
        for (from, to) in [0].iter().chain(cuts).zip(cuts.iter().chain([&s])) {
            let mut own = part(&inputs, *from, *to);
            own.extend(state.map(|state| ("C0".to_owned(), state)));
            let out = outputs_of(version, device, &own);
            h.extend(out["h"].values());
            state = Some(out["CN"].clone());
        }
        let mut all = Tensors::new();
        all.insert("h".to_owned(), Tensor::rounded(dtype, &inputs["v"].shape, &h));
        all.insert("CN".to_owned(), state.expect("a part"));
        for c in compare(version, &inputs, &all, &with_last_state(version), dtype) {
            assert!(c.passed(), "cut at {cuts:?}, {dtype}: {}", c.complaint());
        }
    }
}

/// The same bits as without a state.
fn a_state_of_zeros_is_none(version: &dyn Version, device: &Device) {
    let mut inputs = inputs_of(version, [1, 2, 1, 70, 16, 32]);
    let none = outputs_of(version, device, &inputs);
    set_state(&mut inputs, "C0", 1.7);
    set(&mut inputs, "C0", |_| 0.0);
    assert_eq!(outputs_of(version, device, &inputs), none);
}

/// The same bits as with a copy of its queries and keys for each head.
fn heads_of_a_group_share_queries_and_keys(version: &dyn Version, device: &Device) {
    let [b, nh, nkv, s, dhqk, dhhv] = [2, 4, 2, 70, 32, 16];
    let inputs = inputs_of(version, [b, nh, nkv, s, dhqk, dhhv]);
    let mut all = inputs.clone();
    for name in ["q", "k"] {
        let values = inputs[name].values();
        let heads = values.chunks(s * dhqk).flat_map(|head| std::iter::repeat_n(head, nh / nkv));
        let values: Vec<f64> = heads.flatten().copied().collect();
        let copied = Tensor::rounded(inputs[name].dtype, &[b, nh, s, dhqk], &values);
        all.insert(name.to_owned(), copied);
    }
    let [shared, apart] = [&inputs, &all].map(|inputs| outputs_of(version, device, inputs));
    assert_eq!(shared, apart);
}

fn what_comes_later_does_not_matter(version: &dyn Version, device: &Device) {
    let [s, dhhv] = [100, 16];
    let inputs = inputs_of(version, [1, 1, 1, s, 16, dhhv]);
    let before = outputs_of(version, device, &inputs)["h"].values();
    for t in [1, 63, 64, 99] {
        let mut changed = inputs.clone();
        for name in with_positions(&inputs) {
            let columns = inputs[name].len() / s;
            let values = inputs[name].values();
            set(
                &mut changed,
                name,
                |at| {
                    if at / columns < t { values[at] } else { 0.5 * values[at] }
                },
            );
        }
        let after = outputs_of(version, device, &changed)["h"].values();
        assert_eq!(after[..t * dhhv], before[..t * dhhv], "h before {t}");
        assert_ne!(after[t * dhhv..][..dhhv], before[t * dhhv..][..dhhv], "h of {t}");
    }
}

/// A NaN of a head reaches its own later rows, no other head, and no row of earlier chunks: a tensor core multiplies a later
/// position's NaN of the same chunk by a weight of zero.
fn nan_stays_in_its_head(version: &dyn Version, device: &Device) {
    let [nh, s, dhqk, dhhv] = [2, 140, 16, 16];
    let mut clean = inputs_of(version, [1, nh, nh, s, dhqk, dhhv]);
    set_state(&mut clean, "C0", 1.7);
    let before = outputs_of(version, device, &clean);
    for name in with_positions(&clean).chain(["C0"]) {
        let mut inputs = clean.clone();
        let (values, row) = (clean[name].values(), clean[name].len() / nh);
        // Of the second head, position 70 of S.
        set(&mut inputs, name, |at| if at == row + row / 2 { f64::NAN } else { values[at] });
        let after = outputs_of(version, device, &inputs);
        for output in ["h", "CN"] {
            let (before, after) = (before[output].values(), after[output].values());
            let head = before.len() / nh;
            assert_eq!(after[..head], before[..head], "{name}: {output} of the other head");
        }
        let own = &after["h"].values()[s * dhhv..];
        assert!(own[70 * dhhv..].iter().any(|h| h.is_nan()), "{name}: later h of its head");
        let early = own[..64 * dhhv].iter().filter(|h| h.is_nan()).count();
        assert!(name == "C0" || early == 0, "{name}: {early} elements of earlier chunks are NaN");
    }
}

fn a_scale_is_as_it_is_given(version: &dyn Version, device: &Device) {
    let inputs = inputs_of(version, [1, 1, 1, 20, 16, 16]);
    let options = Options::parse(&["scale=0.7"], version.info()).unwrap();
    let outputs = run(version, device, &inputs, &options).unwrap();
    for c in compare(version, &inputs, &outputs, &options, dtype_of(version)) {
        assert!(c.passed(), "{}", c.complaint());
    }
}

fn what_does_not_fit_is_refused(version: &dyn Version, device: &Device) {
    let dtype = dtype_of(version);
    let ones =
        |dtype, shape: &[usize]| Tensor::rounded(dtype, shape, &vec![0.5; shape.iter().product()]);
    let fitting = inputs_of(version, [1, 4, 2, 9, 32, 16]);
    let mut thirds = fitting.clone();
    for name in ["q", "k"] {
        thirds.insert(name.to_owned(), ones(dtype, &[1, 3, 9, 32]));
    }
    let error = run(version, device, &thirds, &Options::default()).unwrap_err().to_string();
    assert_eq!(error, "NKV: expected a divisor of NH, 4, got 3");
    for (name, tensor, said) in [
        ("k", ones(dtype, &[1, 2, 9, 16]), "DHQK=32 as 'q'"),
        ("v", ones(dtype, &[1, 4, 8, 16]), "S=9 as 'q'"),
        ("g", ones(DType::F32, &[1, 2, 9]), "NH=4 as 'v'"),
        ("beta", ones(DType::F64, &[1, 4, 9]), "f32 in runs of every type"),
        ("C0", ones(DType::F32, &[1, 4, 16, 16]), "DHQK=32 as 'q'"),
    ] {
        if ["g", "beta"].contains(&name) && !fitting.contains_key(name) {
            continue;
        }
        assert_refused_with(version, device, &fitting, (name, Some(tensor), said));
    }
}

/// Bit for bit, in whatever order blocks and threads run, and from launch to launch.
fn any_schedule_gives_the_same(version: &dyn Version, device: &Device) {
    let mut inputs = inputs_of(version, [1, 2, 1, 130, 32, 32]);
    set_state(&mut inputs, "C0", 1.7);
    assert_same_in_any_order_and_launch(version, device, &inputs, &with_last_state(version));
}

/// On the emulator without its checks: they are too large to be checked.
fn large_problems(version: &dyn Version, device: &Device) {
    let shapes = match device.kind() {
        DeviceKind::Emulator => {
            [[1, 2, 1, 700, 64, 64], [1, 1, 1, 300, 128, 112], [1, 1, 1, 200, 256, 80]]
        }
        DeviceKind::Cuda => {
            [[2, 8, 4, 4000, 64, 64], [1, 8, 8, 2000, 128, 112], [1, 4, 4, 1000, 256, 256]]
        }
    };
    let device = &without_checks(device).unwrap();
    let room = version.info().dims[4].max;
    for shape in shapes.into_iter().filter(|shape| shape[4] <= room) {
        for &dtype in version.info().dtypes {
            let inputs = version.inputs(&Problem::new(sizes(shape), dtype));
            assert_right(version, device, &inputs, &format!("{shape:?}"));
        }
    }
}

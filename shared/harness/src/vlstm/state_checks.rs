//! What must hold of every version of the forward pass that takes a state, and of those that do not.

use lab_device::{DType, Device};

use super::checks::{assert_rows_under, with_gates};
use crate::qkv::checks::{inputs_of, ones, outputs_of};
use crate::qkv::sizes;
use crate::{Comparison, Options, Problem, Tensor, Tensors, Version, compare, run};

/// Under which the state comes out.
fn with_last_state(version: &dyn Version) -> Options {
    Options::parse(&["last_state=yes"], version.info()).unwrap()
}

/// A state for these inputs: C0 and n0 positive, so that no product with a positive q cancels; m0 in every
/// head.
fn set_state(inputs: &mut Tensors, m0: f64) {
    let (q, dhhv) = (inputs["q"].shape.clone(), inputs["v"].shape[3]);
    let [b, nh, dhqk] = [q[0], q[1], q[3]];
    let mut insert = |name: &str, shape: &[usize], of: &dyn Fn(usize) -> f64| {
        let values: Vec<f64> = (0..shape.iter().product()).map(of).collect();
        inputs.insert(name.to_owned(), Tensor::rounded(DType::F32, shape, &values));
    };
    insert("C0", &[b, nh, dhqk, dhhv], &|at| 3.0 + (at as f64).sin());
    insert("n0", &[b, nh, dhqk], &|at| 2.0 + (at as f64).cos());
    insert("m0", &[b, nh], &|_| m0);
}

/// Positions `from` to `to` of inputs, behind `state` where there is one.
fn part(inputs: &Tensors, from: usize, to: usize, state: Option<&Tensors>) -> Tensors {
    let rows = |tensor: &Tensor| {
        let s = tensor.shape[2];
        let columns = tensor.shape.get(3).copied().unwrap_or(1);
        let of_head = |head: &[f64]| head[from * columns..to * columns].to_vec();
        let values: Vec<f64> = tensor.values().chunks(s * columns).flat_map(of_head).collect();
        let mut shape = tensor.shape.clone();
        shape[2] = to - from;
        Tensor::rounded(tensor.dtype, &shape, &values)
    };
    let own = ["q", "k", "v", "i", "f"].map(|name| (name.to_owned(), rows(&inputs[name])));
    let first = ["C0", "n0", "m0"].into_iter().zip(["CN", "nN", "mN"]);
    let handed = first.filter_map(|(first, last)| {
        let all = state.unwrap_or(inputs);
        let tensor = all.get(if state.is_some() { last } else { first })?;
        Some((first.to_owned(), tensor.clone()))
    });
    own.into_iter().chain(handed).collect()
}

/// A sequence in two and in three parts, each behind the state that the one before it has left, is the
/// whole: h, m, n and the state at its end are within the version's bounds of the whole's reference. It
/// cannot be the same bits: where chunks begin decides what is rounded when. But a state is f32, and what
/// rounding it costs is far below a bound.
pub(super) fn parts_are_the_whole(version: &dyn Version, device: &Device) {
    let (s, options) = (150, with_last_state(version));
    let cuts: [&[usize]; 6] = [&[], &[1], &[64], &[149], &[37, 101], &[128, 129]];
    for (seed, cuts) in cuts.into_iter().enumerate() {
        let dtype = version.info().dtypes[seed % version.info().dtypes.len()];
        let problem =
            Problem { seed: seed as u64, ..Problem::new(sizes([1, 2, s, 32, 48]), dtype) };
        let mut inputs = version.inputs(&problem);
        if seed % 2 == 1 {
            set_state(&mut inputs, 0.3);
        }
        let mut parts: Vec<Tensors> = Vec::new();
        let ends = cuts.iter().copied().chain([s]);
        for (from, to) in [0].into_iter().chain(cuts.iter().copied()).zip(ends) {
            let own = part(&inputs, from, to, parts.last());
            parts.push(run(version, device, &own, &options).unwrap());
        }
        let mut joined = parts.last().cloned().unwrap();
        for name in ["h", "m", "n"] {
            let first = &parts[0][name];
            let columns = first.shape.get(3).copied().unwrap_or(1);
            let of_head = |head: usize| {
                parts.iter().flat_map(move |p| {
                    let rows = p[name].shape[2] * columns;
                    p[name].values()[head * rows..][..rows].to_vec()
                })
            };
            let values: Vec<f64> = (0..2).flat_map(of_head).collect();
            let mut shape = first.shape.clone();
            shape[2] = s;
            joined.insert(name.to_owned(), Tensor::rounded(first.dtype, &shape, &values));
        }
        for c in compare(version, &inputs, &joined, &options, dtype) {
            let Comparison { name, relative_error, bound, .. } = &c;
            assert!(
                c.passed(),
                "cut at {cuts:?}, {dtype}: {name} {relative_error:.2e} {bound:.2e}"
            );
        }
    }
}

/// Zeros with m0 = −∞: the same bits as without a state.
pub(super) fn a_state_of_nothing_is_none(version: &dyn Version, device: &Device) {
    let options = with_last_state(version);
    let mut inputs = inputs_of(version, [1, 2, 70, 16, 32]);
    let none = run(version, device, &inputs, &options).unwrap();
    set_state(&mut inputs, f64::NEG_INFINITY);
    for name in ["C0", "n0"] {
        let zeros = vec![0f32; inputs[name].len()];
        inputs.insert(name.to_owned(), Tensor::new(&inputs[name].shape.clone(), &zeros));
    }
    assert_eq!(run(version, device, &inputs, &options).unwrap(), none);
}

/// States from long ago, states that outweigh all that follows, and none, before gates of ±100: in some
/// rows nothing is left of the state, in others nothing else counts.
pub(super) fn extreme_states_give_numbers(version: &dyn Version, device: &Device) {
    let options = with_last_state(version);
    for m0 in [-100.0, 100.0, f64::NEG_INFINITY] {
        for (i, f) in [(0.0, 3.0), (100.0, 100.0), (-100.0, 0.5), (-100.0, -100.0)] {
            for s in [1, 131] {
                let mut inputs = with_gates(version, s, |t| i + (t as f64).sin(), |_| f);
                set_state(&mut inputs, m0);
                let what = format!("S={s} m0={m0} i={i} f={f}");
                assert_rows_under(version, device, &inputs, &options, 4e-6, &what);
            }
        }
    }
}

/// A NaN in the state of one head: that head's h has it, another's bits are what they were.
pub(super) fn nan_of_a_state_stays_in_its_head(version: &dyn Version, device: &Device) {
    let s = 70;
    let mut clean = inputs_of(version, [1, 2, s, 16, 32]);
    set_state(&mut clean, 0.0);
    let before = outputs_of(version, device, &clean);
    for name in ["C0", "n0", "m0"] {
        let mut inputs = clean.clone();
        let mut values = clean[name].values();
        *values.last_mut().expect("a state") = f64::NAN;
        inputs.insert(name.to_owned(), Tensor::rounded(DType::F32, &clean[name].shape, &values));
        let after = outputs_of(version, device, &inputs);
        for output in ["h", "m", "n"] {
            let (before, after) = (before[output].values(), after[output].values());
            let head = before.len() / 2;
            assert_eq!(after[..head], before[..head], "{name}: {output} of the other head");
        }
        let own = after["h"].values();
        assert!(own[own.len() / 2..].iter().any(|h| h.is_nan()), "{name}: h of its head");
    }
}

/// States of other sizes or types, and parts of one.
pub(super) fn states_that_do_not_fit_are_refused(version: &dyn Version, device: &Device) {
    let mut fitting = inputs_of(version, [1, 2, 9, 32, 16]);
    set_state(&mut fitting, 0.0);
    let halves = Tensor::rounded(DType::F16, &[1, 2], &[0.0; 2]);
    let part = "as 'C0' is there: all of the state or nothing of it";
    let wrong = [
        ("C0", Some(ones(&[1, 2, 16, 32])), "DHQK=32 as 'q', got f32 [1, 2, 16, 32]".into()),
        ("C0", Some(ones(&[1, 2, 32, 32])), "DHHV=16 as 'v', got f32 [1, 2, 32, 32]".into()),
        ("n0", Some(ones(&[1, 1, 32])), "NH=2 as 'q', got f32 [1, 1, 32]".into()),
        ("m0", Some(ones(&[2, 2])), "B=1 as 'q', got f32 [2, 2]".into()),
        ("m0", Some(halves), "f32 in runs of every type, got f16".into()),
        ("n0", None, format!("a tensor [\"B\", \"NH\", \"DHQK\"], {part}, got a file with")),
        ("m0", None, format!("a tensor [\"B\", \"NH\"], {part}, got a file with")),
    ];
    for (name, tensor, said) in wrong {
        let mut inputs = fitting.clone();
        match tensor {
            Some(tensor) => inputs.insert(name.to_owned(), tensor),
            None => inputs.remove(name),
        };
        let error = run(version, device, &inputs, &Options::default()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("tensor '{name}': expected {said}")), "{error}");
    }
}

/// Of a version that takes no state: without it, h would be that of another problem.
pub(super) fn a_state_is_refused_by_name(version: &dyn Version, device: &Device) {
    let mut inputs = inputs_of(version, [1, 2, 9, 32, 16]);
    set_state(&mut inputs, 0.0);
    let error = run(version, device, &inputs, &Options::default()).unwrap_err().to_string();
    let said =
        format!("tensor 'C0': expected none, for {} takes no state", version.info().full_name());
    assert!(error.starts_with(&said), "{error}");
}

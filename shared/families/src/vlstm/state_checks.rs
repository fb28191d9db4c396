//! What must hold of every version of the forward pass that takes a state, and of those that do not.

use lab_device::{DType, Device};

use super::asserts::{assert_rows_under, with_gates};
use crate::checking::{assert_refused_with, part, with_last_state};
use crate::qkv::checks::{inputs_of, ones, outputs_of};
use crate::qkv::sizes;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, compare, run};

/// A state for these inputs: C0 and n0 positive, so that no product with a positive q cancels; m0 in every
/// head.
pub fn set_state(inputs: &mut Tensors, m0: f64) {
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

/// A gradient for the state behind these inputs.
pub fn set_last_gradient(inputs: &mut Tensors) {
    let (q, dhhv) = (inputs["q"].shape.clone(), inputs["v"].shape[3]);
    let [b, nh, dhqk] = [q[0], q[1], q[3]];
    let mut insert = |name: &str, shape: &[usize], of: &dyn Fn(usize) -> f64| {
        let values: Vec<f64> = (0..shape.iter().product()).map(of).collect();
        inputs.insert(name.to_owned(), Tensor::rounded(DType::F32, shape, &values));
    };
    insert("dCN", &[b, nh, dhqk, dhhv], &|at| 0.2 * (1.7 * at as f64).sin());
    insert("dnN", &[b, nh, dhqk], &|at| 0.3 * (1.3 * at as f64).cos());
}

/// Positions `from` to `to` of inputs, behind `state` where there is one.
fn behind(inputs: &Tensors, from: usize, to: usize, state: Option<&Tensors>) -> Tensors {
    let first = ["C0", "n0", "m0"].into_iter().zip(["CN", "nN", "mN"]);
    let handed = first.filter_map(|(first, last)| {
        let all = state.unwrap_or(inputs);
        let tensor = all.get(if state.is_some() { last } else { first })?;
        Some((first.to_owned(), tensor.clone()))
    });
    part(inputs, from, to).into_iter().chain(handed).collect()
}

/// Outputs of the parts of a sequence, with two heads, joined along their positions.
fn joined(parts: &[Tensors], names: &[&str]) -> Tensors {
    let whole = |&name: &&str| {
        let of_parts = || parts.iter().map(move |p| &p[name]);
        let first = &parts[0][name];
        let columns = first.shape.get(3).copied().unwrap_or(1);
        let of_head = |head: usize| {
            of_parts().flat_map(move |t| {
                let rows = t.shape[2] * columns;
                t.values()[head * rows..][..rows].to_vec()
            })
        };
        let values: Vec<f64> = (0..2).flat_map(of_head).collect();
        let mut shape = first.shape.clone();
        shape[2] = of_parts().map(|t| t.shape[2]).sum();
        (name.to_owned(), Tensor::rounded(first.dtype, &shape, &values))
    };
    names.iter().map(whole).collect()
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
        // Columns of a state for several warpgroups, and for several blocks, too.
        let columns = if seed < 4 { 48 } else { 144 };
        let dims = sizes([1, 2, s, 32, columns]);
        let problem = Problem { seed: seed as u64, ..Problem::new(dims, dtype) };
        let mut inputs = version.inputs(&problem);
        if seed % 2 == 1 {
            set_state(&mut inputs, 0.3);
        }
        let mut parts: Vec<Tensors> = Vec::new();
        let ends = cuts.iter().copied().chain([s]);
        for (from, to) in [0].into_iter().chain(cuts.iter().copied()).zip(ends) {
            let own = behind(&inputs, from, to, parts.last());
            parts.push(run(version, device, &own, &options).unwrap());
        }
        let mut all = parts.last().cloned().unwrap();
        all.extend(joined(&parts, &["h", "m", "n"]));
        for c in compare(version, &inputs, &all, &options, dtype) {
            assert!(c.passed(), "cut at {cuts:?}, {dtype}: {}", c.complaint());
        }
    }
}

/// Gradients behind a state, before the gradient of one, and both: within the version's bounds, on either side of the borders
/// of chunks and of what is saved.
pub(super) fn states_have_gradients(version: &dyn Version, device: &Device) {
    let ways = [
        (true, true, "exact"),
        (true, true, "constant"),
        (true, false, "exact"),
        (false, true, "constant"),
    ];
    let shapes = [[2, 3, 5, 16, 16], [1, 1, 64, 32, 48], [2, 1, 70, 64, 32], [1, 1, 270, 48, 80]];
    let types = version.info().dtypes;
    // Each shape in each type, each time in another way.
    for case in 0..shapes.len() * types.len() {
        let (shape, dtype) = (shapes[case / types.len()], types[case % types.len()]);
        let (behind, before, through) = ways[case % ways.len()];
        let problem = Problem { seed: case as u64, ..Problem::new(sizes(shape), dtype) };
        let mut inputs = version.inputs(&problem);
        if behind {
            // Light enough that h is not its own: of a state alone no gradient of its scale is left.
            set_state(&mut inputs, -2.5);
        }
        if before {
            set_last_gradient(&mut inputs);
        }
        let asked = [
            format!("normalizer_grad={through}"),
            format!("state_grad={}", if behind { "yes" } else { "no" }),
            "last_state=yes".to_owned(),
        ];
        let options = Options::parse(&asked, version.info()).unwrap();
        let out = run(version, device, &inputs, &options).unwrap();
        for c in compare(version, &inputs, &out, &options, dtype) {
            let what = format!("{shape:?} {dtype} {asked:?} dCN {before}");
            assert!(c.passed(), "{what}: {}", c.complaint());
        }
    }
}

/// A sequence in two parts, the state handed on, and its gradient handed back: the gradients of the whole.
pub(super) fn gradients_of_parts_are_those_of_the_whole(version: &dyn Version, device: &Device) {
    let s = 150;
    for (seed, cut) in [1, 64, 101].into_iter().enumerate() {
        let dtype = version.info().dtypes[seed % version.info().dtypes.len()];
        let through = ["exact", "constant"][seed % 2];
        let options = |state_grad: &str| {
            let asked = ["last_state=yes".to_owned(), format!("state_grad={state_grad}")];
            let through = [format!("normalizer_grad={through}")];
            Options::parse(&[&asked[..], &through].concat(), version.info()).unwrap()
        };
        let problem =
            Problem { seed: seed as u64, ..Problem::new(sizes([1, 2, s, 32, 48]), dtype) };
        let inputs = version.inputs(&problem);
        let state = run(version, device, &part(&inputs, 0, cut), &options("no")).unwrap();
        let later = behind(&inputs, cut, s, Some(&state));
        let later = run(version, device, &later, &options("yes")).unwrap();
        let mut earlier = part(&inputs, 0, cut);
        for (last, first) in [("dCN", "dC0"), ("dnN", "dn0")] {
            earlier.insert(last.to_owned(), later[first].clone());
        }
        let earlier = run(version, device, &earlier, &options("no")).unwrap();
        let names = ["h", "m", "n", "dq", "dk", "dv", "di", "df"];
        let mut all = joined(&[earlier, later.clone()], &names);
        for name in ["CN", "nN", "mN"] {
            all.insert(name.to_owned(), later[name].clone());
        }
        for c in compare(version, &inputs, &all, &options("no"), dtype) {
            let what = format!("cut at {cut}, {dtype} {through}");
            assert!(c.passed(), "{what}: {}", c.complaint());
        }
    }
}

/// The gradient of a state that is not there, and half of one.
pub(super) fn gradients_of_no_state_are_refused(version: &dyn Version, device: &Device) {
    let mut inputs = inputs_of(version, [1, 2, 9, 32, 16]);
    let wants = Options::parse(&["state_grad=yes"], version.info()).unwrap();
    let error = run(version, device, &inputs, &wants).unwrap_err().to_string();
    assert_eq!(error, "--set state_grad: expected no, where no state C0, n0, m0 goes in, got yes");
    set_last_gradient(&mut inputs);
    inputs.remove("dnN");
    let error = run(version, device, &inputs, &Options::default()).unwrap_err().to_string();
    let said = "as 'dCN' is there: all of the last state's gradient or nothing of it";
    assert!(
        error.starts_with("tensor 'dnN': expected a tensor") && error.contains(said),
        "{error}"
    );
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

/// States from long ago, states that outweigh all that follows, and none, before gates of ±100 and gates that are shut: in some
/// rows nothing is left of the state, in others nothing else counts.
pub(super) fn extreme_states_give_numbers(version: &dyn Version, device: &Device) {
    let options = with_last_state(version);
    for m0 in [-100.0, 100.0, f64::NEG_INFINITY] {
        let shut = (0.0, f64::NEG_INFINITY);
        for (i, f) in [(0.0, 3.0), (100.0, 100.0), (-100.0, 0.5), (-100.0, -100.0), shut] {
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
        assert_refused_with(version, device, &fitting, (name, tensor, &said));
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

//! What must hold of every version of both passes.

use lab_device::Device;

use super::checks::{correlate_keys, set_kept, set_state, set_weights, takes_weights};
use super::sizes;
use crate::checking::{assert_inputs_right, assert_same_in_any_order, options, part, set};
use crate::qkv::checks::dtype_of;
use lab_harness::suite::VersionCheck;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, compare, run, version_checks};

pub(super) static CHECKS: &[VersionCheck] = version_checks![
    states_have_gradients,
    gradients_of_parts_are_those_of_the_whole,
    correlated_keys_have_gradients,
    extreme_gates_have_gradients,
    the_first_gate_keeps_nothing,
    what_does_not_fit_is_refused,
    any_schedule_gives_the_same in Ends,
];

/// Of linear attention: the same but for what a key erases.
pub(super) static LINEAR_CHECKS: &[VersionCheck] = version_checks![
    weights_have_gradients if takes_weights,
    states_have_gradients,
    gradients_of_parts_are_those_of_the_whole,
    extreme_gates_have_gradients,
    the_first_gate_keeps_nothing,
    what_does_not_fit_is_refused,
    any_schedule_gives_the_same in Ends,
];

#[track_caller]
fn assert_right(
    version: &dyn Version,
    device: &Device,
    inputs: &Tensors,
    asked: &[&str],
    what: &str,
) {
    assert_inputs_right(version, device, inputs, &options(version, asked), what);
}

/// Behind a state, before the gradient of one, and both; each in another type.
fn states_have_gradients(version: &dyn Version, device: &Device) {
    let ways: [(bool, bool, &[&str]); 3] = [
        (true, true, &["last_state=yes", "state_grad=yes"]),
        (true, false, &["state_grad=yes"]),
        (false, true, &["last_state=yes"]),
    ];
    let types = version.info().dtypes;
    for (n, (behind, before, asked)) in ways.into_iter().enumerate() {
        let shape = [[1, 2, 1, 70, 32, 48], [1, 1, 1, 64, 16, 16], [2, 1, 1, 5, 48, 32]][n];
        let mut inputs = version.inputs(&Problem::new(sizes(shape), types[n % types.len()]));
        if behind {
            set_state(&mut inputs, "C0", 1.7);
        }
        if before {
            set_state(&mut inputs, "dCN", 1.3);
        }
        assert_right(version, device, &inputs, asked, &format!("{shape:?} {asked:?}"));
    }
}

/// That of a weight of 0 is not known, and comes out as 0: none here is.
fn weights_have_gradients(version: &dyn Version, device: &Device) {
    let asked = ["weight_grad=yes", "last_state=yes"];
    for (&dtype, shape) in
        version.info().dtypes.iter().zip([[1, 2, 1, 70, 32, 48], [1, 1, 1, 130, 16, 80]])
    {
        let mut inputs = version.inputs(&Problem::new(sizes(shape), dtype));
        let error =
            run(version, device, &inputs, &options(version, &asked)).unwrap_err().to_string();
        assert_eq!(error, "--set weight_grad: expected no, where no weights w go in, got yes");
        set_weights(&mut inputs);
        let w = inputs["w"].values();
        set(&mut inputs, "w", |at| if w[at] == 0.0 { 0.5 } else { w[at] });
        set_state(&mut inputs, "C0", 1.7);
        assert_right(version, device, &inputs, &asked, "weights");
    }
}

/// The state handed on, and its gradient handed back: within the bounds of the whole's reference.
fn gradients_of_parts_are_those_of_the_whole(version: &dyn Version, device: &Device) {
    let (s, cut, dtype) = (90, 37, dtype_of(version));
    let inputs = version.inputs(&Problem::new(sizes([1, 1, 1, s, 16, 32]), dtype));
    let whole = options(version, &["last_state=yes"]);
    let state = run(version, device, &part(&inputs, 0, cut), &whole).unwrap();
    let mut later = part(&inputs, cut, s);
    later.insert("C0".to_owned(), state["CN"].clone());
    let both = options(version, &["last_state=yes", "state_grad=yes"]);
    let later = run(version, device, &later, &both).unwrap();
    let mut earlier = part(&inputs, 0, cut);
    earlier.insert("dCN".to_owned(), later["dC0"].clone());
    let earlier = run(version, device, &earlier, &whole).unwrap();
    let mut all = Tensors::new();
    for name in ["h", "dq", "dk", "dv", "dg", "dbeta", "df", "di"] {
        if !earlier.contains_key(name) {
            continue;
        }
        let mut shape = earlier[name].shape.clone();
        shape[2] = s;
        let values = [earlier[name].values(), later[name].values()].concat();
        all.insert(name.to_owned(), Tensor::rounded(earlier[name].dtype, &shape, &values));
    }
    all.insert("CN".to_owned(), later["CN"].clone());
    for c in compare(version, &inputs, &all, &whole, dtype) {
        assert!(c.passed(), "{dtype}: {}", c.complaint());
    }
}

/// Keys that are alike, 0.9 of each one direction, and beta 0.95.
fn correlated_keys_have_gradients(version: &dyn Version, device: &Device) {
    for (&dtype, seed) in version.info().dtypes.iter().zip(0..) {
        let problem = Problem { seed, ..Problem::new(sizes([1, 1, 1, 70, 16, 16]), dtype) };
        let mut inputs = version.inputs(&problem);
        correlate_keys(&mut inputs);
        set(&mut inputs, "g", |_| -1e-3);
        assert_right(version, device, &inputs, &[], "correlated keys");
    }
}

/// Gates that keep all, next to nothing, or one after the other; beta at its ends.
fn extreme_gates_have_gradients(version: &dyn Version, device: &Device) {
    let gates: [(&str, &dyn Fn(usize) -> f64); 4] = [
        ("all is kept", &|_| 0.0),
        ("a gate is shut", &|t| if t == 40 { f64::NEG_INFINITY } else { -0.01 }),
        ("one in two", &|t| if t % 2 == 0 { -100.0 } else { -1e-3 }),
        ("shut for long, then open", &|t| if t < 60 { -100.0 } else { -0.01 }),
    ];
    let types = version.info().dtypes;
    for (n, (what, of)) in gates.into_iter().enumerate() {
        let s = 70;
        let problem = Problem::new(sizes([1, 1, 1, s, 16, 16]), types[n % types.len()]);
        let mut inputs = version.inputs(&problem);
        set_kept(&mut inputs, |at| of(at % s));
        assert_right(version, device, &inputs, &[], what);
        if !inputs.contains_key("beta") {
            continue;
        }
        set(&mut inputs, "beta", |at| (at % 2) as f64);
        assert_right(version, device, &inputs, &[], &format!("{what}, beta 0 and 1"));
    }
}

/// Where no state goes in, the first gate has none to keep: its gradient is 0, and not what roundings leave.
fn the_first_gate_keeps_nothing(version: &dyn Version, device: &Device) {
    let (s, nh) = (70, 2);
    let inputs = version.inputs(&Problem::new(sizes([1, nh, 1, s, 16, 32]), dtype_of(version)));
    let out = run(version, device, &inputs, &Options::default()).unwrap();
    let dg = out.get("dg").unwrap_or_else(|| &out["df"]).values();
    for head in 0..nh {
        assert_eq!(dg[head * s], 0.0, "head {head}");
        assert_ne!(dg[head * s + 1], 0.0, "head {head}");
    }
}

fn what_does_not_fit_is_refused(version: &dyn Version, device: &Device) {
    let dtype = dtype_of(version);
    let inputs = version.inputs(&Problem::new(sizes([1, 4, 2, 9, 32, 16]), dtype));
    let refused = |inputs: &Tensors, options: &Options| {
        run(version, device, inputs, options).unwrap_err().to_string()
    };
    let error = refused(&inputs, &options(version, &["state_grad=yes"]));
    assert_eq!(error, "--set state_grad: expected no, where no state C0 goes in, got yes");
    let ones = |shape: &[usize]| Tensor::rounded(dtype, shape, &vec![0.5; shape.iter().product()]);
    let mut thirds = inputs.clone();
    thirds.extend(["q", "k"].map(|name| (name.to_owned(), ones(&[1, 3, 9, 32]))));
    let error = refused(&thirds, &Options::default());
    assert_eq!(error, "NKV: expected a divisor of NH, 4, got 3");
    let mut short = inputs.clone();
    short.insert("dh".to_owned(), ones(&[1, 4, 8, 16]));
    let error = refused(&short, &Options::default());
    assert!(error.starts_with("tensor 'dh': expected S=9 as 'q'"), "{error}");
}

/// Bit for bit, in whatever order blocks and threads run.
fn any_schedule_gives_the_same(version: &dyn Version, device: &Device) {
    let mut inputs = version.inputs(&Problem::new(sizes([1, 2, 1, 70, 32, 48]), dtype_of(version)));
    set_state(&mut inputs, "C0", 1.7);
    let asked = options(version, &["last_state=yes", "state_grad=yes"]);
    assert_same_in_any_order(version, device, &inputs, &asked);
}

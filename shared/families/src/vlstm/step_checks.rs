//! What must hold of every version of the recurrent step.

use lab_device::{DType, Device};
use lab_reference::vlstm::{Inputs, Sizes, forward};

use super::step_problem::{no_state, sizes};
use crate::checking::{assert_refused_with, assert_same_in_any_order, set};
use crate::qkv::checks::{dtype_of, ones, outputs_of};
use crate::step_checks::{assert_epsilon_is_added, assert_launches_go_on, hand_on};
use crate::step_state::state_dtype;
use lab_harness::suite::{VersionCheck, check, without_checks};
use lab_harness::tensor::tensors;
use lab_harness::{
    Options, Problem, Tensor, Tensors, Version, compare, distance, run, version_checks,
};

/// See the module.
pub(super) static CHECKS: &[VersionCheck] = version_checks![
    large_problems in Large,
    either_type_of_state_is_right,
    steps_are_the_sequence,
    launches_go_on_with_the_state,
    long_after_the_first_launch_it_stays_bounded in Ends,
    no_memory_is_what_the_first_position_wants,
    extreme_gates_give_numbers in Ends,
    a_closed_gate_reads_nothing,
    epsilon_is_added_to_the_normaliser,
    nan_stays_nan_and_in_its_head,
    heads_do_not_meet,
    any_schedule_gives_the_same_step in Ends,
    shapes_that_do_not_fit_are_refused,
];

type Shape = [usize; 4];

fn inputs_of(version: &dyn Version, shape: Shape) -> Tensors {
    version.inputs(&Problem::new(sizes(shape), dtype_of(version)))
}

#[track_caller]
fn assert_right(
    version: &dyn Version,
    inputs: &Tensors,
    outputs: &Tensors,
    dtype: DType,
    what: &str,
) {
    for c in compare(version, inputs, outputs, &Options::default(), dtype) {
        assert!(c.passed(), "{what}: {}", c.complaint());
    }
}

/// The widest heads, and many, in every type.
fn large_problems(version: &dyn Version, device: &Device) {
    let device = &without_checks(device).unwrap();
    for shape in [[1, 1, 512, 512], [1, 5, 512, 16], [2, 70, 48, 144]] {
        for &dtype in version.info().dtypes {
            let case = check(version, device, &Problem::new(sizes(shape), dtype));
            assert!(case.passed(), "{}", case.describe());
        }
    }
}

/// In runs of bf16 C may be of f32, too, and is then as exact as in f32.
fn either_type_of_state_is_right(version: &dyn Version, device: &Device) {
    for shape in [[1, 3, 48, 80], [1, 1, 256, 272]] {
        for (dtype, state) in [(DType::BF16, "f32"), (DType::BF16, "bf16"), (DType::F16, "f32")] {
            let options = Options::parse(&[format!("state={state}")], version.info()).unwrap();
            let problem = Problem { options, ..Problem::new(sizes(shape), dtype) };
            let inputs = version.inputs(&problem);
            let out = run(version, device, &inputs, &problem.options).unwrap();
            assert_eq!((out["CN"].dtype.name(), out["h"].dtype), (state, dtype));
            assert_right(version, &inputs, &out, dtype, state);
            let exact = compare(version, &inputs, &out, &problem.options, DType::F32);
            let of_state =
                exact.iter().filter(|c| c.name != "h" && (state == "f32" || c.name != "CN"));
            for c in of_state {
                assert!(c.passed(), "{dtype} {state}: {}", c.complaint());
            }
        }
    }
}

/// One position after the other from no memory gives what the parallel form gives for the sequence, in every type:
/// each step adds its rounding of C, of which the gates forget what is old.
fn steps_are_the_sequence(version: &dyn Version, device: &Device) {
    let (heads, positions, qk, hv) = (3, 30, 32, 48);
    for &dtype in version.info().dtypes {
        let problem = |seed| Problem { seed, ..Problem::new(sizes([1, heads, qk, hv]), dtype) };
        let all: Vec<Tensors> =
            (0..positions).map(|t| version.inputs(&problem(t as u64))).collect();
        let mut state = no_state([1, heads, qk, hv], state_dtype(dtype));
        let mut h: Vec<Vec<f64>> = Vec::new();
        for own in &all {
            let mut inputs = own.clone();
            inputs.extend(state.clone());
            let out = run(version, device, &inputs, &Options::default()).unwrap();
            h.push(out["h"].values());
            hand_on(version, &mut state, &out);
        }
        for head in 0..heads {
            let of = |name: &str, columns: usize| -> Vec<f64> {
                let row = |own: &Tensors| own[name].values()[head * columns..][..columns].to_vec();
                all.iter().flat_map(row).collect()
            };
            let (q, k, v) = (of("q", qk), of("k", qk), of("v", hv));
            let (i, f) = (of("i", 1), of("f", 1));
            let x = Inputs { q: &q, k: &k, v: &v, i: &i, f: &f };
            let expected = forward(x, Sizes { positions, qk, hv }, 1e-6).h;
            let got: Vec<f64> = h.iter().flat_map(|h| h[head * hv..][..hv].to_vec()).collect();
            let error = distance(&got, &expected);
            let bound = match dtype {
                DType::F32 => 8e-7,
                DType::F16 => 4e-4,
                _ => 1.1e-2,
            };
            assert!(error <= bound, "{dtype}, head {head}: {error:.2e}");
        }
    }
}

fn launches_go_on_with_the_state(version: &dyn Version, device: &Device) {
    for &dtype in version.info().dtypes {
        let inputs = version.inputs(&Problem::new(sizes([2, 3, 48, 144]), dtype));
        assert_launches_go_on(version, device, inputs);
    }
}

/// What a timing does: the same position again and again. The gates are below 1, so that the state goes to a multiple of
/// k vᵀ, and neither overflows nor dies out.
fn long_after_the_first_launch_it_stays_bounded(version: &dyn Version, device: &Device) {
    let device = &without_checks(device).unwrap();
    for &dtype in version.info().dtypes {
        let inputs = version.inputs(&Problem::new(sizes([1, 4, 32, 32]), dtype));
        let mut prepared = version.prepare(device, &inputs, &Options::default()).unwrap();
        for _ in 0..2000 {
            prepared.launch().unwrap();
        }
        let out = prepared.outputs().unwrap();
        let largest = |name: &str| out[name].values().iter().fold(0f64, |a, v| a.max(v.abs()));
        for name in ["h", "CN", "nN", "mN"] {
            assert!(largest(name) <= 1e4, "{dtype}: {name} {}", largest(name));
        }
        assert!(largest("CN") > 1e-2, "{dtype}");
    }
}

/// m0 = −∞: m = i, C = k vᵀ, n = k; also where C0 and n0 are no numbers, for nothing is left of them.
fn no_memory_is_what_the_first_position_wants(version: &dyn Version, device: &Device) {
    for nothing in [0.0, f64::NAN, f64::INFINITY] {
        let mut inputs = inputs_of(version, [1, 2, 32, 48]);
        set(&mut inputs, "m0", |_| f64::NEG_INFINITY);
        set(&mut inputs, "C0", |_| nothing);
        set(&mut inputs, "n0", |_| nothing);
        let out = outputs_of(version, device, &inputs);
        assert_eq!(out["mN"].values(), inputs["i"].values());
        assert_eq!(out["nN"].values(), inputs["k"].values());
        assert_right(version, &inputs, &out, dtype_of(version), "no memory");
        // And where nothing is written either, there is still none.
        set(&mut inputs, "i", |_| f64::NEG_INFINITY);
        let out = outputs_of(version, device, &inputs);
        assert!(out["mN"].values().iter().all(|&m| m == f64::NEG_INFINITY));
        for name in ["h", "CN", "nN"] {
            assert!(out[name].values().iter().all(|&x| x == 0.0), "{name}");
        }
    }
}

/// Gates and exponents of the state far from 0, in all ways that they meet. q, k and n0 are positive, so that l does not
/// cancel. h is infinitesimal where exp(−m) is more than f32 holds, and 0 then.
fn extreme_gates_give_numbers(version: &dyn Version, device: &Device) {
    for m0 in [-100.0, 0.0, 100.0, f64::NEG_INFINITY] {
        let shut = [(0.0, f64::NEG_INFINITY), (10.0, f64::from(f32::MIN)), (0.0, -1e6)];
        for (i, f) in
            [(50.0, -100.0), (50.0, 100.0), (-100.0, -100.0), (-100.0, 100.0), (0.0, -100.0)]
                .into_iter()
                .chain(shut)
        {
            let mut inputs = inputs_of(version, [1, 2, 32, 48]);
            for name in ["q", "k", "n0"] {
                let values = inputs[name].values();
                set(&mut inputs, name, |at| values[at].abs());
            }
            for (name, value) in [("i", i), ("f", f), ("m0", m0)] {
                set(&mut inputs, name, |at| value + 0.25 * at as f64);
            }
            let out = outputs_of(version, device, &inputs);
            for (name, expected) in version.reference(&inputs, &Options::default()) {
                let got = out[name].values();
                let largest = expected.iter().fold(0f64, |a, e| a.max(e.abs()));
                for (got, expected) in got.iter().zip(&expected) {
                    let bound = 1e-6 * largest + f64::from(f32::MIN_POSITIVE);
                    let right = got == expected || (got - expected).abs() <= bound;
                    assert!(right, "m0={m0} i={i} f={f}: {name} {got:e}, expected {expected:e}");
                }
            }
        }
    }
}

/// exp(−100 − 80) is 0 in f32: what is forgotten as a whole is not read, be it infinite.
fn a_closed_gate_reads_nothing(version: &dyn Version, device: &Device) {
    let mut inputs = inputs_of(version, [1, 1, 32, 32]);
    set(&mut inputs, "f", |_| -100.0);
    set(&mut inputs, "i", |_| 80.0);
    let before = outputs_of(version, device, &inputs);
    set(&mut inputs, "C0", |_| f64::INFINITY);
    set(&mut inputs, "n0", |_| f64::INFINITY);
    assert_eq!(outputs_of(version, device, &inputs), before);
}

fn epsilon_is_added_to_the_normaliser(version: &dyn Version, device: &Device) {
    assert_epsilon_is_added(version, device, &inputs_of(version, [1, 3, 32, 32]));
}

/// A NaN in any input of one head: in all of that head's h, but for one in v or C0, whose column it stays in.
/// The other head's bits are what they were.
fn nan_stays_nan_and_in_its_head(version: &dyn Version, device: &Device) {
    let clean = inputs_of(version, [1, 2, 32, 48]);
    let before = outputs_of(version, device, &clean);
    for name in clean.keys() {
        let mut inputs = clean.clone();
        let mut values = clean[name].values();
        *values.last_mut().expect("an element") = f64::NAN;
        set(&mut inputs, name, |at| values[at]);
        let after = outputs_of(version, device, &inputs);
        for output in before.keys() {
            let (before, after) = (before[output].values(), after[output].values());
            let half = before.len() / 2;
            assert_eq!(after[..half], before[..half], "{name}: {output} of the other head");
        }
        let h = &after["h"].values()[48..];
        let one_column = matches!(name.as_str(), "v" | "C0");
        for (c, h) in h.iter().enumerate() {
            assert_eq!(h.is_nan(), !one_column || c == 47, "{name}: column {c}");
        }
        for (gate, expected) in [("i", true), ("f", true), ("m0", true), ("n0", false)] {
            if name == gate {
                assert_eq!(after["mN"].values()[1].is_nan(), expected, "{name}: mN");
            }
        }
    }
}

/// Each head, and each row of the batch, alone gives the same as among others, bit for bit.
fn heads_do_not_meet(version: &dyn Version, device: &Device) {
    let (b, nh) = (2, 3);
    let inputs = inputs_of(version, [b, nh, 48, 80]);
    let all = outputs_of(version, device, &inputs);
    let of_head = |t: &Tensor, head: usize| {
        let mut shape = t.shape.clone();
        (shape[0], shape[1]) = (1, 1);
        let len: usize = shape.iter().product();
        Tensor::rounded(t.dtype, &shape, &t.values()[head * len..][..len])
    };
    for head in 0..b * nh {
        let own: Tensors = inputs.iter().map(|(n, t)| (n.clone(), of_head(t, head))).collect();
        for (name, alone) in outputs_of(version, device, &own) {
            assert_eq!(alone, of_head(&all[&name], head), "{name} of head {head}");
        }
    }
}

/// Bit for bit, in whatever order blocks and threads run.
fn any_schedule_gives_the_same_step(version: &dyn Version, device: &Device) {
    let inputs = inputs_of(version, [1, 3, 80, 144]);
    assert_same_in_any_order(version, device, &inputs, &Options::default());
}

/// Tensors that do not fit together are named, with what was expected.
fn shapes_that_do_not_fit_are_refused(version: &dyn Version, device: &Device) {
    let fitting = inputs_of(version, [1, 2, 32, 16]);
    let most = version.info().dims[3].max;
    let steps =
        |size| format!("dimension DHHV: expected a multiple of 16 from 16 to {most}, got {size}");
    let bf16 = Tensor::rounded(DType::BF16, &[1, 2, 32, 16], &[0.0; 1024]);
    let f16 =
        |shape: &[usize]| Tensor::rounded(DType::F16, shape, &vec![0.0; shape.iter().product()]);
    let wrong = tensors([("C0", bf16)]);
    let wrong = [
        ("k", ones(&[1, 2, 16]), "DHQK=32 as 'q', got f32 [1, 2, 16]".to_owned()),
        ("v", ones(&[1, 3, 16]), "NH=2 as 'q', got f32 [1, 3, 16]".into()),
        ("v", ones(&[1, 2, 24]), steps(24)),
        ("v", ones(&[1, 2, most + 16]), steps(most + 16)),
        ("q", ones(&[2, 32]), "shape [\"B\", \"NH\", \"DHQK\"], got f32 [2, 32]".into()),
        ("i", ones(&[1, 3]), "NH=2 as 'q', got f32 [1, 3]".into()),
        ("f", f16(&[1, 2]), "f32 in runs of every type, got f16".into()),
        ("C0", ones(&[1, 2, 16, 32]), "DHQK=32 as 'q', got f32 [1, 2, 16, 32]".into()),
        ("C0", f16(&[1, 2, 32, 16]), "f32 or bf16 in runs of every type, got f16".into()),
        ("C0", wrong["C0"].clone(), "f32 in a run of f32, got bf16".into()),
        ("n0", ones(&[2, 2, 32]), "B=1 as 'q', got f32 [2, 2, 32]".into()),
        ("m0", f16(&[1, 2]), "f32 in runs of every type, got f16".into()),
    ];
    for (name, tensor, said) in wrong {
        assert_refused_with(version, device, &fitting, (name, Some(tensor), &said));
    }
    for name in fitting.keys() {
        assert_refused_with(version, device, &fitting, (name, None, "a tensor"));
    }
    let options = Options::parse(&["state=bf16"], version.info()).unwrap();
    let error = run(version, device, &fitting, &options).unwrap_err().to_string();
    assert_eq!(error, "tensor 'C0': expected bf16, as --set state says, got f32");
}

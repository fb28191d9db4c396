//! What must hold of every version of a step.

use lab_device::{DType, Device};

use super::Cell;
use super::step_problem::sizes;
use crate::checking::{assert_inputs_right, assert_refused_with, assert_same_in_any_order, set};
use crate::qkv::checks::{dtype_of, outputs_of};
use crate::step_checks::{assert_epsilon_is_added, assert_launches_go_on};
use crate::step_state::state_dtype;
use lab_harness::suite::VersionCheck;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, compare, run, version_checks};

pub(super) static CHECKS: &[VersionCheck] = version_checks![
    either_type_of_state_is_right,
    extreme_gates_are_right,
    launches_go_on_with_the_state,
    heads_of_a_group_share_queries_and_keys,
    nan_stays_in_its_head,
    what_does_not_fit_is_refused,
    any_schedule_gives_the_same in Ends,
    without_weights_they_are_ones if takes_weights,
    epsilon_is_added_to_the_normaliser if divides,
];

fn takes_weights(version: &dyn Version) -> bool {
    version.info().takes("w")
}

fn divides(version: &dyn Version) -> bool {
    version.info().takes("n0")
}

/// The names of what says how much is kept, and how much is written.
fn gates_of(version: &dyn Version) -> [&'static str; 2] {
    Cell::of(version.info()).gates()
}

fn inputs_of(version: &dyn Version, shape: [usize; 5]) -> Tensors {
    version.inputs(&Problem::new(sizes(shape), dtype_of(version)))
}

#[track_caller]
fn assert_right(version: &dyn Version, device: &Device, inputs: &Tensors, what: &str) {
    assert_inputs_right(version, device, inputs, &Options::default(), what);
}

/// In runs of bf16 C may be of f32, too.
fn either_type_of_state_is_right(version: &dyn Version, device: &Device) {
    for state in ["f32", "bf16"] {
        let options = Options::parse(&[format!("state={state}")], version.info()).unwrap();
        let problem = Problem { options, ..Problem::new(sizes([1, 2, 1, 48, 80]), DType::BF16) };
        let inputs = version.inputs(&problem);
        let out = run(version, device, &inputs, &problem.options).unwrap();
        assert_eq!((out["CN"].dtype.name(), out["h"].dtype), (state, DType::BF16));
        for c in compare(version, &inputs, &out, &problem.options, DType::BF16) {
            assert!(c.passed(), "{state}: {}", c.complaint());
        }
    }
}

/// Gates that keep all or nothing, of an infinite state too; what is written at its ends.
fn extreme_gates_are_right(version: &dyn Version, device: &Device) {
    let [kept, written] = gates_of(version);
    // Where nothing is kept and nothing written, h is too small for halves.
    let (open, of_open, of_shut) = match Cell::of(version.info()) {
        Cell::Sigmoid => (1e4, [f64::NEG_INFINITY, 0.0, 1e4], [-1.0, 0.0, 1e4]),
        _ => (0.0, [0.0, 0.5, 1.0], [0.25, 0.5, 1.0]),
    };
    for (n, g) in [open, -100.0, -1e4, f64::NEG_INFINITY].into_iter().enumerate() {
        for beta in if g == open { of_open } else { of_shut } {
            let dtype = version.info().dtypes[n % version.info().dtypes.len()];
            let mut inputs = version.inputs(&Problem::new(sizes([1, 2, 2, 32, 48]), dtype));
            set(&mut inputs, kept, |_| g);
            set(&mut inputs, written, |_| beta);
            assert_right(version, device, &inputs, &format!("{kept}={g} {written}={beta}"));
            if g < -1e3 {
                for state in version.info().inputs.iter().filter(|i| ["C0", "n0"].contains(&i.name))
                {
                    set(&mut inputs, state.name, |_| f64::INFINITY);
                }
                assert_right(version, device, &inputs, &format!("{kept}={g} behind infinity"));
            }
        }
    }
}

/// The same bits as with weights of 1.
fn without_weights_they_are_ones(version: &dyn Version, device: &Device) {
    let mut inputs = inputs_of(version, [2, 4, 2, 32, 48]);
    set(&mut inputs, "w", |_| 1.0);
    let ones = outputs_of(version, device, &inputs);
    inputs.remove("w");
    assert_eq!(outputs_of(version, device, &inputs), ones);
    assert_right(version, device, &inputs, "without weights");
}

fn epsilon_is_added_to_the_normaliser(version: &dyn Version, device: &Device) {
    assert_epsilon_is_added(version, device, &inputs_of(version, [1, 3, 3, 32, 32]));
}

fn launches_go_on_with_the_state(version: &dyn Version, device: &Device) {
    assert_launches_go_on(version, device, inputs_of(version, [1, 2, 1, 32, 48]));
}

/// The same bits as with a copy of its query and key for each head.
fn heads_of_a_group_share_queries_and_keys(version: &dyn Version, device: &Device) {
    let [b, nh, nkv, dhqk, dhhv] = [2, 4, 2, 32, 48];
    let inputs = inputs_of(version, [b, nh, nkv, dhqk, dhhv]);
    let mut all = inputs.clone();
    for name in ["q", "k"] {
        let values = inputs[name].values();
        let heads = values.chunks(dhqk).flat_map(|head| std::iter::repeat_n(head, nh / nkv));
        let values: Vec<f64> = heads.flatten().copied().collect();
        let copied = Tensor::rounded(inputs[name].dtype, &[b, nh, dhqk], &values);
        all.insert(name.to_owned(), copied);
    }
    let [shared, apart] = [&inputs, &all].map(|inputs| outputs_of(version, device, inputs));
    assert_eq!(shared, apart);
}

fn nan_stays_in_its_head(version: &dyn Version, device: &Device) {
    let nh = 2;
    let clean = inputs_of(version, [1, nh, nh, 32, 48]);
    let before = outputs_of(version, device, &clean);
    let [kept, written] = gates_of(version);
    for name in ["q", "k", "v", kept, written, "C0"] {
        let mut inputs = clean.clone();
        let values = clean[name].values();
        let last = values.len() - 1; // of the second head
        set(&mut inputs, name, |at| if at == last { f64::NAN } else { values[at] });
        let after = outputs_of(version, device, &inputs);
        for output in ["h", "CN"] {
            let (before, after) = (before[output].values(), after[output].values());
            let head = before.len() / nh;
            assert_eq!(after[..head], before[..head], "{name}: {output} of the other head");
            let reached = after[head..].iter().any(|x| x.is_nan());
            assert!(reached || (name, output) == ("q", "CN"), "{name}: {output} of its head");
        }
    }
}

fn what_does_not_fit_is_refused(version: &dyn Version, device: &Device) {
    let dtype = dtype_of(version);
    let ones =
        |dtype, shape: &[usize]| Tensor::rounded(dtype, shape, &vec![0.5; shape.iter().product()]);
    let fitting = inputs_of(version, [1, 4, 2, 32, 16]);
    let mut thirds = fitting.clone();
    thirds.extend(["q", "k"].map(|name| (name.to_owned(), ones(dtype, &[1, 3, 32]))));
    let error = run(version, device, &thirds, &Options::default()).unwrap_err().to_string();
    assert_eq!(error, "NKV: expected a divisor of NH, 4, got 3");
    let [kept, _] = gates_of(version);
    let narrow = ("C0", ones(DType::BF16, &[1, 4, 32, 16]), "f32 in a run of");
    let narrow = Some(narrow).filter(|_| state_dtype(dtype) != DType::BF16);
    let wrong = [
        ("k", ones(dtype, &[1, 2, 16]), "DHQK=32 as 'q'"),
        (kept, ones(DType::F32, &[1, 2]), "NH=4 as 'v'"),
        ("C0", ones(DType::F32, &[1, 4, 16, 16]), "DHQK=32 as 'q'"),
        ("C0", ones(DType::F16, &[1, 4, 32, 16]), "f32 or bf16 in runs of every type"),
    ];
    for (name, tensor, said) in wrong.into_iter().chain(narrow) {
        assert_refused_with(version, device, &fitting, (name, Some(tensor), said));
    }
}

/// Bit for bit, in whatever order blocks and threads run.
fn any_schedule_gives_the_same(version: &dyn Version, device: &Device) {
    let inputs = inputs_of(version, [1, 4, 2, 80, 144]);
    assert_same_in_any_order(version, device, &inputs, &Options::default());
}

//! What must hold of every step, whatever its cell.

use lab_device::{DType, Device};
use lab_harness::{Dims, Options, Problem, Tensor, Tensors, Version, distance, run};

use crate::checking::{assert_inputs_right, options, with_last_state};

/// The names of a state that comes out, and of the one that goes in, as far as a step has one.
pub(crate) fn states(step: &dyn Version) -> impl Iterator<Item = [&'static str; 2]> {
    let all = [["CN", "C0"], ["nN", "n0"], ["mN", "m0"]].into_iter();
    all.filter(|[_, before]| step.info().takes(before))
}

/// The state that a step has left becomes that of the next.
pub(crate) fn hand_on(step: &dyn Version, inputs: &mut Tensors, outputs: &Tensors) {
    inputs.extend(states(step).map(|[after, before]| (before.to_owned(), outputs[after].clone())));
}

/// Three launches are three steps, the bits those of three runs that are each given what the one before has left;
/// nothing but the state goes from one to the next.
pub(crate) fn assert_launches_go_on(step: &dyn Version, device: &Device, mut inputs: Tensors) {
    let run = |inputs: &Tensors| run(step, device, inputs, &Options::default()).unwrap();
    let mut prepared = step.prepare(device, &inputs, &Options::default()).unwrap();
    for launch in 0..3 {
        let alone = run(&inputs);
        assert!(run(&inputs) == alone, "another run");
        prepared.launch().unwrap();
        let dtype = inputs["q"].dtype;
        assert!(prepared.outputs().unwrap() == alone, "launch {launch} in {dtype}");
        prepared.poison_outputs().unwrap();
        hand_on(step, &mut inputs, &alone);
    }
}

/// h (n + ε) is the same for every ε, and the state knows nothing of it.
pub(crate) fn assert_epsilon_is_added(step: &dyn Version, device: &Device, inputs: &Tensors) {
    for eps in ["eps=0", "eps=2"] {
        assert_inputs_right(step, device, inputs, &options(step, &[eps]), eps);
    }
    let error = run(step, device, inputs, &options(step, &["eps=-1"])).unwrap_err().to_string();
    assert_eq!(error, "--set eps: expected a number that is not negative, got -1");
}

/// `forward` reads a prompt and leaves its state; from there, position by position, `step` gives the h that the reference gives for
/// all positions, and that `forward` gives for them, and the state behind them. Of `cases` each has the type of a run, that of C, and
/// bounds of h and of C.
pub fn assert_steps_go_on_from_a_prompt(
    [forward, step]: [&dyn Version; 2],
    device: &Device,
    dims: &Dims,
    prompt: usize,
    cases: &[(DType, DType, f64, f64)],
) {
    let (arch, stage) = (&device.facts().arch, forward.info().stage);
    if !forward.sources().iter().all(|source| source.runs_on(arch)) {
        return eprintln!("no prefill on {arch}: {stage} needs a newer GPU");
    }
    let with_state = with_last_state(forward);
    for &(dtype, state, of_h, of_c) in cases {
        let whole = forward.inputs(&Problem::new(dims.clone(), dtype));
        let each = |of: &dyn Fn(&Tensor) -> Tensor| -> Tensors {
            whole.iter().map(|(name, tensor)| (name.clone(), of(tensor))).collect()
        };
        let begun = each(&|tensor| tensor.positions(0..prompt));
        let mut left = run(forward, device, &begun, &with_state).unwrap();
        let c = Tensor::rounded(state, &left["CN"].shape, &left["CN"].values());
        left.insert("CN".into(), c);
        let at_once = &run(forward, device, &whole, &with_state).unwrap()["h"];
        let reference = forward.reference(&whole, &with_state);
        let exact = |name: &str| &reference.iter().find(|o| o.0 == name).expect("an output").1;
        let exact_h = Tensor::rounded(DType::F64, &at_once.shape, exact("h"));

        for position in prompt..dims.get("S") {
            let mut inputs = each(&|tensor| tensor.position(position));
            hand_on(step, &mut inputs, &left);
            left = run(step, device, &inputs, &Options::default()).unwrap();
            // The whole has roundings of its own.
            for (what, other, bound) in [("f64", &exact_h, of_h), (stage, at_once, 1.5 * of_h)] {
                let other = other.position(position);
                let error = distance(&left["h"].values(), &other.values());
                assert!(error <= bound, "{dtype} {state} {position}: h to {what}: {error:.2e}");
            }
        }
        for ([name, _], bound) in states(step).zip([of_c, 4e-6, 2e-7]) {
            let error = distance(&left[name].values(), exact(name));
            assert!(error <= bound, "{dtype} {state}: {name}: {error:.2e}");
        }
    }
}

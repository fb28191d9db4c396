//! What else must hold of the step.

use lab_device::{DType, Device};
use lab_families::gdn;
use lab_harness::suite::VersionCheck;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, distance, run, version_checks};

pub(crate) static VERSION_CHECKS: &[VersionCheck] =
    version_checks![a_prefill_and_steps_are_the_sequence];

/// `gdn_fw` reads a prompt and leaves its state; from there, position by position, come the h of the reference for all of it,
/// and its state.
fn a_prefill_and_steps_are_the_sequence(version: &dyn Version, device: &Device) {
    let forward = &gdn_fw::STEPS;
    let with_state = Options::parse(&["last_state=yes"], forward.info()).unwrap();
    let (prompt, all) = (40, 46);
    // Of h and of C; in bf16 C is rounded in every step.
    for (dtype, state, bound, of_c) in [
        (DType::F32, DType::F32, 2e-6, 1e-6),
        (DType::BF16, DType::F32, 4e-3, 1e-6),
        (DType::BF16, DType::BF16, 1.6e-2, 8e-3),
    ] {
        let whole = forward.inputs(&Problem::new(gdn::sizes([1, 2, 1, all, 32, 48]), dtype));
        let each = |of: &dyn Fn(&Tensor) -> Tensor| -> Tensors {
            whole.iter().map(|(name, tensor)| (name.clone(), of(tensor))).collect()
        };
        let left = run(forward, device, &each(&|tensor| tensor.positions(0..prompt)), &with_state)
            .unwrap();
        let mut c = Tensor::rounded(state, &left["CN"].shape, &left["CN"].values());
        let reference = forward.reference(&whole, &with_state);
        let of = |name: &str| &reference.iter().find(|o| o.0 == name).expect("an output").1;
        let h = Tensor::rounded(DType::F64, &whole["v"].shape, of("h"));
        for position in prompt..all {
            let mut inputs = each(&|tensor| tensor.position(position));
            inputs.insert("C0".into(), c);
            let out = run(version, device, &inputs, &Options::default()).unwrap();
            let exact = h.position(position);
            let error = distance(&out["h"].values(), &exact.values());
            assert!(error <= bound, "{dtype} {state} {position}: h: {error:.2e}");
            c = out["CN"].clone();
        }
        let error = distance(&c.values(), of("CN"));
        assert!(error <= of_c, "{dtype} {state}: CN: {error:.2e}");
    }
}

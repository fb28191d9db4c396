//! What else must hold of the step.

use lab_device::{DType, Device};
use lab_families::gdn;
use lab_harness::suite::VersionCheck;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, distance, run, version_checks};

pub(crate) static VERSION_CHECKS: &[VersionCheck] =
    version_checks![a_prefill_and_steps_are_the_sequence];

/// Rows `from` to `to` of a tensor of a sequence; of one position without its axis.
fn rows(tensor: &Tensor, from: usize, to: usize, keep_axis: bool) -> Tensor {
    let (s, mut shape) = (tensor.shape[2], tensor.shape.clone());
    let columns = tensor.shape.get(3).copied().unwrap_or(1);
    let of_head = |head: &[f64]| head[from * columns..to * columns].to_vec();
    let values: Vec<f64> = tensor.values().chunks(s * columns).flat_map(of_head).collect();
    if keep_axis {
        shape[2] = to - from
    } else {
        _ = shape.remove(2)
    }
    Tensor::rounded(tensor.dtype, &shape, &values)
}

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
        let part = |from, to, keep_axis| -> Tensors {
            let of = |(name, tensor): (&String, &Tensor)| {
                (name.clone(), rows(tensor, from, to, keep_axis))
            };
            whole.iter().map(of).collect()
        };
        let left = run(forward, device, &part(0, prompt, true), &with_state).unwrap();
        let mut c = Tensor::rounded(state, &left["CN"].shape, &left["CN"].values());
        let reference = forward.reference(&whole, &with_state);
        let of = |name: &str| &reference.iter().find(|o| o.0 == name).expect("an output").1;
        let h = Tensor::rounded(DType::F64, &whole["v"].shape, of("h"));
        for position in prompt..all {
            let mut inputs = part(position, position + 1, false);
            inputs.insert("C0".into(), c);
            let out = run(version, device, &inputs, &Options::default()).unwrap();
            let exact = rows(&h, position, position + 1, false);
            let error = distance(&out["h"].values(), &exact.values());
            assert!(error <= bound, "{dtype} {state} {position}: h: {error:.2e}");
            c = out["CN"].clone();
        }
        let error = distance(&c.values(), of("CN"));
        assert!(error <= of_c, "{dtype} {state}: CN: {error:.2e}");
    }
}

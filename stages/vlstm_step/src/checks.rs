//! What else must hold of the step.

use lab_device::{DType, Device};
use lab_families::vlstm::step::sizes;
use lab_families::{qkv, vlstm};
use lab_harness::suite::{Check, VersionCheck};
use lab_harness::{
    Options, Problem, Tensor, Tensors, Version, compare, distance, run, version_checks,
};

use crate::{PACKS, RING, SLICES};

pub(crate) static VERSION_CHECKS: &[VersionCheck] =
    version_checks![a_prefill_and_steps_are_the_sequence];

pub(crate) static CHECKS: &[Check] = &[Check::new("slices_do_not_matter", slices_agree)];

/// However wide the slices are, and by whatever way the rows come: the same bits.
fn slices_agree(device: &Device) {
    for (dtype, shape) in [
        (DType::F32, [1, 2, 80, 144]),
        (DType::BF16, [2, 1, 48, 272]),
        (DType::F16, [1, 1, 272, 48]),
    ] {
        let inputs = SLICES.inputs(&Problem::new(sizes(shape), dtype));
        let packs = run(&PACKS, device, &inputs, &Options::default()).unwrap();
        for lanes in ["4", "8", "16", "32"] {
            let options = Options::parse(&[format!("lanes={lanes}")], SLICES.info()).unwrap();
            let out = run(&SLICES, device, &inputs, &options).unwrap();
            for c in compare(&SLICES, &inputs, &out, &options, dtype) {
                assert!(c.passed(), "{lanes} {dtype} {}", c.complaint());
            }
            assert!(packs == out, "{lanes} {dtype}");
        }
        if RING.sources().iter().all(|source| source.runs_on(&device.facts().arch)) {
            let ring = run(&RING, device, &inputs, &Options::default()).unwrap();
            assert!(packs == ring, "the ring, {dtype}");
        }
    }
}

/// `vlstm_fw_v4` reads a prompt and leaves its state; from there, position by position, come the h that one forward pass
/// over all of it gives, and a state that is that pass's.
fn a_prefill_and_steps_are_the_sequence(version: &dyn Version, device: &Device) {
    let forward = &vlstm_fw_v4::ROLES;
    let arch = &device.facts().arch;
    if !forward.sources().iter().all(|source| source.runs_on(arch)) {
        return eprintln!("no prefill on {arch}: vlstm_fw_v4 needs a newer GPU");
    }
    let (b, nh, prompt, all, dhqk, dhhv) = (2, 2, 100, 112, 32, 80);
    let with_state = Options::parse(&["last_state=yes"], forward.info()).unwrap();
    // Of h and of C. The prompt's C is one of products of halves, until the gates have forgotten it.
    for (dtype, state, bound, of_c) in [
        (DType::F16, DType::F32, 6e-4, 1.6e-4),
        (DType::BF16, DType::F32, 5e-3, 1.4e-3),
        // C is rounded in every step.
        (DType::BF16, DType::BF16, 1.6e-2, 8.4e-3),
    ] {
        let problem = Problem::new(qkv::sizes([b, nh, all, dhqk, dhhv]), dtype);
        let whole = forward.inputs(&problem);
        let each = |of: &dyn Fn(&Tensor) -> Tensor| -> Tensors {
            whole.iter().map(|(name, tensor)| (name.clone(), of(tensor))).collect()
        };
        let mut left =
            run(forward, device, &each(&|tensor| tensor.positions(0..prompt)), &with_state)
                .unwrap();
        let narrow = &left["CN"];
        left.insert("CN".into(), Tensor::rounded(state, &narrow.shape, &narrow.values()));
        let at_once = run(forward, device, &whole, &with_state).unwrap();
        let reference = vlstm::forward_reference(&whole, 1e-6);
        let exact = |name: &str| &reference.iter().find(|o| o.0 == name).expect("an output").1;

        for position in prompt..all {
            let mut inputs = each(&|tensor| tensor.position(position));
            for (after, before) in [("CN", "C0"), ("nN", "n0"), ("mN", "m0")] {
                inputs.insert(before.into(), left[after].clone());
            }
            left = run(version, device, &inputs, &Options::default()).unwrap();
            let shape = &at_once["h"].shape;
            let exact = Tensor::rounded(DType::F64, shape, exact("h"));
            for (what, other) in [("f64", &exact), ("vlstm_fw_v4", &at_once["h"])] {
                let other = other.position(position);
                let error = distance(&left["h"].values(), &other.values());
                // The whole has roundings of its own.
                let bound = if what == "f64" { bound } else { 1.5 * bound };
                assert!(error <= bound, "{dtype} {state} {position}: h to {what}: {error:.2e}");
            }
        }
        for (name, bound) in [("CN", of_c), ("nN", 4e-6), ("mN", 2e-7)] {
            let error = distance(&left[name].values(), exact(name));
            assert!(error <= bound, "{dtype} {state}: {name}: {error:.2e}");
        }
    }
}

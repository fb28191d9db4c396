//! What else must hold of the step.

use lab_device::{DType, Device};
use lab_families::step_checks::assert_steps_go_on_from_a_prompt;
use lab_families::vlstm::step::sizes;
use lab_families::{gdn, qkv, vlstm};
use lab_harness::suite::{Check, VersionCheck};
use lab_harness::{Options, Problem, Tensor, Version, compare, distance, run, version_checks};

use crate::{DECAY, NORMALISED, PACKS, RING, SIGMOID, SLICES};

pub(crate) static VERSION_CHECKS: &[VersionCheck] = version_checks![
    a_prefill_and_steps_are_the_sequence if keeps_m,
    a_prefill_and_steps_are_linear_attention if has_no_n,
];

pub(crate) static CHECKS: &[Check] = &[
    Check::new("slices_do_not_matter", slices_agree),
    Check::new("slices_of_relatives_do_not_matter", slices_of_relatives_agree),
    Check::new("steps_of_sigmoid_gates_are_the_vlstms", sigmoid_steps_are_the_vlstms),
];

fn keeps_m(version: &dyn Version) -> bool {
    version.info().takes("m0")
}

fn has_no_n(version: &dyn Version) -> bool {
    !version.info().takes("n0")
}

/// However wide the slices of a relative are: the same bits.
fn slices_of_relatives_agree(device: &Device) {
    for version in [&DECAY, &SIGMOID, &NORMALISED] {
        for (dtype, shape) in [
            (DType::F32, [1, 2, 1, 80, 144]),
            (DType::BF16, [2, 2, 2, 48, 272]),
            (DType::F16, [1, 1, 1, 272, 48]),
        ] {
            let inputs = version.inputs(&Problem::new(gdn::step::sizes(shape), dtype));
            let all = ["4", "8", "16", "32"].map(|lanes| {
                let options = Options::parse(&[format!("lanes={lanes}")], version.info()).unwrap();
                let out = run(version, device, &inputs, &options).unwrap();
                for c in compare(version, &inputs, &out, &options, dtype) {
                    assert!(c.passed(), "{lanes} {dtype} {}", c.complaint());
                }
                out
            });
            assert!(all.iter().all(|out| *out == all[0]), "{} {dtype}", version.info().name);
        }
    }
}

/// mLSTMsig is the vLSTM with log σ(i) for i, whose state carries exp(−m): from no state on, h of both is the same, and so is C exp(m).
fn sigmoid_steps_are_the_vlstms(device: &Device) {
    let shape = [1, 3, 3, 32, 48];
    let [b, nh, _, dhqk, dhhv] = shape;
    let options = Options::parse(&["eps=0"], NORMALISED.info()).unwrap();
    let of_vlstm = Options::parse(&["eps=0"], SLICES.info()).unwrap();
    let mut theirs = vlstm::step::no_state([b, nh, dhqk, dhhv], DType::F32);
    let zeros =
        |shape: &[usize]| Tensor::rounded(DType::F32, shape, &vec![0.0; shape.iter().product()]);
    let (mut c, mut n) = (zeros(&[b, nh, dhqk, dhhv]), zeros(&[b, nh, dhqk]));
    for seed in 0..12 {
        let problem = Problem { seed, ..Problem::new(gdn::step::sizes(shape), DType::F32) };
        let mut inputs = NORMALISED.inputs(&problem);
        inputs.insert("C0".into(), c);
        inputs.insert("n0".into(), n);
        let out = run(&NORMALISED, device, &inputs, &options).unwrap();
        let i: Vec<f64> = inputs["i"].values().iter().map(|i| -(-i).exp().ln_1p()).collect();
        inputs.insert("i".into(), Tensor::rounded(DType::F32, &[b, nh], &i));
        inputs.extend(theirs);
        let vlstm = run(&SLICES, device, &inputs, &of_vlstm).unwrap();
        let m = vlstm["mN"].values();
        let columns = dhqk * dhhv;
        let scaled: Vec<f64> = (vlstm["CN"].values().chunks(columns).zip(&m))
            .flat_map(|(head, m)| head.iter().map(|c| c * m.exp()).collect::<Vec<_>>())
            .collect();
        for (name, expected) in [("h", vlstm["h"].values()), ("CN", scaled)] {
            let error = distance(&out[name].values(), &expected);
            assert!(error <= 2e-6, "position {seed}: {name}: {error:.2e}");
        }
        (c, n) = (out["CN"].clone(), out["nN"].clone());
        theirs = [("C0", "CN"), ("n0", "nN"), ("m0", "mN")]
            .into_iter()
            .map(|(before, after)| (before.to_owned(), vlstm[after].clone()))
            .collect();
    }
}

fn a_prefill_and_steps_are_linear_attention(version: &dyn Version, device: &Device) {
    let is_sigmoid = version.info().takes("f");
    let forward = if is_sigmoid { &vlstm_fw_v4::SIGMOID } else { &vlstm_fw_v4::DECAY };
    let dims = gdn::sizes([1, 4, 2, 78, 32, 48]);
    // The prompt's C is one of products of halves, until the gates have forgotten it.
    let cases = [
        (DType::F16, DType::F32, 8e-4, 6e-4),
        (DType::BF16, DType::F32, 6e-3, 5e-3),
        // C is rounded in every step.
        (DType::BF16, DType::BF16, 1.6e-2, 1e-2),
    ];
    assert_steps_go_on_from_a_prompt([forward, version], device, &dims, 70, &cases);
}

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

fn a_prefill_and_steps_are_the_sequence(version: &dyn Version, device: &Device) {
    let dims = qkv::sizes([2, 2, 112, 32, 80]);
    // The prompt's C is one of products of halves, until the gates have forgotten it.
    let cases = [
        (DType::F16, DType::F32, 6e-4, 1.6e-4),
        (DType::BF16, DType::F32, 5e-3, 1.4e-3),
        // C is rounded in every step.
        (DType::BF16, DType::BF16, 1.6e-2, 8.4e-3),
    ];
    assert_steps_go_on_from_a_prompt([&vlstm_fw_v4::ROLES, version], device, &dims, 100, &cases);
}

//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_families::vlstm::step::sizes;
use lab_harness::suite::{check, emulator, in_all_types};
use lab_harness::{Options, Posed, Problem, random_problems, stage_checks, version_tests};
use proptest::prelude::*;
use vlstm_step::{DECAY, NORMALISED, PACKS, RING, SIGMOID, SIMPLE, SLICES, STAGE};

version_tests! {
    STAGE:
    simple = SIMPLE,
    packs = PACKS,
    slices = SLICES,
    ring = RING,
    decay = DECAY,
    sigmoid = SIGMOID,
    normalised = NORMALISED,
}

stage_checks!(STAGE);

/// ‖n∘q‖ / max(|n·q|, e^−m) of the worst head, n and m of the new state: by how much a rounding of a term of n·q weighs more
/// in h. Some 1 for the sum of random terms; where they cancel, h has that many digits less in any order of the sum.
fn cancellation(posed: &Posed) -> f64 {
    let (keys, q) = (posed.problem.dims.get("DHQK"), posed.inputs["q"].values());
    let state = |name| posed.reference(name).expect("an output of the step");
    let heads = q.chunks(keys).zip(state("nN").chunks(keys)).zip(state("mN"));
    heads
        .map(|((q, n), m)| {
            let terms = || q.iter().zip(n).map(|(q, n)| q * n / (keys as f64).sqrt());
            let norm = terms().map(|t| t * t).sum::<f64>().sqrt();
            norm / terms().sum::<f64>().abs().max((-m).exp())
        })
        .fold(0.0, f64::max)
}

random_problems! {
    cases: 12, of: in_all_types(&STAGE.versions[..4]);
    (
        b in 1usize..3,
        nh in 1usize..4,
        // In sixteens.
        dhqk in 1usize..=32,
        dhhv in 1usize..=32,
        narrow in any::<bool>(),
    ) |version, dtype, seed| {
        let dims = sizes([b, nh, 16 * dhqk, 16 * dhhv]);
        let state = if narrow { "auto" } else { "f32" };
        let options = Options::parse(&[format!("state={state}")], version.info()).unwrap();
        let problem = Problem { seed, options, ..Problem::new(dims, dtype) };
        let cancellation = cancellation(&Posed::new(version, problem.clone()));
        let mut case = check(version, &emulator().unwrap(), &problem);
        let compared = case.outcome.iter_mut().flatten();
        for h in compared.filter(|output| output.name == "h") {
            h.bound += cancellation * 2f64.powi(-22);
        }
        assert!(case.passed(), "{}: terms cancel {cancellation:.1}", case.describe());
    }
}

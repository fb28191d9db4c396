//! What else must hold of the walk.

use lab_device::{DType, Device};
use lab_harness::qkv::checks::any_schedule_gives_the_same;
use lab_harness::qkv::sizes;
use lab_harness::suite::{Check, VersionCheck, every_kernel_loads};
use lab_harness::vlstm::packed_sequences;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, compare, run, version_checks};

use crate::{SEGMENTS, STAGE};

pub(crate) static VERSION_CHECKS: &[VersionCheck] = version_checks![
    any_schedule_gives_the_same if takes_batches,
    a_long_memory_fits_into_halves if takes_f16,
    segments_do_not_matter if has_segments,
];

fn takes_batches(version: &dyn Version) -> bool {
    packed_sequences(&version.info().small()).is_none()
}

fn takes_f16(version: &dyn Version) -> bool {
    takes_batches(version) && version.info().dtypes.contains(&DType::F16)
}

fn has_segments(version: &dyn Version) -> bool {
    version.info().settings.iter().any(|setting| setting.name == SEGMENTS.name)
}

pub(crate) static CHECKS: &[Check] = &[Check {
    name: "every_kernel_loads_on_every_device",
    run: |device| every_kernel_loads(&STAGE, device),
}];

/// A state on its way in, so that segments join it, too.
fn with_state(mut inputs: Tensors) -> Tensors {
    let [b, nh, _, dhqk] = inputs["q"].shape[..] else { unreachable!("q of four axes") };
    let dhhv = inputs["v"].shape[3];
    for (name, shape) in
        [("C0", vec![b, nh, dhqk, dhhv]), ("n0", vec![b, nh, dhqk]), ("m0", vec![b, nh])]
    {
        let values: Vec<f64> = (0..shape.iter().product()).map(|at| (at as f64).sin()).collect();
        inputs.insert(name.into(), Tensor::rounded(DType::F32, &shape, &values));
    }
    inputs
}

/// However many segments: m and n to some roundings of f32, h and the last state to those of halves.
fn segments_do_not_matter(version: &dyn Version, device: &Device) {
    let agree = |shape: [usize; 5], dtype, segments: usize| {
        let inputs = with_state(version.inputs(&Problem::new(sizes(shape), dtype)));
        let asked = format!("segments={segments}");
        let options = Options::parse(&["last_state=yes", &asked], version.info()).unwrap();
        let out = run(version, device, &inputs, &options).unwrap();
        for c in compare(version, &inputs, &out, &options, dtype) {
            assert!(c.passed(), "{segments} {dtype} {}: {:.2e}", c.name, c.relative_error);
        }
    };
    for dtype in [DType::F16, DType::BF16] {
        for segments in [1, 2, 3, 8] {
            agree([1, 2, 500, 32, 80], dtype, segments);
        }
    }
    // Seven and eight chunks each, in three places: so many that a place is claimed for the third time.
    agree([1, 1, 960, 128, 128], DType::F16, 2);
    let inputs = version.inputs(&Problem::new(sizes([1, 1, 100, 16, 16]), DType::BF16));
    let options = Options::parse(&["segments=3"], version.info()).unwrap();
    let error = run(version, device, &inputs, &options).unwrap_err().to_string();
    let said = "--set segments: expected at most 2: the sequence has so many chunks of 64, got 3";
    assert_eq!(error, said);
}

/// Gates that forget nothing, and 40 in every row of k and v: after 150 positions C is 240,000, which f16
/// does not hold. h, the mean of v, is 40.
fn a_long_memory_fits_into_halves(version: &dyn Version, device: &Device) {
    let mut inputs = version.inputs(&Problem::new(sizes([1, 1, 150, 16, 16]), DType::F16));
    for (name, value) in [("k", 40.0), ("v", 40.0), ("i", 0.0), ("f", 100.0)] {
        let tensor = inputs.get_mut(name).expect("an input");
        let all = vec![value; tensor.len()];
        *tensor = Tensor::rounded(tensor.dtype, &tensor.shape, &all);
    }
    let options = Options::default();
    let out = run(version, device, &inputs, &options).unwrap();
    for c in compare(version, &inputs, &out, &options, DType::F16) {
        assert!(c.passed(), "{}: {:.2e}", c.name, c.relative_error);
    }
}

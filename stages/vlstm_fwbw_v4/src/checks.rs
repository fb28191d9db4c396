//! What else must hold of the walks.

use lab_device::{DType, Device};
use lab_harness::qkv::sizes;
use lab_harness::suite::{Check, VersionCheck, every_kernel_loads};
use lab_harness::{Options, Problem, Version, compare, run, version_checks, vlstm};

use crate::{SEGMENTS, STAGE};

// Of the version alone that has them: no other's kernels are to blame where they differ.
pub(crate) static VERSION_CHECKS: &[VersionCheck] =
    version_checks![segments_do_not_matter if has_segments];

fn has_segments(version: &dyn Version) -> bool {
    version.info().settings.iter().any(|setting| setting.name == SEGMENTS.name)
}

pub(crate) static CHECKS: &[Check] = &[Check {
    name: "every_kernel_loads_on_every_device",
    run: |device| every_kernel_loads(&STAGE, device),
}];

/// However many segments, with the state handed on between them and what goes through the normaliser: the same to the roundings
/// of halves. Of each shape of a walk, and of so many chunks that a place
/// is claimed for the third time.
fn segments_do_not_matter(version: &dyn Version, device: &Device) {
    let agree = |shape: [usize; 5], dtype, segments: usize| {
        let mut inputs = version.inputs(&Problem::new(sizes(shape), dtype));
        let mut asked = vec![format!("segments={segments}")];
        if segments > 1 {
            vlstm::set_state(&mut inputs, -2.5);
            vlstm::set_last_gradient(&mut inputs);
            asked.extend(["normalizer_grad=exact", "state_grad=yes"].map(str::to_owned));
        }
        let options = Options::parse(&asked, version.info()).unwrap();
        let out = run(version, device, &inputs, &options).unwrap();
        for c in compare(version, &inputs, &out, &options, dtype) {
            assert!(c.passed(), "{segments} {dtype} {}: {:.2e}", c.name, c.relative_error);
        }
    };
    agree([1, 1, 300, 32, 48], DType::F16, 1);
    for (dtype, segments) in [(DType::BF16, 2), (DType::F16, 4)] {
        agree([1, 2, 800, 32, 48], dtype, segments);
    }
    agree([1, 1, 700, 80, 128], DType::BF16, 3);
    agree([1, 1, 560, 128, 208], DType::F16, 2);
    let inputs = version.inputs(&Problem::new(sizes([1, 1, 300, 16, 16]), DType::BF16));
    let options = Options::parse(&["segments=3"], version.info()).unwrap();
    let error = run(version, device, &inputs, &options).unwrap_err().to_string();
    let expected = "at most 2: a segment has 4 chunks of 64, at least";
    assert_eq!(error, format!("--set segments: expected {expected}, got 3"));
}

//! What else must hold of the walks.

use lab_device::{DType, Device};
use lab_harness::qkv::sizes;
use lab_harness::suite::{Check, every_kernel_loads};
use lab_harness::{Options, Problem, Version, compare, run, vlstm};

use crate::{SEGMENTED, STAGE};

pub(crate) static CHECKS: &[Check] = &[
    Check {
        name: "every_kernel_loads_on_every_device",
        run: |device| every_kernel_loads(&STAGE, device),
    },
    Check { name: "segments_do_not_matter", run: segments_agree },
];

/// However many segments, with the state handed on between them and what goes through the normaliser: the same to the roundings
/// of halves. Of each shape of a walk, and of so many chunks that a place
/// is claimed for the third time.
fn segments_agree(device: &Device) {
    let agree = |shape: [usize; 5], dtype, segments: usize| {
        let mut inputs = SEGMENTED.inputs(&Problem::new(sizes(shape), dtype));
        let mut asked = vec![format!("segments={segments}")];
        if segments > 1 {
            vlstm::set_state(&mut inputs, -2.5);
            vlstm::set_last_gradient(&mut inputs);
            asked.extend(["normalizer_grad=exact", "state_grad=yes"].map(str::to_owned));
        }
        let options = Options::parse(&asked, SEGMENTED.info()).unwrap();
        let out = run(&SEGMENTED, device, &inputs, &options).unwrap();
        for c in compare(&SEGMENTED, &inputs, &out, &options, dtype) {
            assert!(c.passed(), "{segments} {dtype} {}: {:.2e}", c.name, c.relative_error);
        }
    };
    for (dtype, segments) in [(DType::F16, 1), (DType::BF16, 2), (DType::F16, 4)] {
        agree([1, 2, 800, 32, 48], dtype, segments);
    }
    agree([1, 1, 700, 80, 128], DType::BF16, 3);
    agree([1, 1, 560, 128, 208], DType::F16, 2);
    let inputs = SEGMENTED.inputs(&Problem::new(sizes([1, 1, 300, 16, 16]), DType::BF16));
    let options = Options::parse(&["segments=3"], SEGMENTED.info()).unwrap();
    let error = run(&SEGMENTED, device, &inputs, &options).unwrap_err().to_string();
    let expected = "at most 2: a segment has 4 chunks of 64, at least";
    assert_eq!(error, format!("--set segments: expected {expected}, got 3"));
}

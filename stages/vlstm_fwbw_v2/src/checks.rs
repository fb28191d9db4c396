//! What else must hold of all pairs.

use lab_device::{DType, Device};
use lab_families::qkv::sizes;
use lab_harness::suite::Check;
use lab_harness::{Options, Problem, Tensor, compare, run};

use crate::STAGE;

pub(crate) static CHECKS: &[Check] =
    &[Check::new("an_input_gate_may_open_late", an_input_gate_may_open_late)];

/// Of an input gate that is larger by 95 than all before it, in the midst of 64 rows: those before it count as before, and
/// no factor of theirs is infinite.
fn an_input_gate_may_open_late(device: &Device) {
    for (version, at) in STAGE.versions.iter().zip([100, 30, 100, 100, 100]) {
        let problem = Problem::new(sizes([1, 1, 130, 16, 32]), DType::BF16);
        let mut inputs = version.inputs(&problem);
        let of = |t: usize| if t == at { 95.0 } else { (t as f64).sin() };
        let i = Tensor::rounded(DType::F32, &[1, 1, 130], &(0..130).map(of).collect::<Vec<_>>());
        inputs.insert("i".to_owned(), i);
        let options = Options::default();
        let out = run(*version, device, &inputs, &options).unwrap();
        for c in compare(*version, &inputs, &out, &options, DType::BF16) {
            let name = version.info().full_name();
            assert!(c.passed(), "{name} {}", c.complaint());
        }
    }
}

//! What else must hold of the gradients in chunks.

use lab_device::{DType, Device};
use lab_families::qkv::sizes;
use lab_families::vlstm::f16_checks::{
    infinite_in_f16_is_no_neighbour, small_input_gates_cost_no_digits,
};
use lab_harness::suite::{Check, VersionCheck};
use lab_harness::{Options, Problem, Tensor, Version, compare, run, version_checks};

use crate::{CARRIED, CHUNKS, LONG, TOGETHER};

pub(crate) static VERSION_CHECKS: &[VersionCheck] =
    version_checks![infinite_in_f16_is_no_neighbour, small_input_gates_cost_no_digits];

pub(crate) static CHECKS: &[Check] = &[
    Check::new("one_launch_gives_the_same_bits", launches_agree),
    Check::new("a_long_memory_fits_into_halves", long_memory),
];

/// With n held constant and not.
fn launches_agree(device: &Device) {
    for through in ["constant", "exact"] {
        let options = Options::parse(&[format!("normalizer_grad={through}")], LONG.info()).unwrap();
        let inputs = LONG.inputs(&Problem::new(sizes([1, 2, 300, 32, 80]), DType::BF16));
        let [three, one] = [&LONG, &TOGETHER].map(|v| run(v, device, &inputs, &options).unwrap());
        for (name, tensor) in three {
            assert_eq!(tensor, one[&name], "{through} {name}");
        }
    }
}

/// dC is more than f16 holds, and dk is not. Of gates that forget nothing and rows with N = 1, for k is 0: behind the first chunk
/// dC is 60 · 60 / 4 times as many rows as there are, 200000.
fn long_memory(device: &Device) {
    for version in [&CHUNKS, &LONG, &CARRIED] {
        let mut inputs = version.inputs(&Problem::new(sizes([1, 1, 350, 16, 16]), DType::F16));
        let values = [("q", 60.0), ("dh", 60.0), ("k", 0.0), ("v", 1e-3), ("i", 0.0), ("f", 100.0)];
        for (name, value) in values {
            let tensor = inputs.get_mut(name).expect("an input");
            *tensor = Tensor::rounded(tensor.dtype, &tensor.shape, &vec![value; tensor.len()]);
        }
        let options = Options::default();
        let out = run(version, device, &inputs, &options).unwrap();
        let all = compare(version, &inputs, &out, &options, DType::F16);
        let dk = all.iter().find(|c| c.name == "dk").expect("an output");
        assert!(dk.passed(), "{}: {:.2e}", version.info().name, dk.relative_error);
    }
}

//! What else must hold of the chunkwise form.

use lab_device::DType;
use lab_harness::qkv::checks::any_schedule_gives_the_same;
use lab_harness::qkv::sizes;
use lab_harness::suite::{Check, VersionCheck, every_kernel_loads};
use lab_harness::{Options, Problem, Version, compare, run, version_checks};

use crate::{CHUNKS, LONG, STAGE};

pub(crate) static VERSION_CHECKS: &[VersionCheck] = version_checks![any_schedule_gives_the_same];

pub(crate) static CHECKS: &[Check] = &[
    Check {
        name: "every_kernel_loads_on_every_device",
        run: |device| every_kernel_loads(&STAGE, device),
    },
    Check { name: "the_length_of_chunks_does_not_matter", run: lengths_agree },
    Check { name: "a_long_memory_fits_into_halves", run: long_memory },
];

/// m and n, which are f32, are the same to some roundings of f32; h to those of halves.
fn lengths_agree(device: &lab_device::Device) {
    for dtype in [DType::F16, DType::BF16] {
        let inputs = CHUNKS.inputs(&Problem::new(sizes([1, 2, 300, 32, 80]), dtype));
        let options = Options::parse(&["last_state=yes"], CHUNKS.info()).unwrap();
        let [short, long]: [_; 2] =
            [&CHUNKS, &LONG].map(|v| run(v, device, &inputs, &options).unwrap());
        for output in CHUNKS.info().outputs_under(&options) {
            let (a, b) = (short[output.name].values(), long[output.name].values());
            let norm = |all: &mut dyn Iterator<Item = f64>| all.map(|v| v * v).sum::<f64>().sqrt();
            let apart =
                norm(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / norm(&mut a.iter().copied());
            let bound = output.bounds.iter().find(|b| b.0 == dtype).expect("a bound").1;
            assert!(apart <= bound, "{dtype} {}: {apart:.2e}, bound {bound:.2e}", output.name);
        }
    }
}

/// Gates that forget nothing, and 40 in every row of k and v: after 150 positions C is 240,000, which f16
/// does not hold. h, the mean of v, is 40.
fn long_memory(device: &lab_device::Device) {
    let mut inputs = LONG.inputs(&Problem::new(sizes([1, 1, 150, 16, 16]), DType::F16));
    for (name, value) in [("k", 40.0), ("v", 40.0), ("i", 0.0), ("f", 100.0)] {
        let tensor = inputs.get_mut(name).expect("an input");
        let all = vec![value; tensor.len()];
        *tensor = lab_harness::Tensor::rounded(tensor.dtype, &tensor.shape, &all);
    }
    let options = Options::default();
    for version in [&CHUNKS, &LONG] {
        let out = run(version, device, &inputs, &options).unwrap();
        for c in compare(version, &inputs, &out, &options, DType::F16) {
            assert!(c.passed(), "{} {}: {:.2e}", version.info().name, c.name, c.relative_error);
        }
    }
}

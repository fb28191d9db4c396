//! What else must hold of the chunkwise form.

use lab_device::{DType, Device};
use lab_families::qkv::checks::any_schedule_gives_the_same;
use lab_families::qkv::sizes;
use lab_harness::suite::{Check, VersionCheck};
use lab_harness::{Options, Problem, Tensor, Version, compare, run, version_checks};

use crate::{CHUNKS, LONG};

pub(crate) static VERSION_CHECKS: &[VersionCheck] =
    version_checks![any_schedule_gives_the_same in Ends];

pub(crate) static CHECKS: &[Check] = &[
    Check::new("the_length_of_chunks_does_not_matter", lengths_agree),
    Check::new("a_long_memory_fits_into_halves", long_memory),
];

/// m and n, which are f32, are the same to some roundings of f32; h to those of halves.
fn lengths_agree(device: &Device) {
    for dtype in [DType::F16, DType::BF16] {
        let inputs = CHUNKS.inputs(&Problem::new(sizes([1, 2, 300, 32, 80]), dtype));
        let options = Options::parse(&["last_state=yes"], CHUNKS.info()).unwrap();
        let [short, long]: [_; 2] =
            [&CHUNKS, &LONG].map(|v| run(v, device, &inputs, &options).unwrap());
        for output in CHUNKS.info().outputs_under(&options) {
            let (a, b) = (short[output.name].values(), long[output.name].values());
            let apart = lab_harness::distance(&b, &a);
            let bound = output.bounds.iter().find(|b| b.0 == dtype).expect("a bound").1;
            assert!(apart <= bound, "{dtype} {}: {apart:.2e}, bound {bound:.2e}", output.name);
        }
    }
}

/// C is more than f16 holds, and h is not. Of gates that forget nothing, with 181 in every row of k and v:
/// after 128 positions C is 4.2 million, 65504 times 64, and what it is divided by must be no less than 128.
/// And of a state that is large in one part only, wherever that is.
fn long_memory(device: &Device) {
    let problem = |s: usize, dhqk: usize, dhhv: usize| Problem {
        seed: 5,
        ..Problem::new(sizes([1, 1, s, dhqk, dhhv]), DType::F16)
    };
    let mut open = LONG.inputs(&problem(150, 16, 16));
    for (name, value) in [("k", 181.0), ("v", 181.0), ("i", 0.0), ("f", 100.0)] {
        let tensor = open.get_mut(name).expect("an input");
        *tensor = Tensor::rounded(tensor.dtype, &tensor.shape, &vec![value; tensor.len()]);
    }
    let with_state = |part: usize| {
        let mut inputs = LONG.inputs(&problem(10, 32, 48));
        let large = |at: usize| if at / 512 == part { 1e6f32 } else { 1.0 };
        let cells: Vec<f32> = (0..32 * 48).map(large).collect();
        inputs.insert("C0".to_owned(), Tensor::new(&[1, 1, 32, 48], &cells));
        inputs.insert("n0".to_owned(), Tensor::new(&[1, 1, 32], &[1e4f32; 32]));
        inputs.insert("m0".to_owned(), Tensor::new(&[1, 1], &[0f32]));
        inputs
    };
    let options = Options::default();
    for inputs in [open, with_state(0), with_state(1), with_state(2)] {
        for version in [&CHUNKS, &LONG] {
            let out = run(version, device, &inputs, &options).unwrap();
            for c in compare(version, &inputs, &out, &options, DType::F16) {
                let name = version.info().name;
                assert!(c.passed(), "{name} {}", c.complaint());
            }
        }
    }
}

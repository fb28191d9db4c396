//! What must hold of every version whose tensors are \[B, NH, S, …\]: q, k, v and perhaps others go
//! in, and heads have nothing to do with each other.

use lab_device::{DType, Device};

use super::sizes;
use crate::checking::assert_same_in_any_order;
use lab_harness::suite::{check, without_checks};
use lab_harness::{Options, Problem, Tensor, Tensors, Version, run};

/// The type that these checks run in: the first of the version's, which is f32 where it has that.
pub fn dtype_of(version: &dyn Version) -> DType {
    version.info().dtypes[0]
}

/// The version's random inputs in [`dtype_of`], of these B, NH, S, DHQK, DHHV.
pub fn inputs_of(version: &dyn Version, shape: [usize; 5]) -> Tensors {
    version.inputs(&Problem::new(sizes(shape), dtype_of(version)))
}

/// What comes out, under default options.
pub fn outputs_of(version: &dyn Version, device: &Device, inputs: &Tensors) -> Tensors {
    run(version, device, inputs, &Options::default()).unwrap()
}

/// All ones.
pub fn ones(shape: &[usize]) -> Tensor {
    Tensor::new(shape, &vec![1f32; shape.iter().product()])
}

/// These problems are right in these types: on the emulator without its checks, for they are too
/// large to be checked.
pub fn assert_right(
    version: &dyn Version,
    device: &Device,
    dtypes: &[DType],
    shapes: &[[usize; 5]],
) {
    let device = &without_checks(device).unwrap();
    for &shape in shapes {
        for &dtype in dtypes {
            let case = check(version, device, &Problem::new(sizes(shape), dtype));
            assert!(case.passed(), "{}", case.describe());
        }
    }
}

/// Each head alone gives the same as among others, bit for bit.
pub fn heads_do_not_meet(version: &dyn Version, device: &Device) {
    let [b, nh, s] = [2, 2, 150];
    let inputs = inputs_of(version, [b, nh, s, 16, 32]);
    let all = outputs_of(version, device, &inputs);
    let head_of = |t: &Tensor, head: usize| {
        let mut shape = t.shape.clone();
        (shape[0], shape[1]) = (1, 1);
        let len: usize = shape.iter().product();
        Tensor::rounded(t.dtype, &shape, &t.values()[head * len..][..len])
    };
    for head in 0..b * nh {
        let own = inputs.iter().map(|(n, t)| (n.clone(), head_of(t, head))).collect();
        for (name, alone) in outputs_of(version, device, &own) {
            assert_eq!(alone, head_of(&all[&name], head), "{name} of head {head}");
        }
    }
}

/// Bit for bit; and a second launch takes nothing from the one before, not even outputs that it
/// should write itself.
pub fn results_do_not_change_from_run_to_run(version: &dyn Version, device: &Device) {
    let inputs = inputs_of(version, [1, 2, 260, 16, 16]);
    let before = outputs_of(version, device, &inputs);
    let mut prepared = version.prepare(device, &inputs, &Options::default()).unwrap();
    for launch in ["first", "second"] {
        prepared.launch().unwrap();
        assert_eq!(prepared.outputs().unwrap(), before, "{launch} launch on {}", device.name());
        prepared.poison_outputs().unwrap();
    }
}

/// Bit for bit, in whatever order blocks and threads run.
pub fn any_schedule_gives_the_same(version: &dyn Version, device: &Device) {
    let inputs = inputs_of(version, [1, 2, 260, 16, 16]);
    assert_same_in_any_order(version, device, &inputs, &Options::default());
}

/// Tensors that do not fit together, or not into the version's sizes, are named.
pub fn shapes_that_do_not_fit_are_refused(version: &dyn Version, device: &Device) {
    let dims = version.info().dims;
    let dim = |name: &str| dims.iter().find(|d| d.name == name).expect("a size of q, k and v");
    let beyond = |name: &str| dim(name).max + 16;
    let refuses = |name: &str, size: usize| {
        let dim = dim(name);
        let sizes = match dim.step {
            1 => format!("1 to {}", dim.max),
            step => format!("a multiple of {step} from {step} to {}", dim.max),
        };
        format!("expected dimension {name}: expected {sizes}, got {size}")
    };
    assert_refused(
        version,
        device,
        &[
            ("k", ones(&[1, 2, 9, 16]), "expected DHQK=32 as 'q', got f32 [1, 2, 9, 16]"),
            ("k", ones(&[1, 2, 8, 32]), "expected S=9 as 'q', got f32 [1, 2, 8, 32]"),
            ("v", ones(&[1, 3, 9, 16]), "expected NH=2 as 'q', got f32 [1, 3, 9, 16]"),
            ("v", ones(&[2, 2, 9, 16]), "expected B=1 as 'q', got f32 [2, 2, 9, 16]"),
            ("v", ones(&[1, 2, 9, beyond("DHHV")]), &refuses("DHHV", beyond("DHHV"))),
            ("v", ones(&[1, 2, 9, 0]), &refuses("DHHV", 0)),
            ("q", ones(&[1, 2, 9, beyond("DHQK")]), &refuses("DHQK", beyond("DHQK"))),
            (
                "q",
                ones(&[9, 32]),
                "expected shape [\"B\", \"NH\", \"S\", \"DHQK\"], got f32 [9, 32]",
            ),
        ],
    );
}

/// One input at a time is another than what fits, `[1, 2, 9, 32]` for q and k, and 16 columns for
/// v, and the error begins with the tensor's name and this. What is f32 here becomes what the version takes.
pub fn assert_refused(version: &dyn Version, device: &Device, wrong: &[(&str, Tensor, &str)]) {
    let fitting = inputs_of(version, [1, 2, 9, 32, 16]);
    for (name, tensor, said) in wrong {
        let mut inputs = fitting.clone();
        let mut tensor = tensor.clone();
        if let Some(fits) = fitting.get(*name).filter(|_| tensor.dtype == DType::F32) {
            tensor = Tensor::rounded(fits.dtype, &tensor.shape, &tensor.values());
        }
        let said = said.replace("got f32", &format!("got {}", tensor.dtype));
        inputs.insert((*name).to_owned(), tensor);
        let error = run(version, device, &inputs, &Options::default()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("tensor '{name}': {said}")), "{error}");
    }
}

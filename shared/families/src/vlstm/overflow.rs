//! Numbers that no result asks for may be infinite, of inputs that are not.

use lab_device::{DType, Device};

use super::asserts::{assert_same_from, in_type, normalizer_grads};
use crate::qkv::checks::outputs_of;
use crate::qkv::sizes;
use lab_harness::tensor::tensors;
use lab_harness::{Options, Problem, Tensor, Version, run};

/// As large as floats of few digits come: a product of two rows of them is infinite, or NaN.
const HUGE: f64 = 3e38;

/// The first of the version's types that holds such numbers.
fn widest(version: &dyn Version) -> DType {
    let mut all = version.info().dtypes.iter().copied();
    all.find(|&dtype| dtype != DType::F16).expect("f32 or bf16")
}

/// Products of pairs that do not count are infinite or NaN, in tiles with others that do: the same
/// bits.
pub fn pairs_that_do_not_count_may_overflow(version: &dyn Version, device: &Device) {
    let s = 150;
    let dtype = widest(version);
    let inputs = version.inputs(&Problem::new(sizes([1, 1, s, 16, 16]), dtype));
    let before = outputs_of(version, device, &inputs);
    let with_huge = |names: [&str; 2], rows: std::ops::Range<usize>| {
        let mut changed = inputs.clone();
        for name in names {
            let mut values = inputs[name].values();
            let of_rows = &mut values[16 * rows.start..16 * rows.end];
            of_rows.iter_mut().for_each(|v| *v = HUGE.copysign(*v));
            let tensor = Tensor::rounded(dtype, &inputs[name].shape, &values);
            changed.insert(name.to_owned(), tensor);
        }
        outputs_of(version, device, &changed)
    };
    for t in [1, 40, 63, 64, 149] {
        // Later positions, of those that look back.
        let after = with_huge(["k", "v"], t..s);
        for name in ["h", "m", "n", "dq"] {
            let columns = before[name].len() / s;
            let (before, after) = (before[name].values(), after[name].values());
            assert_eq!(after[..t * columns], before[..t * columns], "{name} before {t}");
        }
        // Earlier positions, of those that are looked back at.
        let after = with_huge(["q", "dh"], 0..t);
        for name in ["dq", "dk", "dv", "di", "df"] {
            let columns = before[name].len() / s;
            assert_same_from(version, name, t * columns, &before, &after);
        }
    }
}

/// Of a row whose l cancels, while its h is 32 times as large as any v: dh · h, which the gradient
/// through n would ask for, is infinite, and dq is not. It is n = exp(−m) that holds here, in which
/// nothing depends on q.
pub fn a_dot_that_is_not_needed_may_overflow(version: &dyn Version, device: &Device) {
    let (s, dh) = (33, 16);
    // In the first column: of the rows before the last, and of the last.
    let matrix = |of: &dyn Fn(usize) -> f32, last: f32| {
        let mut all = vec![0f32; s * dh];
        (0..s - 1).for_each(|row| all[row * dh] = of(row));
        all[(s - 1) * dh] = last;
        Tensor::new(&[1, 1, s, dh], &all)
    };
    let sign = |row: usize| if row.is_multiple_of(2) { 1.0 } else { -1.0 };
    let inputs = tensors([
        ("q", matrix(&|_| 0.0, 10.0)),
        ("k", matrix(&|row| 10.0 * sign(row), 0.0)),
        ("v", matrix(&sign, 0.0)),
        ("dh", matrix(&|_| 0.0, 5e35)),
        ("i", Tensor::new(&[1, 1, s], &[0f32; 33])),
        ("f", Tensor::new(&[1, 1, s], &[100f32; 33])),
    ]);
    let dtype = widest(version);
    let bound = if dtype == DType::F32 { 1e-5 } else { 1e-2 };
    let inputs = in_type(inputs, dtype);
    for normalizer_grad in normalizer_grads(version) {
        let options = with_normalizer_grad(version, normalizer_grad);
        let got = run(version, device, &inputs, &options).unwrap()["dq"].values();
        // C = ±25, n = 1: 32 keys, each 1/4 of 5e35 times 10.
        for (at, got) in got.into_iter().enumerate() {
            let expected = if at == (s - 1) * dh { 4e37 } else { 0.0 };
            assert!((got - expected).abs() <= bound * expected, "{normalizer_grad}, {at}: {got}");
        }
    }
}

pub(super) fn with_normalizer_grad(version: &dyn Version, normalizer_grad: &str) -> Options {
    let text = format!("normalizer_grad={normalizer_grad}");
    Options::parse(&[text], version.info()).unwrap()
}

//! Gradients are rounded to the nearest bf16 before they are summed.

use lab_device::{DType, Device};
use lab_harness::{Plan, Tensor};

use crate::sums::add_rounding;

/// Each element of a part of an arena, and no other; what is not finite stays so. 8 at a time, and one by one.
pub(crate) fn gradients_are_rounded_to_the_nearest(device: &Device) {
    for (start, len) in [(0, 8), (8, 4096), (16, 1), (3, 1000), (8, 2051)] {
        let all = start + len + 9;
        let mut values: Vec<f32> =
            (0..all).map(|n| (n as f32 * 0.731).sin() * 10f32.powi(n as i32 % 9 - 4)).collect();
        (values[start], values[start + len - 1]) = (f32::INFINITY, f32::NAN);
        let mut plan = Plan::new(device);
        let x = plan.input("x", DType::F32, &[all]);
        let out = plan.state("out", DType::BF16, &[all]);
        add_rounding(&mut plan, x.part(start, len), out.part(start, len)).unwrap();
        let before = Tensor::rounded(DType::BF16, &[all], &vec![7.0; all]);
        let x = Tensor::new(&[all], &values);
        let binder = plan.bind().upload("x", &x).unwrap().upload("out", &before).unwrap();
        let mut run = binder.finish().unwrap();
        run.run().unwrap();
        let got = run.read(out).unwrap().values();
        let expected = Tensor::rounded(DType::BF16, &[all], &x.values()).values();
        for n in 0..all {
            let expected = if (start..start + len).contains(&n) { expected[n] } else { 7.0 };
            let is_same = got[n] == expected || (got[n].is_nan() && expected.is_nan());
            assert!(is_same, "{n} of {start}, {len}: expected {expected}, got {}", got[n]);
        }
    }
}

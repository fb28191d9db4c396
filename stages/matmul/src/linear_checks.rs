//! What must hold of a linear layer beside its error bounds.

use lab_device::{DType, Device};
use lab_harness::qkv::checks::schedules;
use lab_harness::suite::{Check, check};
use lab_harness::{Options, Plan, Problem, Tensor, Version, run};
use lab_reference::matmul::matmul;

use crate::linear::{Activation, LINEAR, Lies, Product};

pub(crate) static CHECKS: [Check; 3] = [
    Check { name: "every_epilogue_is_right", run: every_epilogue_is_right },
    Check { name: "gradients_of_a_layer_add_up", run: gradients_of_a_layer_add_up },
    Check { name: "what_a_layer_cannot_take_is_refused", run: what_a_layer_cannot_take_is_refused },
];

fn runs_on(device: &Device) -> bool {
    LINEAR.sources().iter().all(|source| source.runs_on(&device.facts().arch))
}

/// Each activation, a scale, results in f32, and no bias or residual.
fn every_epilogue_is_right(device: &Device) {
    if !runs_on(device) {
        return;
    }
    let info = LINEAR.info();
    let dims = &LINEAR.test_shapes()[2];
    for (n, settings) in [
        &["activation=none", "scale=0.3"][..],
        &["activation=relu", "out=f32"],
        &["activation=silu"],
        &["activation=gelu", "scale=-2", "out=f32"],
    ]
    .iter()
    .enumerate()
    {
        let options = Options::parse(settings, info).unwrap();
        let dtype = info.dtypes[n % 2];
        let problem = Problem { options, ..Problem::new(dims.clone(), dtype) };
        let case = check(&LINEAR, device, &problem);
        assert!(case.passed(), "{settings:?}: {}", case.describe());
        let mut inputs = LINEAR.inputs(&problem);
        inputs.retain(|name, _| ["x", "weight"].contains(&name.as_str()));
        let y = run(&LINEAR, device, &inputs, &problem.options).unwrap().remove("y").unwrap();
        let expected = &LINEAR.reference(&inputs, &problem.options)[0].1;
        let error = relative(&y.values(), expected);
        assert!(error < 4e-3, "{settings:?} without bias and residual: {error}");
    }
}

/// |found - expected| / |expected|.
fn relative(found: &[f64], expected: &[f64]) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(f, e)| f - e)) / norm(&mut expected.iter().copied())
}

/// dx = dy W, and dW += dyᵀ x: a run adds to what the one before has left. Two matrices each, of unlike sizes, in any order of
/// blocks and copies.
fn gradients_of_a_layer_add_up(device: &Device) {
    if !runs_on(device) {
        return;
    }
    let [g, rows, n, k] = [2, 72, 136, 72];
    let dtype = DType::BF16;
    let problem = Problem::new(LINEAR.test_shapes()[0].clone(), dtype);
    let normal = |stream, shape: [usize; 3]| problem.normal(stream, &shape);
    let (x, w, dy) = (normal(0, [g, rows, k]), normal(1, [g, n, k]), normal(2, [g, rows, n]));
    let before = Tensor::new(&[g, n, k], &vec![0.5f32; g * n * k]);
    let transposed: Vec<f64> = (0..g * n * rows)
        .map(|e| dy.values()[e / (n * rows) * n * rows + e % rows * n + e / rows % n])
        .collect();
    let dx_of = matmul(&dy.values(), &w.values(), rows, k, n);
    let dw_of = matmul(&transposed, &x.values(), n, k, rows);
    for device in &schedules(device) {
        let mut plan = Plan::new(device);
        let [x_slot, w_slot, dy_slot] =
            [("x", &x), ("w", &w), ("dy", &dy)].map(|(name, t)| plan.input(name, dtype, &t.shape));
        let dx = plan.output("dx", dtype, &[g, rows, k]);
        let dw = plan.state("dw", DType::F32, &[g, n, k]);
        let by_x = Product {
            dtype,
            out: dtype,
            sizes: [g, rows, k, n],
            lies: [Lies::AlongK, Lies::AcrossK],
            scale: 1.0,
            activation: Activation::Identity,
            a: dy_slot,
            b: w_slot,
            bias: None,
            added: None,
            c: dx,
            accumulates: false,
        };
        let by_w = Product {
            out: DType::F32,
            sizes: [g, n, k, rows],
            lies: [Lies::AcrossK, Lies::AcrossK],
            b: x_slot,
            c: dw,
            accumulates: true,
            ..by_x
        };
        by_x.add(&mut plan).unwrap();
        by_w.add(&mut plan).unwrap();
        let binder = plan.bind().upload("x", &x).unwrap().upload("w", &w).unwrap();
        let binder = binder.upload("dy", &dy).unwrap().upload("dw", &before).unwrap();
        let mut bound = binder.finish().unwrap();
        for runs in 1..3 {
            bound.run().unwrap();
            let error = relative(&bound.read(dx).unwrap().values(), &dx_of);
            assert!(error < 4e-3, "dx: {error}");
            let sums: Vec<f64> = dw_of.iter().map(|v| 0.5 + f64::from(runs) * v).collect();
            let error = relative(&bound.read(dw).unwrap().values(), &sums);
            assert!(error < 2e-6, "dW of {runs} runs on {}: {error}", device.name());
        }
    }
}

fn what_a_layer_cannot_take_is_refused(device: &Device) {
    if !runs_on(device) {
        return;
    }
    let zeros = |shape: &[usize], dtype| {
        Tensor::rounded(dtype, shape, &vec![0.0; shape.iter().product::<usize>()])
    };
    let said = |k: usize, n: usize, residual: DType| {
        let all = [
            ("x", zeros(&[4, k], DType::F16)),
            ("weight", zeros(&[n, k], DType::F16)),
            ("residual", zeros(&[4, n], residual)),
        ];
        let inputs = lab_harness::tensor::tensors(all);
        run(&LINEAR, device, &inputs, &Options::default()).unwrap_err().to_string()
    };
    let why = "expected a multiple of 8, for TMA takes rows of a multiple of 16 bytes, got 12";
    assert_eq!(said(12, 8, DType::F16), format!("K: {why}"));
    assert_eq!(said(8, 12, DType::F16), format!("N: {why}"));
    let refused = said(8, 8, DType::F32);
    assert!(refused.starts_with("tensor 'residual': expected f16, as y is"), "{refused}");
}

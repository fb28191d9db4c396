//! What must hold of a linear layer beside its error bounds.

use lab_device::{DType, Device, DeviceKind};
use lab_harness::suite::schedules;
use lab_harness::suite::{check, without_checks};
use lab_harness::{Dims, Options, Plan, Problem, Tensor, Tensors, Version, distance, run};
use lab_reference::matmul::matmul;

use crate::linear::{Activation, LINEAR, Lies, Product};
use crate::weight_gradient::WeightGradient;

fn runs_on(device: &Device) -> bool {
    LINEAR.sources().iter().all(|source| source.runs_on(&device.facts().arch))
}

/// Wide tiles, two for each block: what comes for the second one comes while the first one leaves.
pub(crate) fn large_layers_are_right(device: &Device) {
    if !runs_on(device) {
        return;
    }
    let rows = device.facts().multiprocessors as usize * 128 - 8;
    let device = &without_checks(device).unwrap();
    let dims = [("G", 1), ("M", rows), ("N", 512), ("K", 72)];
    for &dtype in LINEAR.info().dtypes {
        let case = check(&LINEAR, device, &Problem::new(Dims::new(dims), dtype));
        assert!(case.passed(), "{}", case.describe());
    }
}

/// Each activation, a scale, results in f32, and no bias or residual.
pub(crate) fn every_epilogue_is_right(device: &Device) {
    if !runs_on(device) {
        return;
    }
    let info = LINEAR.info();
    let dims = &LINEAR.test_shapes()[2];
    for (n, settings) in [
        &["activation=none", "scale=0.3"][..],
        &["activation=silu"],
        &["activation=relu", "out=f32"],
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
        let error = distance(&y.values(), expected);
        // In f32 nothing is rounded but the sums.
        let bound = if y.dtype == DType::F32 { 4e-6 } else { 4e-3 };
        assert!(error < bound, "{settings:?} without bias and residual: {error}");
        nan_stays_in_its_row(device, &problem, inputs, settings);
    }
}

/// Of x, whatever the activation.
fn nan_stays_in_its_row(
    device: &Device,
    problem: &Problem,
    mut inputs: Tensors,
    settings: &[&str],
) {
    let x = &inputs["x"];
    let (shape, mut values) = (x.shape.clone(), x.values());
    let [m, k] = [shape[shape.len() - 2], shape[shape.len() - 1]];
    values[7 * k + 5] = f64::NAN;
    inputs.insert("x".into(), Tensor::rounded(problem.dtype, &shape, &values));
    let y = run(&LINEAR, device, &inputs, &problem.options).unwrap().remove("y").unwrap();
    for (row, y) in y.values().chunks(y.values().len() / m).enumerate() {
        assert!(y.iter().all(|v| v.is_nan() == (row == 7)), "{settings:?}: row {row}");
    }
}

/// dx = dy W, and dW += dyᵀ x / 2: a run adds to what the one before has left. Two matrices each, no two sizes alike, in any
/// order of blocks and copies.
pub(crate) fn gradients_of_a_layer_add_up(device: &Device) {
    if !runs_on(device) {
        return;
    }
    let [g, rows, n, k] = [2, 72, 136, 200];
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
            scale: 0.5,
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
            let error = distance(&bound.read(dx).unwrap().values(), &dx_of);
            assert!(error < 4e-3, "dx: {error}");
            let sums: Vec<f64> = dw_of.iter().map(|v| 0.5 + 0.5 * f64::from(runs) * v).collect();
            let error = distance(&bound.read(dw).unwrap().values(), &sums);
            assert!(error < 2e-6, "dW of {runs} runs on {}: {error}", device.name());
        }
    }
}

/// y = x Wᵀ and dx = dy W alone, several tiles a block, of fewer steps than a tile has panels and of more: what linear.cu makes of
/// them where zeros are added, and linear_turns.cu, to the bit, in any order of blocks and copies.
pub(crate) fn bare_products_have_the_same_bits(device: &Device) {
    if !runs_on(device) {
        return;
    }
    let rows = device.facts().multiprocessors as usize * 160 - 8;
    let problem = Problem::new(LINEAR.test_shapes()[0].clone(), DType::BF16);
    let (in_any_order, unchecked) = (schedules(device), [without_checks(device).unwrap()]);
    let (along, across) = ((DType::BF16, Lies::AlongK), (DType::F16, Lies::AcrossK));
    let cases =
        [(72, &in_any_order[..], along), (72, &unchecked, across), (520, &unchecked, across)];
    for (k, devices, (dtype, lies)) in cases {
        let n = 264;
        let normal = |stream, shape| problem.normal_around(0.0, dtype, stream, shape);
        let (a, b) = (normal(0, &[rows, k]), normal(1, &[n * k]));
        for device in devices {
            let mut plan = Plan::new(device);
            let [a_slot, b_slot] =
                [("a", &a), ("b", &b)].map(|(name, t)| plan.input(name, dtype, &t.shape));
            let zeros = plan.zeros(dtype, rows * n);
            let [bare, added, in_turns] =
                ["bare", "added", "in turns"].map(|name| plan.output(name, dtype, &[rows, n]));
            let product = Product {
                dtype,
                out: dtype,
                sizes: [1, rows, n, k],
                lies: [Lies::AlongK, lies],
                scale: 1.0,
                activation: Activation::Identity,
                a: a_slot,
                b: b_slot,
                bias: None,
                added: None,
                c: bare,
                accumulates: false,
            };
            product.add(&mut plan).unwrap();
            let first = plan.kernels()[0].name().to_owned();
            assert!(first.starts_with("linear_behind"), "{first}");
            Product { added: Some(zeros), c: added, ..product }.add_alone(&mut plan).unwrap();
            let turned = Product { added: Some(zeros), c: in_turns, ..product };
            turned.add_in_turns(&mut plan).unwrap();
            let binder = plan.bind().upload("a", &a).unwrap().upload("b", &b).unwrap();
            let mut bound = binder.finish().unwrap();
            bound.run().unwrap();
            let [bare, added, in_turns] =
                [bare, added, in_turns].map(|slot| bound.read(slot).unwrap().values());
            assert_eq!(bare, added, "{dtype}, {lies:?}, K = {k}");
            assert_eq!(bare, in_turns, "{dtype}, {lies:?}, K = {k}, in turns");
        }
    }
}

/// Of one product with a residual: turns are for wide results of several tiles a warpgroup, all others go without.
pub(crate) fn wide_results_take_turns(device: &Device) {
    if !runs_on(device) {
        return;
    }
    let rows = device.facts().multiprocessors as usize * 128;
    let (dtype, k) = (DType::BF16, 64);
    for (rows, n, name) in
        [(rows, 2048, "linear_turns"), (rows, 1024, "linear"), (128, 2048, "linear")]
    {
        let mut plan = Plan::new(device);
        let [a, b, added] = [("a", [rows, k]), ("b", [n, k]), ("added", [rows, n])]
            .map(|(name, shape)| plan.input(name, dtype, &shape));
        let c = plan.output("c", dtype, &[rows, n]);
        let product = Product {
            dtype,
            out: dtype,
            sizes: [1, rows, n, k],
            lies: [Lies::AlongK, Lies::AlongK],
            scale: 1.0,
            activation: Activation::Gelu,
            a,
            b,
            bias: None,
            added: Some(added),
            c,
            accumulates: false,
        };
        product.add(&mut plan).unwrap();
        let kernel = plan.kernels()[0].name().to_owned();
        assert_eq!(kernel.split('<').next(), Some(name), "{rows} x {n}: {kernel}");
    }
}

/// dW += dyᵀ x, in one part, in parts of two lengths, and with one for each step, in any order of blocks and copies: runs add up,
/// and give the same bits in each.
pub(crate) fn weight_gradients_add_up(device: &Device) {
    let ([rows, n, k], dtype) = ([330, 136, 264], DType::BF16);
    if !WeightGradient::takes(device, dtype, [rows, n, k]) {
        return;
    }
    let problem = Problem::new(LINEAR.test_shapes()[0].clone(), dtype);
    let (dy, x) = (problem.normal(0, &[rows, n]), problem.normal(1, &[rows, k]));
    let before = Tensor::new(&[n, k], &vec![0.5f32; n * k]);
    let of_dy = dy.values();
    let transposed: Vec<f64> = (0..n * rows).map(|e| of_dy[e % rows * n + e / rows]).collect();
    let exact = matmul(&transposed, &x.values(), n, k, rows);
    let runs = |device: &Device, parts| {
        let mut plan = Plan::new(device);
        let [dy_slot, x_slot] =
            [("dy", &dy), ("x", &x)].map(|(name, t)| plan.input(name, dtype, &t.shape));
        let dw = plan.state("dw", DType::F32, &[n, k]);
        let (sizes, accumulates) = ([rows, n, k], true);
        let (dy_of, x_of, squares) = (dy_slot, x_slot, None);
        let op =
            WeightGradient { dtype, sizes, dy: dy_of, x: x_of, dw, accumulates, parts, squares };
        let squares = plan.state("squares", DType::F64, &[op.sums_of_squares(device)]);
        let squared = WeightGradient { squares: Some(squares), ..op };
        squared.add(&mut plan).map_err(|e| e.to_string())?;
        let binder = plan.bind().upload("dy", &dy).unwrap().upload("x", &x).unwrap();
        let mut bound = binder.upload("dw", &before).unwrap().finish().unwrap();
        Ok::<_, String>([(); 2].map(|()| {
            bound.run().unwrap();
            let dw = bound.read(dw).unwrap();
            let got: f64 = bound.read(squares).unwrap().values().iter().sum();
            let sum: f64 = dw.values().iter().map(|g| g * g).sum();
            assert!((got / sum - 1.0).abs() < 1e-12, "squares of dW: {got}, not {sum}");
            dw
        }))
    };
    for parts in [None, Some(1), Some(4), Some(6)] {
        let first = runs(device, parts).unwrap();
        for (n, dw) in first.iter().enumerate() {
            let sums: Vec<f64> = exact.iter().map(|v| 0.5 + (n + 1) as f64 * v).collect();
            let error = distance(&dw.values(), &sums);
            assert!(error < 2e-6, "dW of {} runs in {parts:?} parts: {error}", n + 1);
        }
        // One way of cutting: on the emulator each schedule takes seconds.
        for device in schedules(device).iter().filter(|_| parts == Some(4)) {
            assert!(runs(device, parts).unwrap() == first, "{parts:?} on {}", device.name());
        }
    }
    for parts in [0, 7] {
        let refused = runs(device, Some(parts)).unwrap_err();
        let why = "parts: expected 1 to 6, one for each step of 64 rows at most";
        assert_eq!(refused, format!("{why}, got {parts}"));
    }

    let mut plan = Plan::new(device);
    let [dy, x] = [("dy", n), ("x", k)].map(|(name, c)| plan.input(name, dtype, &[rows, c]));
    let long = plan.state("dw", DType::F32, &[n * k + 4]);
    let (sizes, accumulates, parts, squares) = ([rows, n, k], false, None, None);
    let dw = long.part(4, n * k);
    let right = WeightGradient { dtype, sizes, dy, x, dw, accumulates, parts, squares };
    let squares = Some(plan.scratch(DType::F64, 3));
    for (wrong, why) in [
        (WeightGradient { dtype: DType::F32, ..right }, "dtype of a gradient by weights"),
        (WeightGradient { sizes: [rows, n, 12], ..right }, "K: expected a multiple of 8"),
        (WeightGradient { dy: x, ..right }, "dy: expected 44880 elements"),
        (WeightGradient { dw: long, ..right }, "dw: expected 35904 elements"),
        (WeightGradient { dw: long.part(1, n * k), ..right }, "begin of dw: expected a multiple"),
        (
            WeightGradient { parts: Some(1), squares, ..right },
            "squares of dw: expected 32 elements",
        ),
        (
            WeightGradient { parts: Some(2), squares, ..right },
            "squares of dw: expected 281 elements",
        ),
    ] {
        let refused = wrong.add(&mut plan).unwrap_err().to_string();
        assert!(refused.starts_with(why), "{refused}");
    }
    right.add(&mut plan).unwrap();
}

pub(crate) fn what_a_layer_cannot_take_is_refused(device: &Device) {
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
    // On a GPU CUDA cores multiply then; the emulator has that kernel of f32 only.
    let is_emulator = device.kind() == DeviceKind::Emulator;
    if is_emulator {
        let why = "expected a multiple of 8, for TMA takes rows of a multiple of 16 bytes, got 12";
        assert_eq!(said(12, 8, DType::F16), format!("K: {why}"));
        assert_eq!(said(8, 12, DType::F16), format!("N: {why}"));
    }
    let refused = said(8, 8, DType::F32);
    assert!(refused.starts_with("tensor 'residual': expected f16, as y is"), "{refused}");

    let mut plan = Plan::new(device);
    let [a, b] = ["a", "b"].map(|name| plan.input(name, DType::F16, &[8, 16]));
    let long = plan.input("long", DType::F16, &[4, 32]);
    let [c, short, few] =
        [("c", 64), ("short", 8), ("few", 16)].map(|(name, n)| plan.output(name, DType::F16, &[n]));
    let product = Product {
        dtype: DType::F16,
        out: DType::F16,
        sizes: [1, 8, 8, 16],
        lies: [Lies::AlongK; 2],
        scale: 1.0,
        activation: Activation::Identity,
        a,
        b,
        bias: None,
        added: None,
        c,
        accumulates: false,
    };
    for (wrong, why) in [
        (
            Product { dtype: DType::F64, ..product },
            "types of a product: expected f16, bf16 or f32, into",
        ),
        (
            Product { out: DType::BF16, ..product },
            "types of a product: expected f16, bf16 or f32, into",
        ),
        (Product { accumulates: true, ..product }, "what a product is added to: expected f32"),
        (Product { bias: Some(c), ..product }, "bias: expected 8 elements, got 64"),
        (Product { c: short, ..product }, "C: expected 64 elements, got 8"),
        (Product { sizes: [1, 4, 8, 16], ..product }, "A: expected 64 elements, got 128"),
        (Product { sizes: [1, 16, 16, 8], ..product }, "C: expected 256 elements, got 64"),
    ] {
        let refused = wrong.add(&mut plan).unwrap_err().to_string();
        assert!(refused.starts_with(why), "{refused}");
    }
    let lies = [Lies::AcrossK; 2];
    let narrow = Product { sizes: [1, 4, 4, 32], lies, a: long, b: long, c: few, ..product };
    let outcome = narrow.add(&mut plan).map_err(|e| e.to_string());
    if is_emulator {
        assert!(outcome.unwrap_err().starts_with("M: expected a multiple of 8"))
    } else {
        outcome.unwrap()
    }
    product.add(&mut plan).unwrap();
}

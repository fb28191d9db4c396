//! What must hold beside the error bounds: parts, gates, the same bits for any R, and what is refused.

use lab_device::{DType, Device};
use lab_harness::suite::Check;
use lab_harness::tensor::tensors;
use lab_harness::{Dims, Plan, Prepared as _, Problem, Tensor, Tensors, run};
use lab_reference::matmul::matmul;

use crate::few_rows::{FewRows, GateColumns, Heads, Norm, Way};
use crate::{
    BYTES, Before, COLUMNS, DOTS, Dequantize, MMA, MMA_INT8, PERSISTENT, RING, SPLIT, STAGE, UNITS,
    WGMMA, WGMMA_INT8, quantize_rows,
};

pub(crate) static CHECKS: &[Check] = &[
    Check::new(
        "a_row_has_the_same_bits_among_any_others",
        a_row_has_the_same_bits_among_any_others,
    ),
    Check::new("int8_becomes_what_it_stands_for", int8_becomes_what_it_stands_for),
    Check::new("columns_go_to_parts", columns_go_to_parts),
    Check::new("gates_and_up_are_one_launch", gates_and_up_are_one_launch),
    Check::new("rows_are_normed_on_the_way", rows_are_normed_on_the_way),
    Check::new("heads_are_normed_on_the_way", heads_are_normed_on_the_way),
    Check::new("long_rows_leave_room_for_sums", long_rows_leave_room_for_sums),
    Check::new("gates_are_columns_of_the_product", gates_are_columns_of_the_product),
    Check::new("products_make_bytes_for_the_next", products_make_bytes_for_the_next),
    Check::new("nan_stays_in_its_row", nan_stays_in_its_row),
    Check::new("what_does_not_fit_is_refused_by_name", what_does_not_fit_is_refused_by_name),
];

/// Each element its number times the scale of its row in f32, then rounded; more than a block of them, the last one not full.
fn int8_becomes_what_it_stands_for(device: &Device) {
    let [n, k] = [37, 144];
    let numbers: Vec<i8> = (0..n * k).map(|e| (e * 7919 % 255) as u8 as i8).collect();
    let scales: Vec<f32> = (0..n).map(|row| 0.01 + row as f32 / 64.0).collect();
    let exact: Vec<f64> =
        (0..n * k).map(|e| f64::from(f32::from(numbers[e]) * scales[e / k])).collect();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let mut plan = Plan::new(device);
        let weight = plan.input("weight", DType::I8, &[n, k]);
        let scale = plan.input("scale", DType::F32, &[n]);
        let made = Dequantize { dtype, n, k, weight, scale }.add(&mut plan).unwrap();
        plan.keep(made);
        let weight = Tensor::new(&[n, k], &numbers);
        let binder = plan.bind().upload("weight", &weight).unwrap();
        let mut bound =
            binder.upload("scale", &Tensor::new(&[n], &scales)).unwrap().finish().unwrap();
        bound.run().unwrap();
        let rounded = Tensor::rounded(dtype, &[n * k], &exact);
        let found = bound.read(made).unwrap().values();
        let wrong = found.iter().zip(rounded.values()).position(|(found, exact)| *found != exact);
        assert_eq!(wrong, None, "{dtype}");
    }
}

fn problem(dtype: DType, [r, n, k]: [usize; 3]) -> Problem {
    Problem::new(Dims::new([("R", r), ("N", n), ("K", k)]), dtype)
}

/// Of every version: a sequence does not notice who is decoded beside it.
fn a_row_has_the_same_bits_among_any_others(device: &Device) {
    for version in STAGE.versions {
        let info = version.info();
        if !version.sources().iter().all(|s| s.runs_on(&device.facts().arch)) {
            continue;
        }
        let dtype = *info.dtypes.last().expect("it has types");
        let most = info.dims[0].max;
        // Of many rows blocks side by side share x. A part of k has several steps, which begin at different columns.
        let [n, k] = if most > crate::MOST_ROWS { [400, 2064] } else { [24, 1296] };
        let all = version.inputs(&problem(dtype, [most, n, k]));
        let together =
            run(*version, device, &all, &Default::default()).unwrap().remove("y").unwrap();
        for rows in [1, 2, 5, 9, 17, 40, 70].into_iter().filter(|rows| *rows <= most) {
            let mut few = all.clone();
            for (name, columns) in [("x", k), ("residual", n)] {
                let bytes = all[name].bytes[..rows * columns * dtype.size()].to_vec();
                few.insert(name.into(), Tensor { dtype, shape: vec![rows, columns], bytes });
            }
            let y = run(*version, device, &few, &Default::default()).unwrap().remove("y").unwrap();
            assert!(
                y.bytes == together.bytes[..y.bytes.len()],
                "{} of {rows} rows on {}",
                info.full_name(),
                device.name()
            );
        }
    }
}

fn run_plan(plan: Plan, inputs: &Tensors) -> Tensor {
    let mut run = plan.bind().upload_inputs(inputs).unwrap().finish().unwrap();
    run.run().unwrap();
    run.all_written().unwrap();
    run.outputs().unwrap().remove("y").unwrap()
}

/// Each with the way that takes it on this device.
fn ways(device: &Device) -> Vec<(Way, DType, bool)> {
    let mut all = vec![(Way::Flight, DType::F32, false), (Way::Flight, DType::F16, true)];
    if FewRows::takes(device, DType::F16, [1, 16])[1] {
        // Of clusters only where there are some.
        let both = [(DType::BF16, false), (DType::F16, true)];
        let mma = [Way::Mma, Way::Persistent, Way::Split, Way::Columns, Way::Ring, Way::Wgmma];
        let mma = mma.iter().filter(|way| way.source().runs_on(&device.facts().arch));
        all.extend(mma.flat_map(|way| both.map(|(dtype, int8)| (*way, dtype, int8))));
        if Way::Bytes.source().runs_on(&device.facts().arch) {
            all.extend([DType::BF16, DType::F16].map(|dtype| (Way::Bytes, dtype, true)));
            all.extend([DType::BF16, DType::F16].map(|dtype| (Way::Dots, dtype, true)));
            all.extend([DType::BF16, DType::F16].map(|dtype| (Way::Units, dtype, true)));
        }
    }
    all
}

/// x, W, its scale where it is of int8; and W in f64.
fn operands(dtype: DType, int8: bool, [rows, n, k]: [usize; 3]) -> (Tensors, Vec<f64>) {
    let of = problem(dtype, [rows, n, k]);
    let x = of.normal(0, &[rows, k]);
    let w: Vec<f64> =
        of.normal(1, &[n, k]).values().iter().map(|w| w / (k as f64).sqrt()).collect();
    if int8 {
        let w: Vec<f32> = w.iter().map(|w| *w as f32).collect();
        let (q, scales) = quantize_rows(&w, k).unwrap();
        let exact = q.iter().enumerate().map(|(e, q)| f64::from(*q) * f64::from(scales[e / k]));
        let exact = exact.collect();
        let (weight, scale) = (Tensor::new(&[n, k], &q), Tensor::new(&[n], &scales));
        return (tensors([("x", x), ("weight", weight), ("scale", scale)]), exact);
    }
    let weight = Tensor::rounded(dtype, &[n, k], &w);
    let exact = weight.values();
    (tensors([("x", x), ("weight", weight)]), exact)
}

/// x Wᵀ in f64.
fn exact(x: &Tensor, w: &[f64], n: usize) -> Vec<f64> {
    let k = w.len() / n;
    let transposed: Vec<f64> = (0..k * n).map(|e| w[e % n * k + e / n]).collect();
    let x = x.values();
    matmul(&x, &transposed, x.len() / k, n, k)
}

fn planned(
    device: &Device,
    (way, dtype, int8): (Way, DType, bool),
    [rows, n, k]: [usize; 3],
    gated: bool,
    parts: &[usize],
) -> Plan {
    let mut plan = Plan::new(device);
    let of_weight = if gated { 2 * n } else { n };
    let x = plan.input("x", dtype, &[rows, k]);
    let of = if int8 { DType::I8 } else { dtype };
    let weight = plan.input("weight", of, &[of_weight, k]);
    let scale = int8.then(|| plan.input("scale", DType::F32, &[of_weight]));
    let y = Some(plan.output("y", dtype, &[rows, n]));
    let (way, added, norm) = (Some(way), None, None);
    FewRows { dtype, rows, n, k, x, weight, scale, norm, gates: None, added, gated, parts, y, way }
        .add(&mut plan)
        .unwrap();
    plan
}

fn assert_close(what: &str, got: &[f64], expected: &[f64], bound: f64) {
    assert_eq!(got.len(), expected.len(), "{what}: elements");
    let error = lab_harness::distance(got, expected);
    assert!(error <= bound, "{what}: error {error:.2e}, bound {bound:.0e}");
}

fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 5e-4,
        DType::BF16 => 4e-3,
        _ => 2e-6,
    }
}

/// As the product before a mixer has them: q, k, v, the gate, and two columns a head.
fn columns_go_to_parts(device: &Device) {
    let parts = [16, 32, 37, 55];
    for way in ways(device) {
        let sizes = [3.min(way.0.most_rows()), 59, 144];
        let [rows, n, _] = sizes;
        for parts in [&parts[..], &parts[..1]] {
            let (inputs, w) = operands(way.1, way.2, sizes);
            let y = run_plan(planned(device, way, sizes, false, parts), &inputs).values();
            let rowwise = exact(&inputs["x"], &w, n);
            let mut expected = Vec::new();
            let begins = [&[0], parts].concat();
            for (p, begin) in begins.iter().enumerate() {
                let end = begins.get(p + 1).copied().unwrap_or(n);
                for r in 0..rows {
                    expected.extend(&rowwise[r * n + begin..r * n + end]);
                }
            }
            assert_close(&format!("{way:?} {parts:?}"), &y, &expected, rounding(way.1));
        }
    }
}

fn gates_and_up_are_one_launch(device: &Device) {
    for way in ways(device).into_iter().filter(|way| way.0.is_of_halves()) {
        // The last: more rows of W than a block of Columns has places for, were it alone.
        for sizes in [[1, 8, 64], [5, 27, 336], [17, 40, 1040], [2, 27, 336], [1, 1100, 32]] {
            let [rows, n, k] = sizes;
            if rows > way.0.most_rows() {
                continue;
            }
            let (inputs, w) = operands(way.1, way.2, [rows, 2 * n, k]);
            let y = run_plan(planned(device, way, sizes, true, &[]), &inputs).values();
            let both = exact(&inputs["x"], &w, 2 * n);
            let cell = |e: usize| {
                let (gate, up) = (both[e / n * 2 * n + e % n], both[e / n * 2 * n + n + e % n]);
                gate / (1.0 + (-gate).exp()) * up
            };
            let expected: Vec<f64> = (0..rows * n).map(cell).collect();
            assert_close(&format!("{way:?} {sizes:?}"), &y, &expected, rounding(way.1));
        }
    }
}

/// As if a norm stood before the product; with several tiles a block, gates, and rows longer than a block brings at a time.
fn rows_are_normed_on_the_way(device: &Device) {
    for way in ways(device).into_iter().filter(|way| way.0.norms()) {
        let (_, dtype, int8) = way;
        for ([rows, n, k], gated) in [
            ([1, 40, 64], false),
            ([5, 1500, 80], false),
            ([8, 24, 2064], true),
            ([2, 20, 8208], false),
        ] {
            let rows = rows.min(way.0.most_rows());
            let of_weight = if gated { 2 * n } else { n };
            let (mut inputs, w) = operands(dtype, int8, [rows, of_weight, k]);
            let of = problem(dtype, [rows, n, k]);
            // Rows of all sizes.
            let x: Vec<f64> = inputs["x"].values();
            let x: Vec<f64> =
                x.iter().enumerate().map(|(e, x)| x * (0.01 + (e / k) as f64)).collect();
            inputs.insert("x".into(), Tensor::rounded(dtype, &[rows, k], &x));
            inputs.insert("norm".into(), of.normal_around(1.0, dtype, 5, &[k]));
            let mut plan = Plan::new(device);
            let x = plan.input("x", dtype, &[rows, k]);
            let of_type = if int8 { DType::I8 } else { dtype };
            let weight = plan.input("weight", of_type, &[of_weight, k]);
            let scale = int8.then(|| plan.input("scale", DType::F32, &[of_weight]));
            let norm =
                Some(Norm { weight: plan.input("norm", dtype, &[k]), eps: 1e-3, heads: None });
            let y = Some(plan.output("y", dtype, &[rows, n]));
            let (way, added, parts) = (Some(way.0), None, &[][..]);
            FewRows {
                dtype,
                rows,
                n,
                k,
                x,
                weight,
                scale,
                norm,
                gates: None,
                added,
                gated,
                parts,
                y,
                way,
            }
            .add(&mut plan)
            .unwrap();
            let y = run_plan(plan, &inputs).values();
            let (x, norm) = (inputs["x"].values(), inputs["norm"].values());
            let normed: Vec<f64> = x
                .chunks(k)
                .flat_map(|row| {
                    let mean = row.iter().map(|x| x * x).sum::<f64>() / k as f64;
                    let rstd = 1.0 / (mean + 1e-3).sqrt();
                    row.iter().zip(&norm).map(|(x, w)| x * rstd * w).collect::<Vec<_>>()
                })
                .collect();
            // Rounded once, as by a norm of its own.
            let normed = Tensor::rounded(dtype, &[rows, k], &normed);
            let all = exact(&normed, &w, of_weight);
            let cell = |e: usize| {
                let (r, c) = (e / n, e % n);
                let gate = all[r * of_weight + c];
                if gated { gate / (1.0 + (-gate).exp()) * all[r * of_weight + n + c] } else { gate }
            };
            let expected: Vec<f64> = (0..rows * n).map(cell).collect();
            let what = format!("{way:?} {rows} x {n} x {k}");
            assert_close(&what, &y, &expected, 1.5 * rounding(dtype));
        }
    }
}

/// As if the gated norm of heads stood before the product.
fn heads_are_normed_on_the_way(device: &Device) {
    for way in ways(device).into_iter().filter(|way| way.0.norms()) {
        let (_, dtype, int8) = way;
        for ([rows, n, k], width) in [([1, 40, 96], 48), ([7, 24, 1024], 512), ([3, 20, 272], 272)]
        {
            let rows = rows.min(way.0.most_rows());
            let (mut inputs, w) = operands(dtype, int8, [rows, n, k]);
            let of = problem(dtype, [rows, n, k]);
            inputs.insert("norm".into(), of.normal_around(1.0, dtype, 5, &[k]));
            inputs.insert("ogate".into(), of.normal(6, &[rows, k]));
            // A mean that is not 0.
            inputs.insert("x".into(), of.normal_around(0.5, dtype, 7, &[rows, k]));
            let mut plan = Plan::new(device);
            let [x, ogate] = ["x", "ogate"].map(|name| plan.input(name, dtype, &[rows, k]));
            let of_type = if int8 { DType::I8 } else { dtype };
            let weight = plan.input("weight", of_type, &[n, k]);
            let scale = int8.then(|| plan.input("scale", DType::F32, &[n]));
            let heads = Some(Heads { width, ogate });
            let norm = Some(Norm { weight: plan.input("norm", dtype, &[k]), eps: 1e-3, heads });
            let y = Some(plan.output("y", dtype, &[rows, n]));
            let (way, added, parts, gated) = (Some(way.0), None, &[][..], false);
            FewRows {
                dtype,
                rows,
                n,
                k,
                x,
                weight,
                scale,
                norm,
                gates: None,
                added,
                gated,
                parts,
                y,
                way,
            }
            .add(&mut plan)
            .unwrap();
            let y = run_plan(plan, &inputs).values();
            let [x, ogate, norm] = ["x", "ogate", "norm"].map(|name| inputs[name].values());
            let mut z = vec![0.0; rows * k];
            for (head, x) in x.chunks(width).enumerate() {
                let mean = x.iter().sum::<f64>() / width as f64;
                let variance =
                    x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / width as f64;
                for (c, x) in x.iter().enumerate() {
                    let e = head * width + c;
                    let sigmoid = 1.0 / (1.0 + (-ogate[e]).exp());
                    z[e] = (x - mean) / (variance + 1e-3).sqrt() * sigmoid * norm[e % k];
                }
            }
            let z = Tensor::rounded(dtype, &[rows, k], &z);
            let what = format!("{way:?} {rows} {width}");
            assert_close(&what, &y, &exact(&z, &w, n), 1.5 * rounding(dtype));
        }
    }
}

/// What is chosen for rows takes the longest that it is chosen for, with all that a norm of heads has beside x.
fn long_rows_leave_room_for_sums(device: &Device) {
    let (dtype, n) = (DType::BF16, 4096);
    for [rows, k] in [[1, 10944], [2, 10944], [1, 16384], [2, 16384], [8, 4096]] {
        if !FewRows::norms(device, dtype, [rows, k]) {
            continue;
        }
        let mut plan = Plan::new(device);
        let [x, ogate] = ["x", "ogate"].map(|name| plan.input(name, dtype, &[rows, k]));
        let heads = Some(Heads { width: 32, ogate });
        let norm = Some(Norm { weight: plan.input("norm", dtype, &[k]), eps: 1e-3, heads });
        let weight = plan.input("weight", dtype, &[n, k]);
        FewRows {
            dtype,
            rows,
            n,
            k,
            x,
            weight,
            scale: None,
            norm,
            gates: None,
            added: None,
            gated: false,
            parts: &[],
            y: None,
            way: None,
        }
        .add(&mut plan)
        .unwrap_or_else(|error| panic!("{rows} of {k}: {error}"));
    }
}

/// Where a tile has columns of the parts before, and where columns behind the gates are nobody's.
fn gates_are_columns_of_the_product(device: &Device) {
    for way in ways(device).into_iter().filter(|way| way.0.has_gates()) {
        let (_, dtype, int8) = way;
        let ([n, k], heads, cap) = ([59, 96], 5, 1.5);
        let rows = 3.min(way.0.most_rows());
        let parts = [16, 24, 40, 45];
        let (mut inputs, w) = operands(dtype, int8, [rows, n, k]);
        let of = problem(dtype, [rows, n, k]);
        inputs.insert("bias".into(), of.normal(5, &[2 * heads]));
        let mut plan = Plan::new(device);
        let x = plan.input("x", dtype, &[rows, k]);
        let of_type = if int8 { DType::I8 } else { dtype };
        let weight = plan.input("weight", of_type, &[n, k]);
        let scale = int8.then(|| plan.input("scale", DType::F32, &[n]));
        let bias = plan.input("bias", dtype, &[2 * heads]);
        let to = plan.output("y", DType::F32, &[2, rows, heads]);
        let gates = Some(GateColumns { heads, cap, bias, to });
        let (way, added, norm, gated, y) = (Some(way.0), None, None, false, None);
        FewRows {
            dtype,
            rows,
            n,
            k,
            x,
            weight,
            scale,
            norm,
            gates,
            added,
            gated,
            parts: &parts,
            y,
            way,
        }
        .add(&mut plan)
        .unwrap();
        let found = run_plan(plan, &inputs).values();
        let (all, bias) = (exact(&inputs["x"], &w, n), inputs["bias"].values());
        let cell = |e: usize| {
            let (c, r) = (e / (rows * heads) * heads + e % heads, e / heads % rows);
            let a = all[r * n + parts[3] + c] + bias[c];
            f64::from(cap) * (a / f64::from(cap)).tanh()
        };
        let expected: Vec<f64> = (0..2 * rows * heads).map(cell).collect();
        // By Bytes each number of x is off by half of 1 / 32512 of the largest at most, four times the others: of random signs.
        let bound = if way.is_some_and(|way| [Way::Bytes, Way::Dots, Way::Units].contains(&way)) {
            4e-5
        } else {
            4e-6
        };
        assert_close(&format!("{way:?}"), &found, &expected, bound);
    }
}

/// Of two products one behind the other: with a norm between them, and SwiGLU. Tiles of 128 rows and of 192; stretches that end within a
/// step; with fewer rows the same bits.
fn products_make_bytes_for_the_next(device: &Device) {
    if !Way::Units.source().runs_on(&device.facts().arch) {
        return;
    }
    let dtype = DType::BF16;
    for ([rows, k, n, m], gated) in [
        ([5, 64, 400, 72], false),
        ([40, 160, 3072, 208], false),
        ([9, 96, 304, 40], true),
        ([33, 48, 2064, 24], true),
    ] {
        let both = if gated { 2 * n } else { n };
        let (mut inputs, first) = operands(dtype, true, [rows, both, k]);
        let (others, second) = operands(dtype, true, [rows, m, n]);
        let of = problem(dtype, [rows, n, m]);
        for name in ["weight", "scale"] {
            inputs.insert(format!("{name}.2"), others[name].clone());
        }
        inputs.insert("norm".into(), of.normal_around(1.0, dtype, 5, &[n]));
        inputs.insert("residual".into(), of.normal(6, &[rows, n]));
        let run = |rows: usize, inputs: &Tensors| {
            let mut plan = Plan::new(device);
            let x = plan.input("x", dtype, &[rows, k]);
            let weight = plan.input("weight", DType::I8, &[both, k]);
            let scale = Some(plan.input("scale", DType::F32, &[both]));
            let residual = plan.input("residual", dtype, &[rows, n]);
            let weight_of_norm = plan.input("norm", dtype, &[n]);
            let following = plan.input("weight.2", DType::I8, &[m, n]);
            let of_following = Some(plan.input("scale.2", DType::F32, &[m]));
            let y = Some(plan.output("y", dtype, &[rows, m]));
            let added = (!gated).then_some(residual);
            let (way, parts, norm, gates) = (Some(Way::Units), &[][..], None, None);
            let made = FewRows {
                dtype,
                rows,
                n,
                k,
                x,
                weight,
                scale,
                norm,
                gates,
                added,
                gated,
                parts,
                y: None,
                way,
            };
            let x = made.add(&mut plan).unwrap();
            let before = Before::of_last(&plan, &FewRows { y: Some(x), ..made }).unwrap();
            let launches = plan.len();
            let norm = (!gated).then_some(Norm { weight: weight_of_norm, eps: 1e-3, heads: None });
            let next = FewRows {
                n: m,
                k: n,
                x,
                weight: following,
                scale: of_following,
                norm,
                added: None,
                gated: false,
                y,
                ..made
            };
            before.add_next(&mut plan, &next).unwrap();
            assert_eq!(plan.len(), launches + 1, "no launch makes bytes");
            run_plan(plan, inputs)
        };
        let y = run(rows, &inputs);
        let all = exact(&inputs["x"], &first, both);
        let (residual, norm) = (inputs["residual"].values(), inputs["norm"].values());
        let z: Vec<f64> = (0..rows * n)
            .map(|e| {
                let gate = all[e / n * both + e % n];
                match gated {
                    true => gate / (1.0 + (-gate).exp()) * all[e / n * both + n + e % n],
                    false => gate + residual[e],
                }
            })
            .collect();
        let mut z = Tensor::rounded(dtype, &[rows, n], &z);
        if !gated {
            let normed: Vec<f64> = z
                .values()
                .chunks(n)
                .flat_map(|row| {
                    let mean = row.iter().map(|z| z * z).sum::<f64>() / n as f64;
                    let rstd = 1.0 / (mean + 1e-3).sqrt();
                    row.iter().zip(&norm).map(|(z, w)| z * rstd * w).collect::<Vec<_>>()
                })
                .collect();
            z = Tensor::new(&[rows, n], &normed);
        }
        let expected = exact(&z, &second, m);
        assert_close(&format!("{rows} {n} {gated}"), &y.values(), &expected, 1.5 * rounding(dtype));
        let few = rows / 2;
        let mut of_few = inputs.clone();
        for (name, columns) in [("x", k), ("residual", n)] {
            let bytes = inputs[name].bytes[..few * columns * dtype.size()].to_vec();
            of_few.insert(name.into(), Tensor { dtype, shape: vec![few, columns], bytes });
        }
        let fewer = run(few, &of_few);
        assert!(fewer.bytes == y.bytes[..fewer.bytes.len()], "{few} of {rows} rows");
    }
}

/// Rows of a tile that are not there, and columns past the end, add nothing to others, whatever they hold.
fn nan_stays_in_its_row(device: &Device) {
    for version in [
        &MMA,
        &MMA_INT8,
        &PERSISTENT,
        &SPLIT,
        &COLUMNS,
        &RING,
        &DOTS,
        &WGMMA,
        &WGMMA_INT8,
        &BYTES,
        &UNITS,
    ] {
        let info = lab_harness::Version::info(version);
        if !lab_harness::Version::sources(version).iter().all(|s| s.runs_on(&device.facts().arch)) {
            continue;
        }
        let [rows, n, k] = [9.min(info.dims[0].max), 21, 176];
        let with = 4.min(rows - 1);
        let mut inputs = lab_harness::Version::inputs(version, &problem(DType::BF16, [rows, n, k]));
        let mut x = inputs["x"].values();
        x[with * k + k - 1] = f64::NAN;
        inputs.insert("x".into(), Tensor::rounded(DType::BF16, &[rows, k], &x));
        let y = run(version, device, &inputs, &Default::default()).unwrap().remove("y").unwrap();
        for (r, row) in y.values().chunks(n).enumerate() {
            assert!(row.iter().all(|y| y.is_nan() == (r == with)), "{} row {r}", info.full_name());
        }
    }
}

fn what_does_not_fit_is_refused_by_name(device: &Device) {
    let mut plan = Plan::new(device);
    let dtype = DType::F16;
    let x = plan.input("x", dtype, &[2, 32]);
    let weight = plan.input("weight", dtype, &[8, 32]);
    let long = plan.input("long", dtype, &[2 * 32 + 4]);
    let scale = plan.input("scale", DType::F32, &[8]);
    let right = FewRows {
        dtype,
        rows: 2,
        n: 8,
        k: 32,
        x,
        weight,
        scale: None,
        norm: None,
        gates: None,
        added: None,
        gated: false,
        parts: &[],
        y: None,
        way: Some(Way::Flight),
    };
    for (wrong, why) in [
        (FewRows { dtype: DType::F64, ..right }, "dtype of few_rows: expected f32, f16 or bf16"),
        (FewRows { k: 24, ..right }, "K of few_rows: expected a multiple of 16, got 24"),
        (FewRows { k: 0, ..right }, "K of few_rows: expected a multiple of 16, got 0"),
        (FewRows { rows: 17, ..right }, "R of few_rows: expected 1 to 16, got 17"),
        (FewRows { rows: 0, ..right }, "R of few_rows: expected 1 to 16, got 0"),
        (FewRows { rows: 4, ..right }, "x of few_rows: expected 128 elements, got 64"),
        (FewRows { n: 9, ..right }, "W of few_rows: expected 288 elements, got 256"),
        (FewRows { added: Some(x), ..right }, "residual of few_rows: expected 16 elements, got 64"),
        (FewRows { y: Some(x), ..right }, "y of few_rows: expected 16 elements, got 64"),
        (
            FewRows { norm: Some(Norm { weight: x, eps: 0.0, heads: None }), ..right },
            "rows to norm of few_rows: expected up to 8 rows of",
        ),
        (
            FewRows {
                gates: Some(GateColumns { heads: 1, cap: 1.0, bias: x, to: scale }),
                ..right
            },
            "gates of few_rows: expected two columns a head",
        ),
        (FewRows { n: 0, ..right }, "sizes of few_rows: expected 1 to"),
        (FewRows { parts: &[4, 4], ..right }, "parts of few_rows: expected at most four"),
        (FewRows { parts: &[8], ..right }, "parts of few_rows: expected at most four"),
        (FewRows { parts: &[1, 2, 3, 4, 5], ..right }, "parts of few_rows: expected at most four"),
        (FewRows { gated: true, ..right }, "way of few_rows: expected one that has int8"),
        (
            FewRows { scale: Some(scale), way: Some(Way::Warp), ..right },
            "way of few_rows: expected one that has int8",
        ),
        (
            FewRows { rows: 3, way: Some(Way::Columns), ..right },
            "R of few_rows: expected 1 to 2, got 3",
        ),
        (
            FewRows { k: 1 << 15, way: Some(Way::Columns), ..right },
            "x of few_rows: expected 32768 elements of all rows at most, by Columns, got 65536",
        ),
        (
            FewRows { dtype: DType::F32, way: Some(Way::Mma), ..right },
            "tensor cores of few_rows: expected f16 or bf16",
        ),
        (FewRows { way: Some(Way::Bytes), ..right }, "W of few_rows: expected int8 by Bytes"),
        (
            FewRows { k: 1 << 17, way: Some(Way::Bytes), ..right },
            "K of few_rows: expected at most 131056 by Bytes, got 131072",
        ),
        (
            FewRows { x: long.part(4, 64), ..right },
            "first element of x of few_rows: expected a multiple of 8, got 4",
        ),
    ] {
        let refused = wrong.add(&mut plan).unwrap_err().to_string();
        assert!(refused.starts_with(why), "{refused}");
    }
    right.add(&mut plan).unwrap();
}

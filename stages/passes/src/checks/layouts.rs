//! Gates, heads and SwiGLU as parts of wider rows, and what need not be given.

use lab_device::{DType, Device};
use lab_harness::tensor::tensors;
use lab_harness::{Plan, Tensor};
use lab_reference::passes as reference;

use super::{assert_close, noise, rounding, run_plan};
use crate::{
    Documents, Gates, MergeHeads, Narrow, SoftCapGates, SoftCapGatesUpstream, SplitHeads, SwiGlu,
    SwiGluUpstream, Widen,
};

pub(super) fn gates_are_columns_of_wider_rows(device: &Device) {
    let (batch, positions, heads, stride, first, cap) = (2, 70, 3, 17, 5, 2.0);
    let (rows, columns) = (batch * positions, 2 * heads);
    for (pre_dtype, dtype, has_bias) in [
        (DType::F32, DType::BF16, true),
        (DType::F32, DType::F16, false),
        (DType::BF16, DType::BF16, false),
    ] {
        let what = format!("pre {pre_dtype}, bias {dtype} {has_bias}");
        let wide = noise(1, pre_dtype, &[rows, stride]);
        let bias = noise(2, dtype, &[columns]);
        let [di, df] = [3, 4].map(|seed| noise(seed, DType::F32, &[batch, heads, positions]));
        let before = noise(5, DType::F32, &[columns]);

        let mut plan = Plan::new(device);
        let wide_slot = plan.input("wide", pre_dtype, &[rows, stride]);
        let [i, f] = ["i", "f"].map(|n| plan.output(n, DType::F32, &[batch, heads, positions]));
        let op = SoftCapGates {
            pre_dtype,
            dtype,
            batch,
            positions,
            heads,
            cap,
            pre: wide_slot.part(first, wide_slot.len() - first),
            stride,
            bias: has_bias.then(|| plan.input("bias", dtype, &[columns])),
            gates: Some(Gates { i, f }),
        };
        op.add_forward(&mut plan).unwrap();
        let dwide = plan.updated("dwide", "dwide1", pre_dtype, &[rows, stride]);
        let [di_slot, df_slot] =
            ["di", "df"].map(|n| plan.input(n, DType::F32, &[batch, heads, positions]));
        let upstream = SoftCapGatesUpstream {
            gates: Gates { i: di_slot, f: df_slot },
            dpre: Some(dwide.part(first, dwide.len() - first)),
            dstride: stride,
            dbias: has_bias.then(|| plan.updated("dbias", "dbias1", DType::F32, &[columns])),
            accumulates: true,
        };
        op.add_backward(&mut plan, upstream).unwrap();
        let inputs = tensors([
            ("wide", wide.clone()),
            ("bias", bias.clone()),
            ("di", di.clone()),
            ("df", df.clone()),
            ("dwide", wide.clone()),
            ("dbias", before.clone()),
        ]);
        let got = run_plan(plan, &inputs);

        let of_rows = |all: &[f64]| -> Vec<f64> {
            all.chunks(stride).flat_map(|row| row[first..first + columns].to_vec()).collect()
        };
        let of = reference::SoftCapGates { positions, heads, cap: cap.into() };
        let bias = if has_bias { bias.values() } else { vec![0.0; columns] };
        let pre = of_rows(&wide.values());
        let [i, f] = of.forward(&pre, &bias);
        let (dpre, dbias) = of.backward(&pre, &bias, [&di.values(), &df.values()]);
        for (name, expected) in [("i", i), ("f", f)] {
            assert_close(&format!("{what}: {name}"), &got[name].values(), &expected, 3e-7);
        }
        let after = got["dwide1"].values();
        assert_close(&format!("{what}: dpre"), &of_rows(&after), &dpre, rounding(pre_dtype));
        for (at, (after, before)) in after.iter().zip(wide.values()).enumerate() {
            let is_own = (first..first + columns).contains(&(at % stride));
            assert!(is_own || *after == before, "{what}: column {} was written", at % stride);
        }
        if has_bias {
            let expected: Vec<f64> =
                dbias.iter().zip(before.values()).map(|(d, b)| d + b).collect();
            assert_close(&format!("{what}: dbias"), &got["dbias1"].values(), &expected, 6e-7);
        }
    }
}

pub(super) fn heads_are_columns_of_wider_rows(device: &Device) {
    let (batch, positions, heads, width) = (2, 5, 3, 16);
    let (rows, columns) = (batch * positions, heads * width);
    // Places of whole packs, and others.
    for (dtype, stride, first) in
        [(DType::BF16, 2 * columns, 8), (DType::F32, columns + 5, 3), (DType::F16, 2 * columns, 1)]
    {
        let wide = noise(1, dtype, &[rows, stride]);
        let mut plan = Plan::new(device);
        let from = plan.input("wide", dtype, &[rows, stride]);
        let split = SplitHeads {
            dtype,
            batch,
            positions,
            heads,
            width,
            from: from.part(first, from.len() - first),
            from_stride: stride,
            to: Some(plan.output("heads", dtype, &[rows, columns])),
        };
        let by_heads = split.add_forward(&mut plan).unwrap();
        // Copies of the heads, back into rows as wide: by the one's gradient, and by the other.
        let copy = plan.scratch(dtype, by_heads.len());
        let merge = MergeHeads {
            dtype,
            batch,
            positions,
            heads,
            width,
            from: by_heads,
            to: Some(copy),
            to_stride: columns,
        };
        merge.add_forward(&mut plan).unwrap();
        let twice = plan.output("heads again", dtype, &[rows, columns]);
        merge.add_backward(&mut plan, (copy, columns), Some(twice)).unwrap();
        let again = plan.updated("again", "again1", dtype, &[rows, stride]);
        let into = Some((again.part(first, again.len() - first), stride));
        split.add_backward(&mut plan, by_heads, into).unwrap();
        let zeros = lab_harness::Tensor::rounded(dtype, &[rows, stride], &vec![0.0; rows * stride]);
        let got = run_plan(plan, &tensors([("wide", wide.clone()), ("again", zeros)]));

        let own: Vec<f64> = wide
            .values()
            .chunks(stride)
            .flat_map(|row| row[first..first + columns].to_vec())
            .collect();
        let expected = reference::split_heads(&own, [batch, positions, heads, width]);
        assert_eq!(got["heads"].values(), expected, "{dtype}");
        assert_eq!(got["heads again"].values(), expected, "{dtype}");
        for (at, v) in got["again1"].values().into_iter().enumerate() {
            let is_own = (first..first + columns).contains(&(at % stride));
            let expected = if is_own { wide.values()[at] } else { 0.0 };
            assert_eq!(v, expected, "{dtype}: element {at}");
        }
    }
}

/// What is there stays only where it is said; and a part of a wider slot begins where it does.
pub(super) fn widened_gradients_take_the_place_or_join(device: &Device) {
    for (dtype, first) in [(DType::BF16, 8), (DType::F16, 3), (DType::F32, 4)] {
        let n = 40;
        let x = noise(1, dtype, &[n]);
        let before = noise(2, DType::F32, &[first + n]);
        for accumulates in [false, true] {
            let mut plan = Plan::new(device);
            let slot = plan.input("x", dtype, &[n]);
            let sum = plan.updated("sum", "sum1", DType::F32, &[first + n]).part(first, n);
            Widen { dtype, elements: n, x: slot, sum, accumulates }.add(&mut plan).unwrap();
            let inputs = tensors([("x", x.clone()), ("sum", before.clone())]);
            let after = run_plan(plan, &inputs)["sum1"].values();
            let mut expected = before.values();
            for (own, x) in expected[first..].iter_mut().zip(x.values()) {
                *own = f64::from((if accumulates { *own } else { 0.0 } + x) as f32);
            }
            assert_eq!(after, expected, "{dtype} {accumulates}");
        }
    }
}

/// More than a block of them; of packs, and where a part of a wider slot begins elsewhere.
pub(super) fn narrowed_numbers_are_rounded_once(device: &Device) {
    for (dtype, first) in [(DType::BF16, 8), (DType::BF16, 3), (DType::F16, 8), (DType::F32, 4)] {
        let n = 2056;
        let x = noise(1, DType::F32, &[n]);
        let before = noise(2, dtype, &[first + n]);
        let mut plan = Plan::new(device);
        let slot = plan.input("x", DType::F32, &[n]);
        let y = plan.updated("y", "y1", dtype, &[first + n]).part(first, n);
        Narrow { dtype, elements: n, x: slot, y }.add(&mut plan).unwrap();
        let inputs = tensors([("x", x.clone()), ("y", before.clone())]);
        let after = run_plan(plan, &inputs)["y1"].values();
        let rounded = Tensor::rounded(dtype, &[n], &x.values()).values();
        assert_eq!(after, [&before.values()[..first], &rounded].concat(), "{dtype} from {first}");
    }
}

pub(super) fn swiglu_need_not_write_u_again(device: &Device) {
    let (rows, width, dtype) = (7, 24, DType::BF16);
    // Also far from zero, where σ is 0 or 1.
    let gate_up = lab_harness::Tensor::rounded(
        dtype,
        &[rows, 2 * width],
        &noise(1, DType::F32, &[rows, 2 * width])
            .values()
            .iter()
            .map(|v| 50.0 * v)
            .collect::<Vec<_>>(),
    );
    let du = noise(2, dtype, &[rows, width]);
    let mut plan = Plan::new(device);
    let op = SwiGlu {
        dtype,
        rows,
        width,
        gate_up: plan.input("gate_up", dtype, &gate_up.shape),
        u: None,
    };
    let upstream = SwiGluUpstream {
        du: plan.input("du", dtype, &du.shape),
        dgate_up: Some(plan.output("dgate_up", dtype, &gate_up.shape)),
        recompute_into: None,
    };
    op.add_backward(&mut plan, upstream).unwrap();
    let got = run_plan(plan, &tensors([("gate_up", gate_up.clone()), ("du", du.clone())]));
    let expected = reference::swiglu_back(&gate_up.values(), &du.values(), width);
    assert_close("dgate_up", &got["dgate_up"].values(), &expected, rounding(dtype));
}

/// Of all heads, and of no other position: one at the start, one in the middle, two one behind the other, one at the end. Where rows
/// are no sequences of a whole block, too.
pub(super) fn gates_are_shut_where_documents_begin(device: &Device) {
    let (batch, heads, positions, first) = (3, 2, 150, 7);
    let begins = |row: usize| [0, 20, 21, 149, 299, 300, 449].contains(&row);
    let ids: Vec<i32> = (0..batch * positions)
        .map(|row| if begins(row) { first } else { row as i32 % 7 })
        .collect();
    let before = noise(1, DType::F32, &[batch, heads, positions]);
    let mut plan = Plan::new(device);
    let tokens = plan.input("tokens", DType::I32, &[ids.len()]);
    let f = plan.updated("f", "f1", DType::F32, &[batch, heads, positions]);
    let documents = Documents { tokens, first };
    let said = documents.add_shut(&mut plan, f, [batch, heads, 149]).unwrap_err().to_string();
    assert_eq!(said, "tokens of documents: expected 447 elements, got 450");
    documents.add_shut(&mut plan, f, [batch, heads, positions]).unwrap();
    let inputs = tensors([("tokens", Tensor::new(&[ids.len()], &ids)), ("f", before.clone())]);
    let after = run_plan(plan, &inputs)["f1"].values();
    for (at, (after, before)) in after.into_iter().zip(before.values()).enumerate() {
        let row = at / (heads * positions) * positions + at % positions;
        let expected = if begins(row) { f64::NEG_INFINITY } else { before };
        assert_eq!(after, expected, "gate {at}, row {row}");
    }
}

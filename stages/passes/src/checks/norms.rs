//! Norms: centered or not, with and without a stream, at any place in memory.

use lab_device::{DType, Device};
use lab_harness::plan::Slot;
use lab_harness::tensor::tensors;
use lab_harness::{Plan, Tensor};
use lab_reference::passes as reference;

use super::{assert_close, noise, rounding, run_plan};
use crate::{GatedHeadNorm, GatedHeadNormUpstream, HeadLayout, RmsNorm, RmsNormUpstream};

/// A slot that begins `first` elements into a tensor.
fn behind(slot: Slot, first: usize) -> Slot {
    slot.part(first, slot.len() - first)
}

pub(super) fn norms_are_right_in_all_their_forms(device: &Device) {
    let (rows, width) = (21, 40);
    for (form, dtype) in [DType::F32, DType::BF16, DType::F16, DType::BF16].into_iter().enumerate()
    {
        // Of each two forms one is another: no stream in the first two, a mean in every second, and a place that is no
        // multiple of 16 bytes in the last two.
        let (streams, centered, first) = (form >= 2, form % 2 == 1, if form >= 2 { 3 } else { 0 });
        let what = format!("{dtype}, stream {streams}, centered {centered}, from element {first}");
        let all = rows * width;
        let (x, added) = (noise(1, dtype, &[first + all]), noise(2, dtype, &[all]));
        let (weight, dy, residual) =
            (noise(3, dtype, &[width]), noise(4, dtype, &[all]), noise(5, dtype, &[all]));
        let before = noise(6, DType::F32, &[width]);

        let mut plan = Plan::new(device);
        let whole = plan.input("x", dtype, &[first + all]);
        let weight_slot = plan.input("weight", dtype, &[width]);
        let stream = streams.then(|| plan.input("added", dtype, &[all]));
        let norm = RmsNorm {
            dtype,
            rows,
            width,
            eps: 1e-5,
            centered,
            x: behind(whole, first),
            weight: weight_slot,
            added: stream,
            y: Some(plan.output("y", dtype, &[rows, width])),
            sum: None,
        };
        let out = norm.add_forward(&mut plan).unwrap();
        let upstream = RmsNormUpstream {
            dy: plan.input("dy", dtype, &[all]),
            residual: streams.then(|| plan.input("residual", dtype, &[all])),
            dweight: plan.updated("dweight", "dweight1", DType::F32, &[width]),
            accumulates: true,
            dx: Some(plan.output("dx", dtype, &[rows, width])),
        };
        norm.add_backward(&mut plan, &out.saved, upstream).unwrap();
        let inputs = tensors([
            ("x", x.clone()),
            ("weight", weight.clone()),
            ("added", added.clone()),
            ("dy", dy.clone()),
            ("residual", residual.clone()),
            ("dweight", before.clone()),
        ]);
        let got = run_plan(plan, &inputs);

        let of = reference::Norm { weight: weight.values(), eps: 1e-5, centered };
        let none = vec![0.0; all];
        let (added, residual) =
            if streams { (added.values(), residual.values()) } else { (none.clone(), none) };
        let (sum, y) = of.forward(&x.values()[first..], &added);
        let (mut dx, mut dweight) = of.backward(&sum, &dy.values());
        dx.iter_mut().zip(&residual).for_each(|(d, r)| *d += r);
        dweight.iter_mut().zip(before.values()).for_each(|(d, b)| *d += b);
        let bound = rounding(dtype);
        for (name, expected) in [("y", y), ("dx", dx), ("dweight1", dweight)] {
            assert_close(&format!("{what}: {name}"), &got[name].values(), &expected, bound);
        }
    }
}

pub(super) fn a_norm_of_large_values_does_not_overflow(device: &Device) {
    // Of squares up to 4e9 a sum of 768 has no room in f16.
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let width = 768;
        let values: Vec<f64> =
            (0..width).map(|c| if c % 2 == 0 { 60000.0 } else { -30000.0 }).collect();
        let x = Tensor::rounded(dtype, &[1, width], &values);
        let mut plan = Plan::new(device);
        let norm = RmsNorm {
            dtype,
            rows: 1,
            width,
            eps: 1e-6,
            centered: false,
            x: plan.input("x", dtype, &[1, width]),
            weight: plan.input("weight", dtype, &[width]),
            added: None,
            y: Some(plan.output("y", dtype, &[1, width])),
            sum: None,
        };
        norm.add_forward(&mut plan).unwrap();
        let weight = Tensor::rounded(dtype, &[width], &vec![1.0; width]);
        let got = run_plan(plan, &tensors([("x", x.clone()), ("weight", weight.clone())]));
        let of = reference::Norm { weight: weight.values(), eps: 1e-6, centered: false };
        let expected = of.forward(&x.values(), &vec![0.0; width]).1;
        assert_close(
            &format!("large values in {dtype}"),
            &got["y"].values(),
            &expected,
            rounding(dtype),
        );
    }
}

/// Heads behind positions, gates within wider rows, and gradients into wider rows, of which the rest is left as it is.
pub(super) fn heads_are_normed_where_they_lie(device: &Device) {
    let (batch, positions, heads, width) = (2, 11, 3, 16);
    let (rows, columns) = (batch * positions, heads * width);
    let (stride, dstride, first) = (columns + 24, 2 * columns, 8);
    for (dtype, first) in [(DType::BF16, first), (DType::F32, first), (DType::F16, first - 1)] {
        let h = noise(1, dtype, &[rows, columns]);
        let wide = noise(2, dtype, &[rows, stride]);
        let weight = noise(3, dtype, &[columns]);
        let dout = noise(4, dtype, &[rows, columns]);
        let dwide = noise(5, dtype, &[rows, dstride]);

        let mut plan = Plan::new(device);
        let wide_slot = plan.input("wide", dtype, &[rows, stride]);
        let norm = GatedHeadNorm {
            dtype,
            batch,
            heads,
            positions,
            width,
            eps: 1e-5,
            h: plan.input("h", dtype, &[rows, columns]),
            layout: HeadLayout::PositionsFirst,
            ogate: behind(wide_slot, first),
            ogate_stride: stride,
            weight: plan.input("weight", dtype, &[columns]),
            out: Some(plan.output("out", dtype, &[rows, columns])),
        };
        norm.add_forward(&mut plan).unwrap();
        let dwide_slot = plan.updated("dwide", "dwide1", dtype, &[rows, dstride]);
        let upstream = GatedHeadNormUpstream {
            dout: plan.input("dout", dtype, &[rows, columns]),
            dogate: Some(behind(dwide_slot, first)),
            dogate_stride: dstride,
            dh: Some(plan.output("dh", dtype, &[rows, columns])),
            dweight: plan.output("dweight", DType::F32, &[columns]),
            accumulates: false,
        };
        norm.add_backward(&mut plan, upstream).unwrap();
        let inputs = tensors([
            ("h", h.clone()),
            ("wide", wide.clone()),
            ("weight", weight.clone()),
            ("dout", dout.clone()),
            ("dwide", dwide.clone()),
        ]);
        let got = run_plan(plan, &inputs);

        let of_rows = |all: &[f64], stride: usize| -> Vec<f64> {
            all.chunks(stride).flat_map(|row| row[first..first + columns].to_vec()).collect()
        };
        let of = reference::HeadNorm { heads, width, eps: 1e-5 };
        let (h, ogate, weight) = (h.values(), of_rows(&wide.values(), stride), weight.values());
        let out = of.forward(&h, &ogate, &weight);
        let (dh, dogate, dweight) = of.backward(&h, &ogate, &weight, &dout.values());
        let bound = rounding(dtype);
        for (name, expected) in [("out", out), ("dh", dh), ("dweight", dweight)] {
            assert_close(&format!("{dtype}: {name}"), &got[name].values(), &expected, bound);
        }
        let after = got["dwide1"].values();
        assert_close(&format!("{dtype}: dogate"), &of_rows(&after, dstride), &dogate, bound);
        for (at, (after, before)) in after.iter().zip(dwide.values()).enumerate() {
            let is_own = (first..first + columns).contains(&(at % dstride));
            assert!(is_own || *after == before, "{dtype}: column {} was written", at % dstride);
        }
    }
}

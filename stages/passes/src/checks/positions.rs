//! Rotary positions within wider rows, and dropout by the step of training.

use lab_device::{DType, Device};
use lab_harness::tensor::tensors;
use lab_harness::{Plan, Tensor};
use lab_reference::passes as reference;

use super::{assert_close, noise, rounding, run_plan};
use crate::{Dropout, Rope};

/// Heads of q and k side by side, those of v behind them: the latter stay as they are. Turned back they are what they were.
pub(super) fn positions_turn_columns_of_wider_rows(device: &Device) {
    let (batch, positions, heads, width) = (2, 7, 3, 16);
    let (rows, columns) = (batch * positions, heads * width);
    for (dtype, stride, first) in
        [(DType::BF16, 2 * columns, 8), (DType::F32, columns + 5, 3), (DType::F32, columns + 4, 4)]
    {
        let wide = noise(1, dtype, &[rows, stride]);
        let run = |back_again: bool| -> Vec<f64> {
            let mut plan = Plan::new(device);
            let whole = plan.updated("wide", "wide1", dtype, &[rows, stride]);
            let x = whole.part(first, whole.len() - first);
            let table = plan.constant(&Rope::table(positions, width, 500.0));
            let op = Rope { dtype, batch, positions, heads, width, stride, table };
            op.add_forward(&mut plan, x).unwrap();
            if back_again {
                op.add_backward(&mut plan, x).unwrap();
            }
            run_plan(plan, &tensors([("wide", wide.clone())]))["wide1"].values()
        };
        let of_rows = |all: &[f64]| -> Vec<f64> {
            all.chunks(stride).flat_map(|row| row[first..first + columns].to_vec()).collect()
        };
        let own = of_rows(&wide.values());
        let after = run(false);
        let expected = reference::rope(&own, [positions, heads, width], 500.0, false);
        assert_close(&format!("{dtype}: turned"), &of_rows(&after), &expected, rounding(dtype));
        for (at, (after, before)) in after.iter().zip(wide.values()).enumerate() {
            let is_own = (first..first + columns).contains(&(at % stride));
            assert!(is_own || *after == before, "{dtype}: column {} was written", at % stride);
        }
        assert_close(&format!("{dtype}: turned back"), &of_rows(&run(true)), &own, rounding(dtype));
    }
}

/// A seed of 64 bits, a step beyond 32, and both kinds of places.
pub(super) fn dropout_chooses_by_seed_stream_and_step(device: &Device) {
    let n = 600;
    // The rate at which the first element is only just kept.
    let word = reference::philox([0, 0, 0, 1 << 16], [9, 0])[0];
    let just_kept = f64::from(word) / 2f64.powi(32);
    for (dtype, first, [seed, step], stream, rate) in [
        (DType::F32, 0, [1 << 40 | 5, 0], 0u16, 0.25),
        (DType::BF16, 8, [7, 1 << 33 | 2], 65535, 0.25),
        (DType::F16, 3, [7, 2], 1, 0.25),
        (DType::F32, 0, [9, 0], 1, just_kept),
    ] {
        let whole = noise(1, dtype, &[first + n]);
        let mut plan = Plan::new(device);
        let slot = plan.input("x", dtype, &[first + n]);
        let op = Dropout {
            dtype,
            elements: n,
            rate,
            seed,
            stream,
            step: plan.input("step", DType::I64, &[1]),
            x: slot.part(first, n),
            out: Some(plan.output("out", dtype, &[n])),
        };
        op.add_forward(&mut plan).unwrap();
        let steps = Tensor::new(&[1], &[step as i64]);
        let got = run_plan(plan, &tensors([("x", whole.clone()), ("step", steps)]));
        let expected =
            reference::dropout(&whole.values()[first..], rate, [seed, step], stream.into());
        assert_close(
            &format!("{dtype}, step {step}"),
            &got["out"].values(),
            &expected,
            rounding(dtype),
        );
    }
}

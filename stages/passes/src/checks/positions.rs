//! Rotary positions within wider rows, and dropout by the step of training.

use lab_device::{DType, Device};
use lab_harness::tensor::tensors;
use lab_harness::{Plan, Tensor};
use lab_reference::passes as reference;

use super::{assert_close, noise, rounding, run_plan};
use crate::{AppendToCache, Dropout, Room, Rope, SplitHeads};

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

/// Position by position, from columns of wider rows: the caches and q are as all positions at once make them. What there is no room for
/// is not written.
pub(super) fn a_cache_fills_as_all_positions_at_once(device: &Device) {
    let (batch, heads, shared_heads, positions, width) = (2, 4, 2, 5, 16);
    let room = positions + 2;
    let row = (heads + 2 * shared_heads) * width;
    for dtype in [DType::F32, DType::BF16] {
        let rows = noise(1, dtype, &[batch, positions, row]);
        // All at once: heads of q and k are turned, then k and v are split into caches.
        let mut plan = Plan::new(device);
        let x = plan.updated("x", "turned", dtype, &[batch * positions, row]);
        let table = plan.constant(&Rope::table(positions, width, 500.0));
        let (stride, turns) = (row, heads + shared_heads);
        Rope { dtype, batch, positions, heads: turns, width, stride, table }
            .add_forward(&mut plan, x)
            .unwrap();
        for (name, first) in [("keys", heads), ("values", turns)] {
            let slot =
                plan.updated(name, &format!("{name}1"), dtype, &[batch, shared_heads, room, width]);
            let from = x.part(first * width, x.len() - first * width);
            let (heads, from_stride, to) = (shared_heads, row, None);
            let split = SplitHeads { dtype, batch, positions, heads, width, from, from_stride, to };
            split.add_into_room(&mut plan, Room { slot, positions: room }).unwrap();
            let short = split.add_into_room(&mut plan, Room { slot, positions: positions - 1 });
            let said = short.unwrap_err().to_string();
            assert_eq!(said, "room of split_heads: expected for at least 5 positions, got 4");
        }
        let empty = Tensor::rounded(
            dtype,
            &[batch, shared_heads, room, width],
            &vec![7.0; batch * shared_heads * room * width],
        );
        let inputs =
            tensors([("x", rows.clone()), ("keys", empty.clone()), ("values", empty.clone())]);
        let at_once = run_plan(plan, &inputs);

        let mut plan = Plan::new(device);
        let x = plan.input("x", dtype, &[batch, row]);
        let [keys, values] = ["keys", "values"].map(|name| {
            plan.updated(name, &format!("{name}1"), dtype, &[batch, shared_heads, room, width])
        });
        let part = |first: usize| x.part(first * width, x.len() - first * width);
        let op = AppendToCache {
            dtype,
            batch,
            heads,
            shared_heads,
            width,
            room,
            q: x,
            q_stride: row,
            kv: [part(heads), part(turns)],
            kv_stride: row,
            lengths: plan.input("lengths", DType::I32, &[batch]),
            table: plan.constant(&Rope::table(room, width, 500.0)),
            caches: [keys, values],
            q_turned: Some(plan.state_of_zeros("q", dtype, &[batch * heads * width])),
        };
        let q = op.add(&mut plan).unwrap();
        let first = Tensor::rounded(dtype, &[batch, row], &vec![0.0; batch * row]);
        let lengths = Tensor::new(&[batch], &[0i32, 0]);
        let inputs = tensors([
            ("x", first),
            ("keys", empty.clone()),
            ("values", empty),
            ("lengths", lengths),
        ]);
        let mut run = plan.bind().upload_inputs(&inputs).unwrap().finish().unwrap();
        let slot = |name: &str| run.plan().slot(name).expect("a name of it");
        let (x, lengths) = (slot("x"), slot("lengths"));
        let all = rows.values();
        let write = |run: &mut lab_harness::Binding, position: usize, length: i32| {
            let own =
                (0..batch).flat_map(|b| all[(b * positions + position) * row..][..row].to_vec());
            run.write(x, &Tensor::rounded(dtype, &[batch, row], &own.collect::<Vec<_>>())).unwrap();
            run.write(lengths, &Tensor::new(&[batch], &[length, length])).unwrap();
            run.run().unwrap();
        };
        for position in 0..positions {
            write(&mut run, position, position as i32 + 1);
            let turned = run.read(q).unwrap().values();
            let expected = at_once["turned"].values();
            for b in 0..batch {
                let own = &expected[(b * positions + position) * row..][..heads * width];
                assert_eq!(
                    turned[b * heads * width..][..heads * width],
                    *own,
                    "{dtype} {position}"
                );
            }
        }
        for length in [0, -1, room as i32 + 1, i32::MAX] {
            write(&mut run, 0, length);
        }
        for name in ["keys1", "values1"] {
            let after = lab_harness::Prepared::outputs(&run).unwrap();
            assert!(after[name] == at_once[name], "{dtype}: {name}");
        }
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

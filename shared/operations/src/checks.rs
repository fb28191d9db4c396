//! What must hold of operations, on every device.

use lab_device::{DType, Device};
use lab_families::vlstm::{forward_backward_reference, forward_reference};
use lab_harness::plan::Slot;
use lab_harness::suite::{Check, Suite};
use lab_harness::tensor::tensors;
use lab_harness::{Dims, Plan, Problem, Tensor, Tensors};
use lab_reference::attention;

use crate::attention_checks::packed_attention_is_right;
use crate::check_data::{SIZES, TYPES, drawn, inputs, of, relative};
use crate::composed_checks::{layers_of_one_plan_are_right, layers_of_two_plans_are_right};
use crate::gated_delta_checks::{
    gated_delta_layers_of_one_plan_are_right, gated_delta_parts_and_a_step_are_the_whole,
};
use crate::import_checks::{another_export_is_refused, what_is_saved_is_imported};
use crate::packed_checks::{packed_gated_delta_is_right, packed_sequences_are_right};
use crate::recurrent_checks::recurrences_with_their_states_are_right;
use crate::state_checks::a_sequence_in_two_parts_has_the_gradients_of_the_whole;
use crate::{
    Attention, AttentionRows, AttentionSizes, NormalizerGrad, Rows, Sizes, Vlstm, VlstmRows,
    VlstmStep,
};

/// The checks of this crate. Their kernels are those of the vLSTM's stages.
pub static SUITE: Suite = Suite::new("lab-operations", "vlstm_fwbw_v4", CHECKS);

static CHECKS: &[Check] = &[
    Check::new("layers_of_one_plan_are_right", layers_of_one_plan_are_right),
    Check::new("layers_of_two_plans_are_right", layers_of_two_plans_are_right),
    Check::new("packed_sequences_are_right", packed_sequences_are_right),
    Check::new("packed_gated_delta_is_right", packed_gated_delta_is_right),
    Check::new(
        "a_sequence_in_two_parts_has_the_gradients_of_the_whole",
        a_sequence_in_two_parts_has_the_gradients_of_the_whole,
    ),
    Check::new("recurrences_with_their_states_are_right", recurrences_with_their_states_are_right),
    Check::new("what_is_saved_is_imported", what_is_saved_is_imported),
    Check::new("another_export_is_refused", another_export_is_refused),
    Check::new("a_backward_pass_can_be_added_twice", a_backward_pass_can_be_added_twice),
    Check::new("rows_give_what_the_reference_gives", rows_give_what_the_reference_gives),
    Check::new("steps_go_on_where_a_sequence_ends", steps_go_on_where_a_sequence_ends),
    Check::new("attention_stands_beside_the_vlstm", attention_stands_beside_the_vlstm),
    Check::new("attention_over_rows_is_that_by_heads", attention_over_rows_is_that_by_heads),
    Check::new("packed_attention_is_right", packed_attention_is_right),
    Check::new(
        "gated_delta_layers_of_one_plan_are_right",
        gated_delta_layers_of_one_plan_are_right,
    ),
    Check::new(
        "gated_delta_parts_and_a_step_are_the_whole",
        gated_delta_parts_and_a_step_are_the_whole,
    ),
];

/// What a forward pass has saved is still there.
fn a_backward_pass_can_be_added_twice(device: &Device) {
    for (dtype, _) in TYPES {
        let all = drawn(dtype);
        let mut plan = Plan::new(device);
        let [q, k, v, i, f, dh] = inputs(&mut plan, &all, ["q", "k", "v", "i", "f", "dh"]);
        let layer = Vlstm::new(dtype, SIZES, [q, k, v], [i, f]);
        let (_, saved) = layer.add_forward_saving(&mut plan).unwrap();
        let twice = [(); 2].map(|()| layer.add_backward(&mut plan, &saved, dh).unwrap());
        let found = twice.map(|g| [g.q, g.k, g.v, g.i, g.f]);
        found.iter().flatten().for_each(|slot| plan.keep(*slot));
        let mut run = plan.bind().upload_inputs(&all).unwrap().finish().unwrap();
        run.run().unwrap();
        for (n, (once, again)) in found[0].iter().zip(&found[1]).enumerate() {
            let [once, again] = [once, again].map(|slot| run.read(*slot).unwrap());
            assert!(once == again && once.values().iter().all(|v| v.is_finite()), "{dtype} {n}");
        }
    }
}

/// Two of them, in one plan with a layer of the vLSTM whose tensors have the same names; the second one reads what the first has
/// made. One backward pass is added twice.
fn attention_stands_beside_the_vlstm(device: &Device) {
    let Sizes { batch, heads, positions, .. } = SIZES;
    let sizes =
        AttentionSizes { batch, heads: 2 * heads, shared_heads: heads, positions, columns: 32 };
    for (dtype, bound) in TYPES {
        let problem = Problem::new(Dims::default(), dtype);
        let of_heads = |stream, heads| problem.normal(stream, &[batch, heads, positions, 32]);
        let mut all = drawn(dtype);
        all.extend([
            ("own q".to_owned(), of_heads(10, 2 * heads)),
            ("own k".to_owned(), of_heads(11, heads)),
            ("own v".to_owned(), of_heads(12, heads)),
            ("upward".to_owned(), of_heads(13, 2 * heads)),
        ]);
        let mut plan = Plan::new(device);
        let [q, k, v, i, f] = inputs(&mut plan, &all, ["q", "k", "v", "i", "f"]);
        let own = inputs(&mut plan, &all, ["own q", "own k", "own v", "upward"]);
        let [own_q, own_k, own_v, upward] = own;
        let h = Vlstm::new(dtype, SIZES, [q, k, v], [i, f]).add_forward(&mut plan).unwrap().h;
        let first = Attention::new(dtype, sizes, [own_q, own_k, own_v]);
        let (of_first, saved_first) = first.add_forward_saving(&mut plan).unwrap();
        let second = Attention { q: of_first.o, causal: false, ..first };
        let (of_second, saved_second) = second.add_forward_saving(&mut plan).unwrap();
        let by_second = second.add_backward(&mut plan, &saved_second, upward).unwrap();
        let [once, twice] =
            [(); 2].map(|()| first.add_backward(&mut plan, &saved_first, by_second.q).unwrap());
        let found = [of_second.o, by_second.k, by_second.v, once.q, once.k, once.v];
        let again = [twice.q, twice.k, twice.v];
        found.iter().chain(&again).chain([&h]).for_each(|slot| plan.keep(*slot));

        let computed = |q: &Tensor, grad: &Tensor, causal| {
            let [q, k, v] = [q, &all["own k"], &all["own v"]].map(|tensor| tensor.values());
            let grad = grad.values();
            let sizes = attention::Sizes {
                heads: batch * 2 * heads,
                group: 2,
                positions,
                columns: 32,
                causal,
            };
            let inputs = attention::Inputs { q: &q, k: &k, v: &v, grad: Some(&grad) };
            attention::attention(inputs, sizes)
        };
        let rounded = |values: &[f64]| Tensor::rounded(dtype, &all["own q"].shape, values);
        let o = rounded(&computed(&all["own q"], &all["upward"], true).o);
        let second = computed(&o, &all["upward"], false);
        let first = computed(&all["own q"], &rounded(&second.dq), true);
        let expected = [second.o, second.dk, second.dv, first.dq, first.dk, first.dv];
        let mut run = plan.bind().upload_inputs(&all).unwrap().finish().unwrap();
        run.run().unwrap();
        for (n, (slot, expected)) in found.iter().zip(&expected).enumerate() {
            let error = relative(&run.read(*slot).unwrap(), expected);
            assert!(error <= bound, "{dtype}, result {n} of {}: {error}", saved_first.version());
        }
        for (once, again) in found[3..].iter().zip(again) {
            assert!(run.read(*once).unwrap() == run.read(again).unwrap(), "{dtype}");
        }
        let expected = of(&forward_reference(&all, 1e-6), "h");
        let error = relative(&run.read(h).unwrap(), &expected);
        assert!(error <= bound, "{dtype}, the vLSTM: {error}");
    }
}

/// Bit for bit: q, k and v in one matrix, their gradients in another, which has more columns. Of heads with fewer columns and with
/// more than 64, which have versions of their own.
fn attention_over_rows_is_that_by_heads(device: &Device) {
    for columns in [48, 80] {
        let sizes = AttentionSizes { batch: 2, heads: 4, shared_heads: 2, positions: 150, columns };
        attention_of_rows_and_of_heads(device, sizes);
    }
}

fn attention_of_rows_and_of_heads(device: &Device, sizes: AttentionSizes) {
    let AttentionSizes { batch, heads, shared_heads, positions, columns } = sizes;
    let (dtype, rows, width) = (DType::BF16, batch * positions, 8 * columns);
    if !AttentionRows::takes(device, dtype, sizes) {
        return;
    }
    let parts = [(0, heads), (heads, shared_heads), (heads + shared_heads, shared_heads)];
    // Heads of a matrix from one on, one behind the other.
    let by_heads = |matrix: &[f64], width: usize, (first, heads): (usize, usize)| {
        let mut all = Vec::with_capacity(rows * heads * columns);
        for (b, n) in (0..batch).flat_map(|b| (0..heads).map(move |n| (b, first + n))) {
            for row in matrix.chunks(width).skip(b * positions).take(positions) {
                all.extend_from_slice(&row[n * columns..][..columns]);
            }
        }
        all
    };
    let problem = Problem::new(Dims::default(), dtype);
    let (qkv, upward) =
        (problem.normal(0, &[rows, width]), problem.normal(1, &[rows, heads * columns]));
    for causal in [true, false] {
        let mut plan = Plan::new(device);
        let [qkv_slot, up] =
            [("qkv", &qkv), ("upward", &upward)].map(|(n, t)| plan.input(n, dtype, &t.shape));
        let part = |of: Slot, stride, (first, _): (usize, usize)| {
            let slot = of.part(first * columns, of.len() - first * columns);
            Rows { slot, stride }
        };
        let [q, k, v] = parts.map(|p| part(qkv_slot, width, p));
        let operation = AttentionRows { dtype, sizes, q, k, v, cu_seqlens: None, causal };
        let (o, saved) = operation.add_forward_saving(&mut plan, [width + 8; 3]).unwrap();
        let gradients = plan.scratch(dtype, rows * (width + 8));
        let to = parts.map(|p| part(gradients, width + 8, p));
        operation.add_backward(&mut plan, &saved, up, to).unwrap();
        let alone = operation.add_forward(&mut plan).unwrap();

        let mut inputs: Tensors =
            [("qkv".to_owned(), qkv.clone()), ("upward".to_owned(), upward.clone())].into();
        let mut of_heads = |name: &str, matrix: &Tensor, width, (first, heads)| {
            let values = by_heads(&matrix.values(), width, (first, heads));
            let shape = [batch, heads, positions, columns];
            inputs.insert(name.into(), Tensor::rounded(dtype, &shape, &values));
            plan.input(name, dtype, &shape)
        };
        let own = [0, 1, 2].map(|n| of_heads(["q", "k", "v"][n], &qkv, width, parts[n]));
        let of_o = of_heads("by heads", &upward, heads * columns, parts[0]);
        let both = if columns > 64 { "attention:v8_handed" } else { "attention:v7_wgmma_back" };
        let versions = [Some("attention:v6_turns"), Some(both)];
        let plain = Attention { causal, versions, ..Attention::new(dtype, sizes, own) };
        let (outputs, saved) = plain.add_forward_saving(&mut plan).unwrap();
        let by = plain.add_backward(&mut plan, &saved, of_o).unwrap();
        let kept = [o, alone, gradients, outputs.o, by.q, by.k, by.v];
        kept.iter().for_each(|slot| plan.keep(*slot));
        let mut run = plan.bind().upload_inputs(&inputs).unwrap().finish().unwrap();
        run.run().unwrap();
        let [o, alone, gradients, expected, dq, dk, dv] =
            kept.map(|slot| run.read(slot).unwrap().values());
        assert_eq!(by_heads(&o, heads * columns, parts[0]), expected, "o");
        assert_eq!(alone, o, "o of the forward pass alone");
        for (part, expected) in parts.into_iter().zip([dq, dk, dv]) {
            assert_eq!(by_heads(&gradients, width + 8, part), expected, "gradient of {part:?}");
        }
    }
}

/// The state behind a sequence, and one position more, as the sequence with that position has it.
fn steps_go_on_where_a_sequence_ends(device: &Device) {
    let Sizes { batch: b, heads: nh, positions: s, values, .. } = SIZES;
    // No version leaves the state of a sequence in f32.
    let (dtype, bound) = (DType::BF16, 1.5e-2);
    let all = drawn(dtype);
    let expected = of(&forward_reference(&all, 1e-6), "h");
    let part = |name: &str, from: usize, to: usize| {
        let tensor = &all[name];
        let width: usize = tensor.shape[3..].iter().product();
        let rows = tensor.values();
        let rows = rows.chunks(s * width).flat_map(|head| head[from * width..to * width].to_vec());
        let rows: Vec<f64> = rows.collect();
        let shape = [&[b, nh, to - from][..], &tensor.shape[3..]].concat();
        Tensor::rounded(tensor.dtype, &shape, &rows)
    };
    let names = ["q", "k", "v", "i", "f"];
    let before: Tensors = names.iter().map(|n| ((*n).into(), part(n, 0, s - 1))).collect();
    let last: Tensors = names.iter().map(|n| (format!("last {n}"), part(n, s - 1, s))).collect();
    let mut plan = Plan::new(device);
    let [q, k, v, i, f] = inputs(&mut plan, &before, names);
    let sizes = Sizes { positions: s - 1, ..SIZES };
    let sequence = Vlstm { last_state: true, ..Vlstm::new(dtype, sizes, [q, k, v], [i, f]) };
    let outputs = sequence.add_forward(&mut plan).unwrap();
    let lasts = names.map(|n| format!("last {n}"));
    let [q, k, v, i, f] = inputs(&mut plan, &last, lasts.each_ref().map(String::as_str));
    let state = outputs.state.expect("it is wanted");
    let step =
        VlstmStep { dtype, sizes, qkv: [q, k, v], gates: [i, f], state, eps: 1e-6, version: None };
    let h = step.add(&mut plan).unwrap();
    plan.keep(h);
    let inputs: Tensors = before.into_iter().chain(last).collect();
    let mut run = plan.bind().upload_inputs(&inputs).unwrap().finish().unwrap();
    run.run().unwrap();
    let rows = expected.chunks(s * values).flat_map(|head| head[(s - 1) * values..].to_vec());
    let error = relative(&run.read(h).unwrap(), &rows.collect::<Vec<_>>());
    assert!(error <= bound, "{dtype}: {error}");
}

/// \[B, NH, S, D\] as rows \[B S, NH D\] within wider ones, from a column on.
fn in_rows(all: &mut [f64], heads: &Tensor, [column, stride]: [usize; 2]) {
    let [_, nh, s, d] = heads.shape[..] else { panic!("of four indices") };
    for (e, value) in heads.values().into_iter().enumerate() {
        let (c, t, h, b) = (e % d, e / d % s, e / d / s % nh, e / d / s / nh);
        all[(b * s + t) * stride + column + h * d + c] = value;
    }
}

/// q, k and v in one matrix with columns of nobody's between them, and their gradients in another.
fn rows_give_what_the_reference_gives(device: &Device) {
    let dtype = DType::BF16;
    if !VlstmRows::takes(device, dtype, SIZES) {
        return;
    }
    let Sizes { batch: b, heads: nh, positions: s, keys, values } = SIZES;
    let all = drawn(dtype);
    let expected = forward_backward_reference(&all, 1e-6, NormalizerGrad::Constant);
    let (rows, stride) = (b * s, 2 * nh * keys + nh * values + 32);
    let starts = [8, 8 + nh * keys, 16 + 2 * nh * keys];
    let mut matrix = vec![f64::NAN; rows * stride];
    for (name, column) in ["q", "k", "v"].into_iter().zip(starts) {
        in_rows(&mut matrix, &all[name], [column, stride]);
    }
    let gate = |name: &str| {
        let mut gates = vec![0.0; nh * rows];
        let of = all[name].values();
        for (e, value) in of.into_iter().enumerate() {
            gates[e / s % nh * rows + e / s / nh * s + e % s] = value;
        }
        Tensor::rounded(DType::F32, &[nh, rows], &gates)
    };
    let mut dh = vec![0.0; rows * nh * values];
    in_rows(&mut dh, &all["dh"], [0, nh * values]);
    let inputs = tensors([
        ("qkv", Tensor::rounded(dtype, &[rows, stride], &matrix)),
        ("i", gate("i")),
        ("f", gate("f")),
        ("dh", Tensor::rounded(dtype, &[rows, nh * values], &dh)),
    ]);
    let mut plan = Plan::new(device);
    let [qkv, i, f, dh] = ["qkv", "i", "f", "dh"]
        .map(|name| plan.input(name, inputs[name].dtype, &inputs[name].shape));
    let dqkv = plan.state("dqkv", dtype, &[rows, stride]);
    let part = |of: Slot, column: usize| Rows { slot: of.part(column, of.len() - column), stride };
    let [q, k, v] = starts.map(|column| part(qkv, column));
    let normalizer_grad = NormalizerGrad::Constant;
    let vlstm = VlstmRows { dtype, sizes: SIZES, q, k, v, i, f, eps: 1e-6, normalizer_grad };
    let alone = vlstm.add_forward(&mut plan).unwrap();
    let (h, saved) = vlstm.add_forward_saving(&mut plan, [stride; 3]).unwrap();
    let into = starts.map(|column| part(dqkv, column));
    let gates = vlstm.add_backward(&mut plan, &saved, dh, into).unwrap();
    [alone, h, gates.i, gates.f].iter().for_each(|slot| plan.keep(*slot));
    let empty = Tensor::rounded(dtype, &[rows, stride], &vec![7.0; rows * stride]);
    let binder = plan.bind().upload_inputs(&inputs).unwrap().upload("dqkv", &empty).unwrap();
    let mut run = binder.finish().unwrap();
    run.run().unwrap();
    assert!(run.read(alone).unwrap() == run.read(h).unwrap());
    let named = |name: &str, like: &str| {
        let values = of(&expected, name);
        Tensor::rounded(DType::F64, &all[like].shape, &values)
    };
    let mut of_h = vec![0.0; rows * nh * values];
    in_rows(&mut of_h, &named("h", "v"), [0, nh * values]);
    assert!(relative(&run.read(h).unwrap(), &of_h) < 8e-3);
    let mut of_matrix = vec![7.0; rows * stride];
    for ((name, like), column) in [("dq", "q"), ("dk", "k"), ("dv", "v")].into_iter().zip(starts) {
        in_rows(&mut of_matrix, &named(name, like), [column, stride]);
    }
    let found = run.read(dqkv).unwrap();
    assert!(relative(&found, &of_matrix) < 8e-3);
    // What is nobody's is as it was.
    let nobodys = |e: usize| e % stride < 8;
    assert!(found.values().iter().enumerate().all(|(e, v)| !nobodys(e) || *v == 7.0));
    let mut of_i = vec![0.0; nh * rows];
    for (e, value) in of(&expected, "di").into_iter().enumerate() {
        of_i[e / s % nh * rows + e / s / nh * s + e % s] = value;
    }
    assert!(relative(&run.read(gates.i).unwrap(), &of_i) < 8e-3);
}

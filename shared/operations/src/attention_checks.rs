//! What must hold of attention over packed sequences.

use lab_device::{DType, Device};
use lab_families::attention::packed_sizes;
use lab_families::packed::cu_seqlens;
use lab_harness::{Options, Plan, Problem, Tensor, Tensors, Version};

use crate::check_data::{inputs, of, relative};
use crate::{Attention, AttentionRows, AttentionSizes, Rows};

static BOTH: &dyn Version = &attention::PACKED_BACK;

/// Of both operations, beside the reference: heads one behind the other, and rows that have q, k and v of all heads.
pub(crate) fn packed_attention_is_right(device: &Device) {
    const LENGTHS: [usize; 4] = [70, 0, 1, 65];
    let (dtype, bound) = (DType::BF16, 2e-2);
    let positions = LENGTHS.iter().sum();
    let sizes = AttentionSizes { batch: 1, heads: 4, shared_heads: 2, positions, columns: 32 };
    if !AttentionRows::takes(device, dtype, sizes) {
        return;
    }
    let AttentionSizes { heads, shared_heads, columns, .. } = sizes;
    let of_problem = packed_sizes([LENGTHS.len(), heads, shared_heads, positions, columns]);
    let mut all = BOTH.inputs(&Problem::new(of_problem, dtype));
    all.insert("cu_seqlens".into(), cu_seqlens(&LENGTHS));
    for (causal, asked) in [(true, "causal=yes"), (false, "causal=no")] {
        let options = Options::parse(&[asked], BOTH.info()).unwrap();
        let expected = BOTH.reference(&all, &options);
        let names = ["o", "dq", "dk", "dv"];
        let by_heads = found_by_heads(device, &all, sizes, causal);
        let over_rows = found_over_rows(device, &all, sizes, causal);
        for (name, found) in names.into_iter().zip(&by_heads) {
            let error = relative(found, &of(&expected, name));
            assert!(error <= bound, "{name}, {asked}: {error}");
        }
        for (n, name) in names.into_iter().enumerate() {
            assert!(over_rows[n] == by_heads[n].values(), "{name} over rows, {asked}");
        }
    }
}

/// o, dq, dk, dv.
fn found_by_heads(
    device: &Device,
    all: &Tensors,
    sizes: AttentionSizes,
    causal: bool,
) -> [Tensor; 4] {
    let dtype = all["q"].dtype;
    let mut plan = Plan::new(device);
    let [q, k, v, upward, ends] = inputs(&mut plan, all, ["q", "k", "v", "do", "cu_seqlens"]);
    let operation =
        Attention { cu_seqlens: Some(ends), causal, ..Attention::new(dtype, sizes, [q, k, v]) };
    let (outputs, saved) = operation.add_forward_saving(&mut plan).unwrap();
    let by = operation.add_backward(&mut plan, &saved, upward).unwrap();
    let alone = operation.add_forward(&mut plan).unwrap();
    let found = [outputs.o, by.q, by.k, by.v];
    found.iter().chain([&alone.o]).for_each(|slot| plan.keep(*slot));
    let mut run = plan.bind().upload_inputs(all).unwrap().finish().unwrap();
    run.run().unwrap();
    assert!(run.read(alone.o).unwrap() == run.read(outputs.o).unwrap(), "o of the forward pass");
    found.map(|slot| run.read(slot).unwrap())
}

/// The same, of one matrix of q, k and v, and one of their gradients; in the order of heads one behind the other.
fn found_over_rows(
    device: &Device,
    all: &Tensors,
    sizes: AttentionSizes,
    causal: bool,
) -> [Vec<f64>; 4] {
    let AttentionSizes { heads, shared_heads, positions, columns, .. } = sizes;
    let (dtype, stride) = (all["q"].dtype, (heads + 2 * shared_heads) * columns);
    let firsts = [0, heads * columns, (heads + shared_heads) * columns];
    let mut qkv = vec![0.0; positions * stride];
    for (name, first) in ["q", "k", "v"].into_iter().zip(firsts) {
        into_rows(&mut qkv, &all[name], [first, stride]);
    }
    let mut upward = vec![0.0; positions * heads * columns];
    into_rows(&mut upward, &all["do"], [0, heads * columns]);
    let matrix =
        |values: &[f64]| Tensor::rounded(dtype, &[positions, values.len() / positions], values);
    let own: Tensors = [
        ("qkv".to_owned(), matrix(&qkv)),
        ("upward".to_owned(), matrix(&upward)),
        ("cu_seqlens".to_owned(), all["cu_seqlens"].clone()),
    ]
    .into();
    let mut plan = Plan::new(device);
    let [qkv, upward, ends] = inputs(&mut plan, &own, ["qkv", "upward", "cu_seqlens"]);
    let gradients = plan.scratch(dtype, positions * stride);
    let [[q, k, v], to] = [qkv, gradients].map(|slot| {
        firsts.map(|first| Rows { slot: slot.part(first, slot.len() - first), stride })
    });
    let operation = AttentionRows { dtype, sizes, q, k, v, cu_seqlens: Some(ends), causal };
    let (o, saved) = operation.add_forward_saving(&mut plan, [stride; 3]).unwrap();
    operation.add_backward(&mut plan, &saved, upward, to).unwrap();
    [o, gradients].iter().for_each(|slot| plan.keep(*slot));
    let mut run = plan.bind().upload_inputs(&own).unwrap().finish().unwrap();
    run.run().unwrap();
    let [o, gradients] = [o, gradients].map(|slot| run.read(slot).unwrap().values());
    let [dq, dk, dv] = [(0, heads), (1, shared_heads), (2, shared_heads)]
        .map(|(n, heads)| out_of_rows(&gradients, [firsts[n], stride], heads, columns));
    [out_of_rows(&o, [0, heads * columns], heads, columns), dq, dk, dv]
}

/// \[1, heads, T, D\] to rows of a matrix, from a column on.
fn into_rows(matrix: &mut [f64], tensor: &Tensor, [first, stride]: [usize; 2]) {
    let [positions, columns] = [tensor.shape[2], tensor.shape[3]];
    for (row, values) in tensor.values().chunks(columns).enumerate() {
        let (head, t) = (row / positions, row % positions);
        matrix[t * stride + first + head * columns..][..columns].copy_from_slice(values);
    }
}

/// Back.
fn out_of_rows(
    matrix: &[f64],
    [first, stride]: [usize; 2],
    heads: usize,
    columns: usize,
) -> Vec<f64> {
    let of_head = |head: usize| {
        matrix.chunks(stride).flat_map(move |row| &row[first + head * columns..][..columns])
    };
    (0..heads).flat_map(of_head).copied().collect()
}

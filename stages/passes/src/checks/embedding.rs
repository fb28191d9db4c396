//! The gradient of an embedding: added to, and the same in every order of threads.

use lab_device::{DType, Device};
use lab_harness::suite::schedules;
use lab_harness::tensor::tensors;
use lab_harness::{Plan, Tensor};
use lab_reference::passes as reference;

use super::{assert_close, noise, run_plan};
use crate::{Embedding, EmbeddingUpstream};

/// The gradient of rows with these tokens, added to what is there.
fn gradient(device: &Device, dtype: DType, tokens: &[i32], dy: &Tensor, before: &Tensor) -> Tensor {
    let (rows, [vocabulary, width]) = (tokens.len(), [before.shape[0], before.shape[1]]);
    let mut plan = Plan::new(device);
    let op = Embedding {
        dtype,
        rows,
        vocabulary,
        width,
        tokens: plan.input("tokens", DType::I32, &[rows]),
        // Its values do not matter to its gradient.
        weight: plan.scratch(dtype, vocabulary * width),
        y: None,
    };
    let dy_slot = plan.input("dy", dtype, &dy.shape);
    let dweight = plan.updated("dweight", "dweight1", DType::F32, &before.shape);
    let upstream = EmbeddingUpstream { dy: dy_slot, dweight, accumulates: true, used: None };
    op.add_backward(&mut plan, upstream).unwrap();
    let ids = Tensor::new(&[rows], tokens);
    let inputs = tensors([("tokens", ids), ("dy", dy.clone()), ("dweight", before.clone())]);
    run_plan(plan, &inputs).remove("dweight1").unwrap()
}

/// Tokens of which one has several pieces, one a few rows, one none, and some are none of the vocabulary's.
fn tokens(rows: usize) -> Vec<i32> {
    let token = |row: usize| match row % 7 {
        0 | 1 | 3 | 4 => 2,
        2 => (row % 5) as i32,
        5 => -3,
        _ => 6 + (row % 3) as i32,
    };
    (0..rows).map(token).collect()
}

pub(super) fn a_tied_gradient_is_added_to(device: &Device) {
    let (rows, vocabulary) = (230, 7);
    for (dtype, width) in [(DType::F32, 12), (DType::BF16, 16), (DType::F16, 13)] {
        let tokens = tokens(rows);
        let dy = noise(1, dtype, &[rows, width]);
        let before = noise(2, DType::F32, &[vocabulary, width]);
        let got = gradient(device, dtype, &tokens, &dy, &before);
        let ids: Vec<i64> = tokens.iter().map(|&token| token.into()).collect();
        let of_rows = reference::embedding_back(&ids, &dy.values(), vocabulary, width);
        let expected: Vec<f64> = of_rows.iter().zip(before.values()).map(|(d, b)| d + b).collect();
        assert_close(&format!("{dtype}"), &got.values(), &expected, 3e-7);
    }
}

/// Steps of two parts each, of which the second adds to the gradient of the first: rows of tokens that come no more become zero, also those
/// of the second part alone.
pub(super) fn rows_that_were_used_are_cleared(device: &Device) {
    let (rows, vocabulary, width, dtype) = (40, 11, 12, DType::F32);
    let mut plan = Plan::new(device);
    let dweight = plan.state_of_zeros("dweight", DType::F32, &[vocabulary, width]);
    let used = plan.state_of_zeros("used", DType::I32, &[vocabulary]);
    let parts = ["0", "1"].map(|part| {
        let tokens = plan.input(&format!("tokens{part}"), DType::I32, &[rows]);
        let dy = plan.input(&format!("dy{part}"), dtype, &[rows, width]);
        let weight = plan.scratch(dtype, vocabulary * width);
        let op = Embedding { dtype, rows, vocabulary, width, tokens, weight, y: None };
        let upstream =
            EmbeddingUpstream { dy, dweight, accumulates: part != "0", used: Some(used) };
        op.add_backward(&mut plan, upstream).unwrap();
        (tokens, dy)
    });
    let dy = [1, 2].map(|seed| noise(seed, dtype, &[rows, width]));
    let tokens_of =
        |all: [usize; 3]| -> Vec<i32> { (0..rows).map(|row| all[row % 3] as i32 - 1).collect() };
    let steps = [([1, 4, 0], [4, 9, 11]), ([2, 3, 4], [2, 3, 4]), ([5, 5, 9], [0, 0, 0])];
    let first = Tensor::new(&[rows], &tokens_of(steps[0].0));
    let mut binder = plan.bind();
    for part in ["0", "1"] {
        binder = binder.upload(&format!("tokens{part}"), &first).unwrap();
        binder = binder.upload(&format!("dy{part}"), &dy[0]).unwrap();
    }
    let mut run = binder.finish().unwrap();
    for (n, step) in steps.into_iter().enumerate() {
        let mut expected = vec![0.0; vocabulary * width];
        for ((slots, all), dy) in parts.iter().zip([step.0, step.1]).zip(&dy) {
            let tokens = tokens_of(all);
            run.write(slots.0, &Tensor::new(&[rows], &tokens)).unwrap();
            run.write(slots.1, dy).unwrap();
            let ids: Vec<i64> = tokens.iter().map(|&token| token.into()).collect();
            let own = reference::embedding_back(&ids, &dy.values(), vocabulary, width);
            expected.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        run.run().unwrap();
        let got = run.read(dweight).unwrap().values();
        assert_close(&format!("step {n}"), &got, &expected, 3e-7);
        let zeros = got.iter().zip(&expected).filter(|(_, e)| **e == 0.0);
        assert!(zeros.into_iter().all(|(got, _)| *got == 0.0), "step {n}: a row is not cleared");
    }
}

/// Tokens that are counted by the last warp of a round of the scan; a token whose last piece has one row; no tokens at all.
pub(super) fn rows_are_sorted_whatever_their_tokens(device: &Device) {
    let (width, dtype) = (5, DType::F32);
    let far: Vec<i32> = (0..40).map(|row| [4095, 8999, 0, 4096, 4000][row % 5]).collect();
    for (tokens, vocabulary) in [(far, 9000), (vec![2; 65], 4), (vec![-1; 70], 4), (vec![3; 64], 4)]
    {
        let dy = noise(1, dtype, &[tokens.len(), width]);
        let before = noise(2, DType::F32, &[vocabulary, width]);
        let got = gradient(device, dtype, &tokens, &dy, &before);
        let ids: Vec<i64> = tokens.iter().map(|&token| token.into()).collect();
        let of_rows = reference::embedding_back(&ids, &dy.values(), vocabulary, width);
        let expected: Vec<f64> = of_rows.iter().zip(before.values()).map(|(d, b)| d + b).collect();
        let what = format!("{} rows of token {} and others", tokens.len(), tokens[0]);
        assert_close(&what, &got.values(), &expected, 3e-7);
    }
}

/// What atomics leave to chance is set right: sums of which each order would have other last digits.
pub(super) fn any_schedule_gives_the_same_gradient(device: &Device) {
    let (rows, width, dtype) = (300, 9, DType::F32);
    let tokens = tokens(rows);
    let dy = noise(1, dtype, &[rows, width]);
    let before = Tensor::new(&[7, width], &vec![0f32; 7 * width]);
    let all: Vec<Tensor> = schedules(device)
        .iter()
        .map(|device| gradient(device, dtype, &tokens, &dy, &before))
        .collect();
    assert!(all.iter().all(|other| *other == all[0]), "of {} orders", all.len());
}

//! What is drawn on a device is what the host draws from the same logits.

use lab_device::{DType, Device};
use lab_harness::plan::Plan;
use lab_harness::{Tensor, Tensors};

use crate::sample::{Draw, Drawing, Sampler};
use crate::{Mixer, Mixers, Model};

/// Rows of one row of logits, each drawn in another way, of `logits` in the type.
fn drawn(device: &Device, model: &Model, dtype: DType, logits: &[f64], draws: &[Draw]) -> Vec<i32> {
    let (batch, stride) = (draws.len(), logits.len().next_multiple_of(8));
    let mut row = logits.to_vec();
    row.resize(stride, 9e4); // what is behind the row's end is nobody's
    let mut plan = Plan::new(device);
    let slot = plan.input("logits", dtype, &[batch, stride]);
    let drawing = Drawing::add(&mut plan, model, dtype, slot, batch).unwrap();
    let all = Tensor::rounded(dtype, &[batch, stride], &row.repeat(batch));
    let inputs = Tensors::from([("logits".to_owned(), all)]);
    let mut run = plan.bind().upload_inputs(&inputs).unwrap().finish().unwrap();
    let (slot, asked) = drawing.asked(draws, batch);
    run.write(slot, &asked).unwrap();
    run.run().unwrap();
    run.read(drawing.tokens).unwrap().values().into_iter().map(|token| token as i32).collect()
}

/// With a cap, and without.
fn models(vocabulary: usize) -> [Model; 2] {
    let vlstm = Model::xlstm(vocabulary, 64, 2, 1);
    [vlstm, vlstm.with_mixers(Mixers::only(Mixer::Attention), None)]
}

/// Logits of which many are equal, as halves have them, one far above and one far below all others.
fn logits(vocabulary: usize) -> Vec<f64> {
    let of = |v: usize| (v * v % 23) as f64 / 4.0 - 2.5;
    let mut all: Vec<f64> = (0..vocabulary).map(of).collect();
    (all[vocabulary / 2], all[1]) = (4.0, -1e30);
    all
}

pub(crate) fn tokens_are_drawn_as_on_the_host(device: &Device) {
    for (vocabulary, dtype) in [(19, DType::F32), (19, DType::BF16), (1100, DType::F16)] {
        for model in models(vocabulary) {
            let logits = logits(vocabulary);
            let rounded = Tensor::rounded(dtype, &[vocabulary], &logits).values();
            let capped: Vec<f64> = rounded.iter().map(|x| model.capped(*x)).collect();
            let written: Vec<i32> = (0..90).map(|n| n * n % vocabulary as i32).collect();
            // Of a tokenizer that knows fewer words than the model, too; all repetitions count in every second draw.
            let others = [(1.0, vocabulary), (1.3, vocabulary - 5), (1.3, vocabulary), (1.0, 3)];
            let kinds = [(0, 1.0), (1, 1.0), (5, 1.0), (0, 0.6), (7, 0.9), (0, 1e-6)];
            let temperatures = [0.7, 3.0, 0.0];
            let of = |n: usize| {
                let ((top_k, top_p), (repetition, known)) = (kinds[n % 6], others[(n + n / 6) % 4]);
                let hot = temperatures[n / 6];
                let mut sampler = Sampler::new(hot, top_k, top_p, repetition, n as u64).unwrap();
                sampler.next(&written, known)
            };
            let draws: Vec<Draw> = (0..14).map(of).collect();
            let found = drawn(device, &model, dtype, &logits, &draws);
            for (draw, found) in draws.iter().zip(found) {
                assert_eq!(found, draw.choose(&capped), "{dtype}, {vocabulary} words: {draw:?}");
            }
        }
    }
}

/// Numbers evenly from 0 to 1 draw each token as often as its probability has it, to one.
pub(crate) fn tokens_are_drawn_as_often_as_they_are_likely(device: &Device) {
    const DRAWS: usize = 120;
    let (model, logits) = (models(19)[1], logits(19));
    let even = |n: usize| ((n as f64 + 0.5) / DRAWS as f64 * 2f64.powi(64)) as u64;
    let draws: Vec<Draw> = (0..DRAWS).map(|n| Draw::evenly(1.5, 19, even(n))).collect();
    let found = drawn(device, &model, DType::F32, &logits, &draws);
    let mass: Vec<f64> = logits.iter().map(|logit| (logit / 1.5).exp()).collect();
    let sum: f64 = mass.iter().sum();
    for (token, mass) in mass.iter().enumerate() {
        let times = found.iter().filter(|found| **found == token as i32).count() as f64;
        let expected = mass / sum * DRAWS as f64;
        assert!((times - expected).abs() <= 1.0, "token {token}: {times} times, not {expected}");
    }
}

/// Of equal logits as many are kept as their share says, not one more because a share is rounded.
pub(crate) fn equal_logits_share_alike(device: &Device) {
    let model = models(19)[1];
    for (words, top_p, kept) in [(5, 0.6, 3), (10, 0.1, 1), (10, 0.3, 3), (5, 0.8, 4), (5, 0.81, 5)]
    {
        let mut all = vec![-1e9; 19];
        all[..words].fill(1.0);
        let even = |n: usize| Draw::evenly(1.0, 19, (2 * n as u64 + 1) << 59).with_share(top_p);
        let draws: Vec<Draw> = (0..16).map(even).collect();
        let found = drawn(device, &model, DType::F32, &all, &draws);
        assert_eq!(found.iter().max(), Some(&(kept - 1)), "{words} words, {top_p}: {found:?}");
        assert!(draws.iter().map(|draw| draw.choose(&all)).eq(found), "on the host");
    }
}

/// Rows without any number, and with one alone.
pub(crate) fn rows_without_numbers_give_a_token(device: &Device) {
    let model = models(19)[1];
    let hot = Sampler::new(1.0, 3, 0.5, 1.1, 3).unwrap().next(&[2], 19);
    for (only, expected) in [(None, 0), (Some(11), 11)] {
        for nothing in [f64::NAN, f64::NEG_INFINITY] {
            let mut logits = vec![nothing; 19];
            only.iter().for_each(|at: &usize| logits[*at] = -3.0);
            let draws = [hot, Draw::likeliest(19)];
            let found = drawn(device, &model, DType::F32, &logits, &draws);
            assert_eq!(found, [expected; 2], "{nothing}, {only:?}");
            assert_eq!(draws.map(|draw| draw.choose(&logits)), [expected; 2], "on the host");
        }
    }
}

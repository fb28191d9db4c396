//! Losses of a model that reads as it does when it writes: a token of each window at a time, behind its state.

use lab_device::{DType, Device};
use lab_harness::Error;

use crate::{Decoded, Decoder, Evaluated, Types};

/// The mean over all targets of these windows, in nats, where C is kept in `states` between tokens: what a narrower state costs, beside the
/// same with states of f32. [`Evaluator`](crate::Evaluator) reads windows at once, and has no state between tokens.
///
/// # Errors
/// As [`Types::new`] and [`Decoder::new`]; windows of several documents, or no windows; tokens with targets of their own.
pub fn mean_loss_by_steps(
    device: &Device,
    of: Evaluated<'_>,
    states: DType,
    starts: &[usize],
) -> Result<f64, Error> {
    let Evaluated { model, parameters, dtype, batch, window, data, document } = of;
    if document.is_some() {
        let expected = "windows of one document, for states go on from token to token";
        return Err(Error::bad("documents", expected, "several in a window"));
    }
    if data.targets.is_some() {
        return Err(Error::bad("data", "tokens, each the target of the one before", "targets"));
    }
    let types = Types::new(dtype, states)?;
    data.check(model.vocabulary, starts, window)?;
    let of = Decoded { model, types, batch, room: window };
    let mut decoder = Decoder::new(device, of, parameters)?;
    let mut sum = 0.0;
    for some in starts.chunks(batch) {
        decoder.forget()?;
        for position in 0..window {
            // Sequences behind the last window read the first one once more.
            let token = |n: usize| data.ids[some.get(n).unwrap_or(&some[0]) + position];
            let tokens: Vec<i32> = (0..batch).map(token).collect();
            decoder.put(&tokens)?;
            decoder.advance()?;
            let targets = some.iter().map(|start| data.ids[start + position + 1] as usize);
            let losses = decoder.logits()?.into_iter().zip(targets);
            sum += losses.map(|(logits, target)| cross_entropy(&logits, target)).sum::<f64>();
        }
    }
    Ok(sum / (starts.len() * window) as f64)
}

fn cross_entropy(logits: &[f64], target: usize) -> f64 {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    largest + sum.ln() - logits[target]
}

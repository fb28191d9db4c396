//! The choice of a next token.

use lab_harness::Error;
use rand::Rng;

/// How a token is chosen from a model's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// What the logits are divided by: below 1 the likely gets likelier; 0 takes the likeliest.
    pub temperature: f64,
    /// Only so many of the likeliest; of all where there is none.
    pub top_k: Option<usize>,
}

impl Choice {
    /// Checks both.
    ///
    /// # Errors
    /// The temperature is negative or not finite; none would be left.
    pub fn new(temperature: f64, top_k: Option<usize>) -> Result<Self, Error> {
        if !temperature.is_finite() || temperature < 0.0 {
            let expected = "a number that is not negative";
            return Err(Error::bad("--temperature", expected, temperature));
        }
        if top_k == Some(0) {
            return Err(Error::bad("--top-k", "at least 1", 0));
        }
        Ok(Self { temperature, top_k })
    }

    /// A token by these logits.
    ///
    /// # Errors
    /// A logit is NaN or infinite.
    pub fn sample(&self, logits: &[f64], rng: &mut impl Rng) -> Result<usize, Error> {
        if let Some(at) = logits.iter().position(|v| !v.is_finite()) {
            let got = format!("{} of token {at}", logits[at]);
            return Err(Error::bad("logits", "finite numbers", got));
        }
        // The likeliest first; of equal ones the first.
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        order.truncate(self.top_k.unwrap_or(usize::MAX));
        if self.temperature == 0.0 {
            return Ok(order[0]);
        }
        let kept: Vec<f64> = order.iter().map(|&t| logits[t] / self.temperature).collect();
        let mut left: f64 = rng.random();
        for (&token, p) in order.iter().zip(probabilities(&kept)) {
            left -= p;
            if left < 0.0 {
                return Ok(token);
            }
        }
        // The roundings of the sum.
        Ok(order[0])
    }
}

/// softmax: e to the power of each, over their sum.
pub fn probabilities(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = logits.iter().map(|v| (v - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|p| p / sum).collect()
}

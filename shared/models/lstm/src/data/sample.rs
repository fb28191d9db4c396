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

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    const LOGITS: [f64; 4] = [0.0, 2.0, 1.0, 2.0];

    fn shares(choice: Choice) -> [f64; 4] {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut shares = [0.0; 4];
        for _ in 0..20_000 {
            shares[choice.sample(&LOGITS, &mut rng).unwrap()] += 1.0 / 20_000.0;
        }
        shares
    }

    #[test]
    fn tokens_are_as_frequent_as_likely() {
        for temperature in [0.5, 1.0, 3.0] {
            let scaled = LOGITS.map(|l| l / temperature);
            let found = shares(Choice::new(temperature, None).unwrap());
            for (found, expected) in found.into_iter().zip(probabilities(&scaled)) {
                assert!((found - expected).abs() < 0.015, "{found} {expected}");
            }
        }
    }

    #[test]
    fn the_likeliest_alone() {
        assert_eq!(shares(Choice::new(0.0, None).unwrap())[1], shares_of_one());
        assert_eq!(shares(Choice::new(9.0, Some(1)).unwrap())[1], shares_of_one());
        let two = shares(Choice::new(1.0, Some(2)).unwrap());
        assert_eq!((two[0], two[2]), (0.0, 0.0));
        assert!((two[1] - 0.5).abs() < 0.015);
    }

    /// 1 as it comes out of adding up.
    fn shares_of_one() -> f64 {
        (0..20_000).fold(0.0, |sum, _| sum + 1.0 / 20_000.0)
    }

    #[test]
    fn what_cannot_be_chosen_from_is_refused() {
        assert!(Choice::new(-1.0, None).is_err());
        assert!(Choice::new(f64::NAN, None).is_err());
        assert!(Choice::new(1.0, Some(0)).is_err());
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let choice = Choice::new(1.0, None).unwrap();
        let error = choice.sample(&[0.0, f64::NAN], &mut rng).unwrap_err().to_string();
        assert_eq!(error, "logits: expected finite numbers, got NaN of token 1");
        // Far apart, in f64 too.
        assert_eq!(choice.sample(&[-1e300, 1e300], &mut rng).unwrap(), 1);
    }
}

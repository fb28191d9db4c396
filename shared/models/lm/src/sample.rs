//! The next token, drawn from logits.

use lab_harness::Error;
use rand::{Rng as _, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Draws tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// Logits are divided by it; 0 takes the largest always.
    temperature: f64,
    /// Of the largest so many; 0 for all.
    top_k: usize,
    /// Of the likeliest, as many as have this probability together; 1 for all.
    top_p: f64,
    /// Logits of the last tokens are divided by it where they are above 0, else multiplied with it; 1 for none.
    repetition: f64,
    random: ChaCha8Rng,
}

/// Tokens back that a repetition is looked for.
const LOOKED_BACK: usize = 64;

impl Sampler {
    /// With these choices, and the same tokens for the same seed.
    ///
    /// # Errors
    /// A temperature below 0, a probability that is none, a repetition below 1.
    pub fn new(
        temperature: f64,
        top_k: usize,
        top_p: f64,
        repetition: f64,
        seed: u64,
    ) -> Result<Self, Error> {
        if !(0.0..f64::MAX).contains(&temperature) {
            return Err(Error::bad("temperature", "a number from 0 on", temperature));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Error::bad("top-p", "above 0 and at most 1", top_p));
        }
        if !(1.0..f64::MAX).contains(&repetition) {
            return Err(Error::bad("repetition", "a number from 1 on", repetition));
        }
        let random = ChaCha8Rng::seed_from_u64(seed);
        Ok(Self { temperature, top_k, top_p, repetition, random })
    }

    /// The token behind `written`, from its logits.
    ///
    /// # Panics
    /// There are no logits.
    pub fn draw(&mut self, logits: &[f64], written: &[i32]) -> i32 {
        let mut all: Vec<(usize, f64)> = logits.iter().copied().enumerate().collect();
        for &id in written.iter().rev().take(LOOKED_BACK) {
            if let Some((_, logit)) = all.get_mut(id as usize) {
                *logit =
                    if *logit > 0.0 { *logit / self.repetition } else { *logit * self.repetition };
            }
        }
        // The same order for equal logits, on every machine.
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if self.temperature == 0.0 {
            return all[0].0 as i32;
        }
        if self.top_k > 0 {
            all.truncate(self.top_k);
        }
        let largest = all[0].1;
        let powers: Vec<f64> =
            all.iter().map(|(_, logit)| ((logit - largest) / self.temperature).exp()).collect();
        let enough = self.top_p * powers.iter().sum::<f64>();
        let (mut kept, mut sum) = (0, 0.0);
        while kept < powers.len() && (kept == 0 || sum < enough) {
            sum += powers[kept];
            kept += 1;
        }
        let mut at = self.random.random::<f64>() * sum;
        for (n, power) in powers[..kept].iter().enumerate() {
            at -= power;
            if at < 0.0 {
                return all[n].0 as i32;
            }
        }
        all[kept - 1].0 as i32
    }
}

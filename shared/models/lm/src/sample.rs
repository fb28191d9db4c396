//! The next token, drawn from logits: what is asked for, and the same on the host.

use lab_device::DType;
use lab_harness::plan::{Plan, Slot};
use lab_harness::{Error, Tensor, arguments};
use rand::{Rng as _, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{Model, kernels};

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

/// How one token is to be drawn (`kernels/draw.cu`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    temperature: f64,
    top_k: usize,
    top_p: f64,
    repetition: f64,
    /// From 0 to 1, in units of 2⁻⁶⁴.
    random: u64,
    /// Tokens that a text may have: those behind them are never drawn.
    vocabulary: usize,
    /// The last tokens, each once, and −1 where there are fewer.
    recent: [i32; LOOKED_BACK],
}

/// Tokens back that a repetition is looked for.
const LOOKED_BACK: usize = 64;

/// i32 words of a draw on the device.
const WORDS: usize = 8 + LOOKED_BACK;

/// Less than this is no temperature on the device, whose floats end there.
const COLDEST: f64 = 1e-30;

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

    /// How the token behind `written` is drawn, of the first so many of a vocabulary.
    pub fn next(&mut self, written: &[i32], vocabulary: usize) -> Draw {
        let Self { temperature, top_k, top_p, repetition, .. } = *self;
        let temperature = if temperature < COLDEST { 0.0 } else { temperature };
        let mut recent = [-1; LOOKED_BACK];
        let mut count = 0;
        for &token in written.iter().rev().take(LOOKED_BACK) {
            if !recent[..count].contains(&token) {
                recent[count] = token;
                count += 1;
            }
        }
        let random = if temperature == 0.0 { 0 } else { self.random.random() };
        let vocabulary = vocabulary.max(1);
        Draw { temperature, top_k, top_p, repetition, random, vocabulary, recent }
    }

    /// The token behind `written`, from its logits.
    ///
    /// # Panics
    /// There are no logits.
    pub fn draw(&mut self, logits: &[f64], written: &[i32]) -> i32 {
        self.next(written, logits.len()).choose(logits)
    }
}

impl Draw {
    /// The likeliest token.
    pub fn likeliest(vocabulary: usize) -> Self {
        let (temperature, top_p, repetition) = (0.0, 1.0, 1.0);
        let recent = [-1; LOOKED_BACK];
        Self { temperature, top_k: 0, top_p, repetition, random: 0, vocabulary, recent }
    }

    /// Of all tokens, at a temperature, by a random number in units of 2⁻⁶⁴.
    pub(crate) fn evenly(temperature: f64, vocabulary: usize, random: u64) -> Self {
        Self { temperature, random, ..Self::likeliest(vocabulary) }
    }

    /// The same of the likeliest tokens that have this probability together.
    pub(crate) fn with_share(self, top_p: f64) -> Self {
        Self { top_p, ..self }
    }

    /// The token, from logits with their cap, in f64.
    ///
    /// # Panics
    /// There are no logits.
    pub fn choose(&self, logits: &[f64]) -> i32 {
        let mut all = logits[..self.vocabulary.min(logits.len())].to_vec();
        for &id in self.recent.iter().filter(|id| **id >= 0) {
            if let Some(logit) = all.get_mut(id as usize) {
                *logit =
                    if *logit > 0.0 { *logit / self.repetition } else { *logit * self.repetition };
            }
        }
        // What is no number comes last. The same order for equal logits, on every machine.
        let of = |v: &usize| if all[*v].is_nan() { f64::NEG_INFINITY } else { all[*v] };
        let before = |a: &usize, b: &usize| of(b).total_cmp(&of(a)).then(a.cmp(b));
        let first = (0..all.len()).min_by(before).expect("logits");
        if self.temperature == 0.0 {
            return first as i32;
        }
        let mass: Vec<f64> = all
            .iter()
            .map(|logit| ((logit - all[first]) / self.temperature).exp().max(0.0))
            .collect();
        let mut kept: Vec<usize> = (0..all.len()).collect();
        if self.top_k > 0 && self.top_k < kept.len() {
            kept.select_nth_unstable_by(self.top_k, before);
            kept.truncate(self.top_k);
        }
        if self.top_p < 1.0 {
            kept.sort_unstable_by(before);
            let enough = self.top_p * kept.iter().map(|v| mass[*v]).sum::<f64>();
            let mut sum = 0.0;
            let is_short = |v: &&usize| {
                let is_short = sum < enough;
                sum += mass[**v];
                is_short
            };
            let count = kept.iter().take_while(is_short).count();
            kept.truncate(count.max(1));
        }
        kept.sort_unstable();
        let sum: f64 = kept.iter().map(|v| mass[*v]).sum();
        let mut at = self.random as f64 / 2f64.powi(64) * sum;
        let found = kept.iter().find(|v| {
            at -= mass[**v];
            at < 0.0
        });
        *found.unwrap_or(&first) as i32
    }

    /// As the kernel has it.
    fn words(&self) -> [i32; WORDS] {
        let mut words = [0; WORDS];
        let bits = |x: f64| (x as f32).to_bits() as i32;
        let halves = |x: u64| [x as i32, (x >> 32) as i32];
        words[..2].copy_from_slice(&halves(self.top_p.to_bits()));
        words[2] = bits(self.temperature);
        words[3] = bits(self.repetition);
        words[4] = i32::try_from(self.top_k).unwrap_or(i32::MAX);
        words[5..7].copy_from_slice(&halves(self.random));
        words[7] = i32::try_from(self.vocabulary).unwrap_or(i32::MAX);
        words[8..].copy_from_slice(&self.recent);
        words
    }
}

/// The slots of the launch that draws.
#[derive(Clone, Copy)]
pub(crate) struct Drawing {
    draws: Slot,
    /// i32 \[B\].
    pub(crate) tokens: Slot,
}

impl Drawing {
    /// Adds the launch, for logits \[B, V or more\] of so many sequences.
    pub(crate) fn add(
        plan: &mut Plan,
        model: &Model,
        dtype: DType,
        logits: Slot,
        batch: usize,
    ) -> Result<Self, Error> {
        let draws = plan.state_of_zeros("draws", DType::I32, &[batch, WORDS]);
        let tokens = plan.state_of_zeros("drawn", DType::I32, &[batch]);
        let scores = plan.scratch(DType::F32, batch * model.vocabulary);
        let name = format!("draw_tokens<{}>", dtype.cpp());
        let kernel = plan.device().kernel(&kernels::DRAW, &name)?;
        let launch = kernel.grid([batch as u32, 1, 1])?;
        let (stride, cap) = (logits.len() / batch, model.logit_cap().unwrap_or(0.0));
        plan.launch(
            &kernel,
            launch,
            arguments![logits, scores, draws, tokens, V: model.vocabulary, stride, cap],
        )?;
        Ok(Self { draws, tokens })
    }

    /// The slot of what is asked for, and that of so many sequences; those behind them draw nothing.
    pub(crate) fn asked(&self, all: &[Draw], batch: usize) -> (Slot, Tensor) {
        let mut words: Vec<i32> = all.iter().flat_map(Draw::words).collect();
        words.resize(batch * WORDS, 0);
        (self.draws, Tensor::new(&[batch, WORDS], &words))
    }
}

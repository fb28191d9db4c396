//! Models of text that only count: what a network has to beat.

use std::collections::HashMap;

/// How often each token is there, whatever stands before it; one is added to each count (Laplace),
/// so that none is impossible.
#[derive(Clone, Debug, PartialEq)]
pub struct Unigrams {
    probabilities: Vec<f64>,
}

impl Unigrams {
    /// Of a text of tokens below `classes`.
    ///
    /// # Panics
    /// A token is not below it.
    pub fn of(tokens: &[usize], classes: usize) -> Self {
        let mut counts = vec![1.0; classes];
        tokens.iter().for_each(|&t| counts[t] += 1.0);
        let all = (tokens.len() + classes) as f64;
        Self { probabilities: counts.into_iter().map(|c| c / all).collect() }
    }

    /// The probability of a token.
    ///
    /// # Panics
    /// There is no such token.
    pub fn probability(&self, token: usize) -> f64 {
        self.probabilities[token]
    }
}

/// How often each token follows another, with what the unigrams say where that was not seen often
/// (Witten & Bell 1991, method C): after a, seen N(a) times with D(a) different tokens after it,
///
/// ```text
/// P(b | a) = (N(ab) + D(a) P(b)) / (N(a) + D(a))
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Bigrams {
    unigrams: Unigrams,
    pairs: HashMap<(usize, usize), f64>,
    /// N and D of each token.
    after: Vec<(f64, f64)>,
}

impl Bigrams {
    /// Of a text of tokens below `classes`.
    ///
    /// # Panics
    /// A token is not below it.
    pub fn of(tokens: &[usize], classes: usize) -> Self {
        let mut pairs: HashMap<(usize, usize), f64> = HashMap::new();
        let mut after = vec![(0.0, 0.0); classes];
        for pair in tokens.windows(2) {
            let count = pairs.entry((pair[0], pair[1])).or_insert(0.0);
            let (all, different) = &mut after[pair[0]];
            *all += 1.0;
            *different += if *count == 0.0 { 1.0 } else { 0.0 };
            *count += 1.0;
        }
        Self { unigrams: Unigrams::of(tokens, classes), pairs, after }
    }

    /// The probability of a token after another.
    ///
    /// # Panics
    /// There is no such token.
    pub fn probability(&self, before: usize, token: usize) -> f64 {
        let (all, different) = self.after[before];
        let alone = self.unigrams.probability(token);
        if all == 0.0 {
            return alone;
        }
        let seen = self.pairs.get(&(before, token)).copied().unwrap_or(0.0);
        (seen + different * alone) / (all + different)
    }
}

/// The mean of −log₂ P over the tokens but the first, each with the one before it: bits for each
/// token. 2 to this power is the perplexity. NaN where there are not two.
pub fn bits_per_token(tokens: &[usize], probability: impl Fn(usize, usize) -> f64) -> f64 {
    let bits = tokens.windows(2).map(|pair| -probability(pair[0], pair[1]).log2());
    bits.sum::<f64>() / tokens.len().saturating_sub(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three tokens, the last of which the text has not.
    const TEXT: [usize; 8] = [0, 1, 0, 1, 0, 1, 1, 0];

    #[test]
    fn probabilities_are_those_of_the_formulas() {
        let one = Unigrams::of(&TEXT, 3);
        assert_eq!([0, 1, 2].map(|t| one.probability(t)), [5.0 / 11.0, 5.0 / 11.0, 1.0 / 11.0]);
        let two = Bigrams::of(&TEXT, 3);
        // After 0: three times 1. After 1: three times 0, once 1.
        assert_eq!(two.probability(0, 1), (3.0 + 5.0 / 11.0) / 4.0);
        assert_eq!(two.probability(0, 0), (5.0 / 11.0) / 4.0);
        assert_eq!(two.probability(1, 0), (3.0 + 2.0 * 5.0 / 11.0) / 6.0);
        assert_eq!(two.probability(2, 1), 5.0 / 11.0, "as if alone, where nothing was seen");
    }

    #[test]
    fn probabilities_add_up_to_one() {
        let tokens: Vec<usize> = (0..500).map(|n| (n * n + n / 7) % 11).collect();
        let two = Bigrams::of(&tokens, 13);
        for before in 0..13 {
            let sum: f64 = (0..13).map(|t| two.probability(before, t)).sum();
            assert!((sum - 1.0).abs() < 1e-12, "{before}: {sum}");
        }
    }

    #[test]
    fn bits_of_equal_odds_are_the_logarithm_of_their_number() {
        assert_eq!(bits_per_token(&TEXT, |_, _| 0.25), 2.0);
        assert!(bits_per_token(&TEXT[..1], |_, _| 0.25).is_nan());
        let two = Bigrams::of(&TEXT, 3);
        let one = Unigrams::of(&TEXT, 3);
        let [pairs, alone] = [
            bits_per_token(&TEXT, |a, b| two.probability(a, b)),
            bits_per_token(&TEXT, |_, b| one.probability(b)),
        ];
        assert!(pairs < alone, "{pairs} {alone}");
    }
}

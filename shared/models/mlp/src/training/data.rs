//! What there is to learn from.

use lab_harness::Error;
use sha2::{Digest, Sha256};

use super::Model;

/// A text as tokens. A pair at start s is the token there and, as its target, the one behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// From 0 to V − 1.
    pub tokens: Vec<i32>,
    /// V.
    pub vocabulary: usize,
}

/// The most tokens: kernels count in 32 bits.
const MOST_TOKENS: usize = 1 << 30;

impl Data {
    /// The starts of all pairs.
    pub fn starts(&self) -> Vec<usize> {
        (0..self.tokens.len().saturating_sub(1)).collect()
    }

    /// Whether a model can read it.
    pub(crate) fn check(&self, model: &Model) -> Result<(), Error> {
        let Self { tokens, vocabulary } = self;
        if *vocabulary != model.vocabulary {
            let expected = format!("{}, the model's", model.vocabulary);
            return Err(Error::bad("vocabulary of the data", expected, vocabulary));
        }
        if tokens.len() < 2 || tokens.len() > MOST_TOKENS {
            return Err(Error::bad("tokens", format!("2 to {MOST_TOKENS}"), tokens.len()));
        }
        check_tokens(tokens, *vocabulary)
    }

    /// Refuses pairs without a target.
    pub(crate) fn check_starts(&self, starts: &[usize]) -> Result<(), Error> {
        let last = self.tokens.len() - 2;
        if starts.is_empty() || starts.len() > MOST_TOKENS {
            return Err(Error::bad("pairs", format!("1 to {MOST_TOKENS}"), starts.len()));
        }
        match starts.iter().position(|&s| s > last) {
            Some(at) => {
                Err(Error::bad(format!("start of pair {at}"), format!("0 to {last}"), starts[at]))
            }
            None => Ok(()),
        }
    }

    /// What tells data and pairs from others.
    pub(crate) fn digest(&self, starts: &[usize]) -> String {
        let mut hash = Sha256::new();
        hash.update(format!("text {} {};", self.vocabulary, self.tokens.len()));
        self.tokens.iter().for_each(|t| hash.update(t.to_le_bytes()));
        starts.iter().for_each(|&s| hash.update((s as u64).to_le_bytes()));
        format!("{:x}", hash.finalize())
    }
}

/// Refuses a token that is not of the vocabulary.
pub(crate) fn check_tokens(tokens: &[i32], vocabulary: usize) -> Result<(), Error> {
    let fits = |&t: &i32| usize::try_from(t).is_ok_and(|t| t < vocabulary);
    match tokens.iter().position(|t| !fits(t)) {
        Some(at) => {
            let expected = format!("0 to {}", vocabulary - 1);
            Err(Error::bad(format!("token {at}"), expected, tokens[at]))
        }
        None => Ok(()),
    }
}

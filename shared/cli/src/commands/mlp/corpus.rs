//! A text, as a model reads it.

use std::ops::Range;
use std::path::Path;

use lab_harness::Error;
use lab_mlp::data::{Bigrams, Unigrams, Vocabulary, bits_per_token};
use lab_mlp::training::Data;

use super::settings::Settings;

/// The text of a training, cut in two: what is learned, and what is held out.
pub(super) struct Corpus {
    pub(super) vocabulary: Vocabulary,
    pub(super) data: Data,
    /// Tokens that are learned: the first so many.
    learned: usize,
}

impl Corpus {
    /// Reads the text of these settings and makes its vocabulary, which must be the expected one where there is one.
    pub(super) fn load(settings: &Settings, expected: Option<&Vocabulary>) -> Result<Self, Error> {
        let path = &settings.text;
        let vocabulary = Vocabulary::of(path, settings.unit(), settings.max_vocab)?;
        if expected.is_some_and(|expected| *expected != vocabulary) {
            let expected = "the text that the model was trained on, with its vocabulary";
            return Err(Error::bad(path.display().to_string(), expected, "another"));
        }
        let tokens = vocabulary.encode_file(path)?;
        let learned = tokens.len() - (tokens.len() as f64 * settings.held_out) as usize;
        if learned < 2 {
            let expected = format!("two tokens or more beside the {} held out", settings.held_out);
            return Err(Error::bad(path.display().to_string(), expected, learned));
        }
        let data = Data { tokens, vocabulary: vocabulary.len() };
        Ok(Self { vocabulary, data, learned })
    }

    /// Where the pairs to learn from begin.
    pub(super) fn starts(&self) -> Vec<usize> {
        (0..self.learned - 1).collect()
    }

    /// The tokens that are held out, the last that was learned before them: what they are told from.
    pub(super) fn held_out(&self) -> Range<usize> {
        self.learned - 1..self.data.tokens.len()
    }

    /// Bits for each of these tokens but the first, of what only counts in the part that is learned.
    pub(super) fn baselines(&self, told: &[i32]) -> [(&'static str, f64); 3] {
        let numbers = |ids: &[i32]| ids.iter().map(|id| *id as usize).collect::<Vec<_>>();
        let (learned, told) = (numbers(&self.data.tokens[..self.learned]), numbers(told));
        let classes = self.vocabulary.len();
        let unigrams = Unigrams::of(&learned, classes);
        let bigrams = Bigrams::of(&learned, classes);
        [
            ("bigrams", bits_per_token(&told, |a, b| bigrams.probability(a, b))),
            ("unigrams", bits_per_token(&told, |_, b| unigrams.probability(b))),
            ("all alike", (classes as f64).log2()),
        ]
    }

    /// In a line.
    pub(super) fn describe(&self, path: &Path) -> String {
        let held = self.held_out().len() - 1;
        format!(
            "{}, {} tokens, {} in the vocabulary: {} pairs to learn from, {held} held out",
            path.display(),
            self.data.tokens.len(),
            self.vocabulary.len(),
            self.learned - 1
        )
    }
}

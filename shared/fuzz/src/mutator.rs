//! Changes of inputs.

use std::ops::Range;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Longer inputs find nothing that shorter ones do not.
const LONGEST: usize = 1 << 14;

const NUMBERS: [&str; 16] = [
    "0",
    "-1",
    "1",
    "255",
    "65536",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999999999999999",
    "1e999",
    "-1e-999",
    "NaN",
    "inf",
    "0.1",
];

const PIECES: [&[u8]; 12] = [
    b"\xFF",
    b"\xC3",
    b"\xED\xA0\x80",
    b"\xF4\x90\x80\x80",
    b"\xEF\xBB\xBF",
    b"\0",
    b"\r\n",
    b"\n",
    b"\x1B[2J",
    "\u{202E}".as_bytes(),
    b"\"",
    b"'",
];

/// Draws inputs from a corpus, the same ones in every run.
#[derive(Debug)]
pub struct Mutator {
    random: ChaCha8Rng,
    corpus: Vec<Vec<u8>>,
    words: &'static [&'static str],
}

impl Mutator {
    /// Of these files and the words of their format.
    pub fn new(corpus: Vec<Vec<u8>>, words: &'static [&'static str]) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(1), corpus, words }
    }

    /// A file of the corpus.
    ///
    /// # Panics
    /// The corpus is empty.
    pub fn seed(&mut self) -> Vec<u8> {
        self.corpus.choose(&mut self.random).expect("a corpus").clone()
    }

    /// A number below that one.
    pub fn below(&mut self, end: usize) -> usize {
        self.random.random_range(0..end.max(1))
    }

    /// The input with one change, or several.
    pub fn mutate(&mut self, input: &[u8]) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..1 << self.below(4) {
            self.change(&mut bytes);
        }
        bytes.truncate(LONGEST);
        bytes
    }

    /// A text with one change, or several.
    pub fn text(&mut self, text: &str) -> String {
        String::from_utf8_lossy(&self.mutate(text.as_bytes())).into_owned()
    }

    fn range(&mut self, len: usize, most: usize) -> Range<usize> {
        let start = self.below(len + 1);
        let end = start + self.below(most.min(len - start) + 1);
        start..end
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        let at = self.below(len + 1);
        match self.below(12) {
            0 if at < len => bytes[at] ^= 1 << self.below(8),
            1 if at < len => bytes[at] = self.random.random(),
            2 => drop(bytes.drain(self.range(len, 16))),
            3 => drop(bytes.drain(self.range(len, len))),
            4 => {
                // Few copies as a rule; many now and then.
                let part = bytes[self.range(len, 64)].to_vec();
                let times = 1 << self.below(8);
                bytes.splice(at..at, part.repeat(times));
            }
            5 => {
                let other = self.seed();
                let part = other[self.range(other.len(), other.len())].to_vec();
                let range = self.range(len, len);
                bytes.splice(range, part);
            }
            6 | 7 => {
                let number = *NUMBERS.choose(&mut self.random).expect("numbers");
                let range = number_at(bytes, at);
                bytes.splice(range, number.bytes());
            }
            8 => {
                let piece = *PIECES.choose(&mut self.random).expect("pieces");
                bytes.splice(at..at, piece.iter().copied());
            }
            9 | 10 => {
                let Some(word) = self.words.choose(&mut self.random) else { return };
                let range = if self.below(2) == 0 { at..at } else { word_at(bytes, at) };
                bytes.splice(range, word.bytes());
            }
            _ => {
                let (a, b) = (self.range(len, 32), self.range(len, 32));
                let part = bytes[a].to_vec();
                bytes.splice(b, part);
            }
        }
    }
}

/// The number that stands at `at` or behind it.
fn number_at(bytes: &[u8], at: usize) -> Range<usize> {
    let is = |b: &u8| b.is_ascii_digit() || matches!(b, b'.' | b'-');
    let start = bytes[at..].iter().position(u8::is_ascii_digit).map_or(at, |n| at + n);
    let end = bytes[start..].iter().position(|b| !is(b)).map_or(bytes.len(), |n| start + n);
    start..end
}

/// The word that stands at `at`.
fn word_at(bytes: &[u8], at: usize) -> Range<usize> {
    let is = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    let start = bytes[..at].iter().rposition(|b| !is(b)).map_or(0, |n| n + 1);
    let end = bytes[at..].iter().position(|b| !is(b)).map_or(bytes.len(), |n| at + n);
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_many_and_the_same_each_time() {
        let corpus = || vec![b"n = 12, m = 3".to_vec(), b"in:f32[n]".to_vec()];
        let inputs = || {
            let mut mutator = Mutator::new(corpus(), &["random"]);
            let mut next = || {
                let seed = mutator.seed();
                mutator.mutate(&seed)
            };
            (0..1000).map(|_| next()).collect::<Vec<_>>()
        };
        let all = inputs();
        assert_eq!(all, inputs());
        let different: std::collections::HashSet<_> = all.iter().collect();
        assert!(different.len() > 900, "{}", different.len());
        assert!(all.iter().any(|i| std::str::from_utf8(i).is_err()));
        assert!(all.iter().any(|i| i.windows(6).any(|w| w == b"random")));
        assert!(all.iter().any(|i| i.windows(5).any(|w| w == b"1e999")));
    }

    #[test]
    fn numbers_and_words_are_found_whole() {
        let text = b"n = -12.5, m";
        assert_eq!(&text[number_at(text, 0)], b"12.5");
        assert_eq!(&text[word_at(text, 11)], b"m");
        assert_eq!(number_at(text, text.len()), text.len()..text.len());
    }
}

//! The tokens that a model knows.

use std::collections::HashMap;
use std::path::Path;

use lab_harness::Error;
use serde::{Deserialize, Serialize};
use unicode_segmentation::UnicodeSegmentation as _;

use super::pieces::{bad_file, line_ends, of_file, text};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// A word, a number or a punctuation mark, as Unicode's Annex 29 finds their boundaries; whitespace
    /// is between tokens.
    Words,
    /// A byte, of any file.
    Bytes,
}

/// The most frequent tokens of a text, of equal ones the one that comes first, each with a number from
/// 1 on. 0 is the unknown token, and stands for all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    unit: Unit,
    tokens: Vec<Box<[u8]>>,
    ids: HashMap<Box<[u8]>, i32>,
}

/// How the unknown token is shown.
const UNKNOWN: &str = "<unknown>";

impl Vocabulary {
    /// Of a file, which is read a piece at a time, with at most so many tokens, the unknown one
    /// counted.
    ///
    /// # Errors
    /// `most` is not from 2 to 2²⁰. [`Error::File`]: the file cannot be read, is empty, holds a single
    /// token, or is to be words and is not UTF-8: with the place.
    pub fn of(path: &Path, unit: Unit, most: usize) -> Result<Self, Error> {
        lab_training::count("--max-vocab", most, 1 << 20)?;
        if most < 2 {
            return Err(Error::bad("--max-vocab", "2 or more: one is the unknown token", most));
        }
        let mut counts: HashMap<Box<[u8]>, (u64, usize)> = HashMap::new();
        let mut all = 0u64;
        each_token(path, unit, |token| {
            all += 1;
            if let Some((count, _)) = counts.get_mut(token) {
                *count += 1;
            } else {
                let first = counts.len();
                counts.insert(token.into(), (1, first));
            }
        })?;
        if all < 2 {
            let what = if unit == Unit::Words { "words" } else { "bytes" };
            let message = format!("expected two {what} or more, got {all}");
            return Err(bad_file(path, message));
        }
        let mut all: Vec<_> = counts.into_iter().collect();
        all.sort_unstable_by_key(|(_, (count, first))| (std::cmp::Reverse(*count), *first));
        all.truncate(most - 1);
        Ok(Self::from_tokens(unit, all.into_iter().map(|t| t.0).collect()))
    }

    fn from_tokens(unit: Unit, tokens: Vec<Box<[u8]>>) -> Self {
        let ids = (1..).zip(&tokens).map(|(id, token)| (token.clone(), id)).collect();
        Self { unit, tokens, ids }
    }

    /// As text, from which [`Vocabulary::parse`] makes it again.
    pub fn write(&self) -> String {
        let tokens: Vec<String> = match self.unit {
            Unit::Words => {
                self.tokens.iter().map(|t| String::from_utf8_lossy(t).into_owned()).collect()
            }
            Unit::Bytes => self.tokens.iter().map(|t| t[0].to_string()).collect(),
        };
        serde_json::to_string(&(self.unit, tokens)).expect("texts are JSON")
    }

    /// From what [`Vocabulary::write`] gave; `None` of any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let (unit, tokens): (Unit, Vec<String>) = serde_json::from_str(text).ok()?;
        let token = |text: String| match unit {
            Unit::Words => (!text.is_empty()).then(|| text.into_bytes().into_boxed_slice()),
            Unit::Bytes => Some(vec![text.parse::<u8>().ok()?].into_boxed_slice()),
        };
        let tokens: Vec<_> = tokens.into_iter().map(token).collect::<Option<_>>()?;
        let vocabulary = Self::from_tokens(unit, tokens);
        let each_once = vocabulary.ids.len() == vocabulary.tokens.len();
        (each_once && !vocabulary.tokens.is_empty()).then_some(vocabulary)
    }

    /// What its tokens are.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// How many, the unknown one counted; two at least.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.tokens.len() + 1
    }

    /// The numbers of a file's tokens, which is read a piece at a time.
    ///
    /// # Errors
    /// As [`Vocabulary::of`], but for what it says of sizes.
    pub fn encode_file(&self, path: &Path) -> Result<Vec<i32>, Error> {
        let mut ids = Vec::new();
        each_token(path, self.unit, |token| ids.push(self.id(token)))?;
        Ok(ids)
    }

    /// The tokens of a short text, each with its number.
    pub fn encode<'a>(&self, text: &'a str) -> Vec<(&'a [u8], i32)> {
        let mut all = Vec::new();
        let mut take = |token: &'a [u8]| all.push((token, self.id(token)));
        match self.unit {
            Unit::Words => words(text).for_each(|word| take(word.as_bytes())),
            Unit::Bytes => text.as_bytes().chunks(1).for_each(take),
        }
        all
    }

    fn id(&self, token: &[u8]) -> i32 {
        self.ids.get(token).copied().unwrap_or(0)
    }

    /// A token for a reader: bytes that are no printable ASCII as `\x0a`.
    ///
    /// # Panics
    /// There is no such token.
    pub fn show(&self, id: usize) -> String {
        match id.checked_sub(1).map(|at| &self.tokens[at]) {
            None => UNKNOWN.to_owned(),
            Some(token) => show(token),
        }
    }
}

/// See [`Vocabulary::show`].
fn show(token: &[u8]) -> String {
    match std::str::from_utf8(token) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => token.escape_ascii().to_string(),
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_word_bounds().filter(|word| !word.trim().is_empty())
}

fn each_token(path: &Path, unit: Unit, mut take: impl FnMut(&[u8])) -> Result<(), Error> {
    let (mut offset, mut lines) = (0, 0);
    of_file(path, |piece| {
        match unit {
            Unit::Bytes => piece.chunks(1).for_each(&mut take),
            Unit::Words => {
                words(text(path, piece, offset, lines)?).for_each(|word| take(word.as_bytes()));
            }
        }
        offset += piece.len();
        lines += line_ends(piece);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &[u8], unit: Unit, most: usize) -> Result<(Vocabulary, Vec<i32>), String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t");
        std::fs::write(&path, text).unwrap();
        let vocabulary = Vocabulary::of(&path, unit, most).map_err(|e| e.to_string())?;
        let ids = vocabulary.encode_file(&path).unwrap();
        Ok((vocabulary, ids))
    }

    #[test]
    fn the_most_frequent_first_and_of_equals_the_first() {
        let text = "Don't stop, don't!\nNo: 3.5 times, no";
        let (all, ids) = of(text.as_bytes(), Unit::Words, 100).unwrap();
        let shown: Vec<String> = (0..all.len()).map(|id| all.show(id)).collect();
        let expected =
            ["<unknown>", ",", "Don't", "stop", "don't", "!", "No", ":", "3.5", "times", "no"];
        assert_eq!(shown, expected);
        assert_eq!(ids, [2, 3, 1, 4, 5, 6, 7, 8, 9, 1, 10]);
        let (few, ids) = of(text.as_bytes(), Unit::Words, 2).unwrap();
        assert_eq!((few.len(), few.show(1)), (2, ",".to_owned()));
        assert_eq!(ids.iter().filter(|id| **id == 1).count(), 2);
    }

    #[test]
    fn bytes_are_of_any_file() {
        let (all, ids) = of(b"\xFF\x00\xFF\n", Unit::Bytes, 300).unwrap();
        assert_eq!(ids, [1, 2, 1, 3]);
        assert_eq!([1, 2, 3].map(|id| all.show(id)), ["\\xff", "\\x00", "\\n"]);
        assert_eq!(Vocabulary::parse(&all.write()), Some(all));
    }

    #[test]
    fn as_text_it_comes_back() {
        let (all, _) = of("a \"b\" ä \\ 漢字".as_bytes(), Unit::Words, 50).unwrap();
        assert_eq!(Vocabulary::parse(&all.write()), Some(all));
        for other in
            ["", "[]", "[\"words\", []]", "[\"words\", [\"a\", \"a\"]]", "[\"bytes\", [\"300\"]]"]
        {
            assert_eq!(Vocabulary::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_text_that_teaches_nothing_is_refused() {
        let said = |text: &[u8], unit, most| of(text, unit, most).unwrap_err();
        assert!(said(b"one", Unit::Words, 9).ends_with("expected two words or more, got 1"));
        assert!(said(b" \n ", Unit::Words, 9).ends_with("expected two words or more, got 0"));
        assert!(said(b"1", Unit::Bytes, 9).ends_with("expected two bytes or more, got 1"));
        assert!(said(b"a b", Unit::Words, 1).contains("--max-vocab: expected"));
        assert!(said(b"a b", Unit::Words, 0).contains("--max-vocab: expected"));
        assert!(said(b"ok\n\xC3\x28", Unit::Words, 9).contains("offset 3, line 2"));
        assert!(said(b"", Unit::Bytes, 9).ends_with("got an empty file"));
    }

    #[test]
    fn a_prompt_tells_what_it_does_not_know() {
        let (all, _) = of(b"to be or not to be", Unit::Words, 3).unwrap();
        let ids: Vec<i32> = all.encode("to be, Hamlet").into_iter().map(|t| t.1).collect();
        assert_eq!(ids, [1, 2, 0, 0]);
    }
}

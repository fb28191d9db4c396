//! Texts, character by character.

use std::collections::HashMap;
use std::path::Path;

use lab_harness::Error;

use super::bad_file;

/// The characters that a model knows, each with a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    characters: Vec<char>,
    numbers: HashMap<char, usize>,
}

impl Vocabulary {
    /// Those of a text, the most frequent first, and of equal ones the one that comes first.
    ///
    /// # Errors
    /// The text has fewer than two different characters: nothing could be learnt from it.
    pub fn of(text: &str) -> Result<Self, Error> {
        let mut counts: HashMap<char, (usize, usize)> = HashMap::new();
        for (place, character) in text.chars().enumerate() {
            counts.entry(character).or_insert((0, place)).0 += 1;
        }
        let mut all: Vec<_> = counts.into_iter().collect();
        all.sort_by_key(|(_, (count, place))| (std::cmp::Reverse(*count), *place));
        Self::new(all.into_iter().map(|c| c.0).collect())
    }

    /// These characters, numbered from 0.
    ///
    /// # Errors
    /// They are fewer than two, or one is there twice.
    pub fn new(characters: Vec<char>) -> Result<Self, Error> {
        let numbers: HashMap<char, usize> =
            characters.iter().enumerate().map(|(n, c)| (*c, n)).collect();
        if characters.len() < 2 || numbers.len() < characters.len() {
            let expected = "two different characters or more, each once";
            let got = format!("{} different of {}", numbers.len(), characters.len());
            return Err(Error::bad("vocabulary", expected, got));
        }
        Ok(Self { characters, numbers })
    }

    /// All of them, in the order of their numbers.
    pub fn characters(&self) -> &[char] {
        &self.characters
    }

    /// How many there are; two at least.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.characters.len()
    }

    /// The numbers of a text's characters. `what` is the text's name in an error.
    ///
    /// # Errors
    /// A character is not known: with its line and column, both from 1.
    pub fn encode(&self, what: &str, text: &str) -> Result<Vec<usize>, Error> {
        let mut numbers = Vec::with_capacity(text.len());
        let (mut line, mut column) = (1, 1);
        for character in text.chars() {
            let Some(&number) = self.numbers.get(&character) else {
                let expected = format!("the {} characters that the model knows", self.len());
                let got = format!("{character:?} at line {line}, column {column}");
                return Err(Error::bad(what, expected, got));
            };
            numbers.push(number);
            (line, column) = if character == '\n' { (line + 1, 1) } else { (line, column + 1) };
        }
        Ok(numbers)
    }

    /// The text of these numbers.
    ///
    /// # Panics
    /// There is no such character.
    pub fn decode(&self, numbers: &[usize]) -> String {
        numbers.iter().map(|&n| self.characters[n]).collect()
    }
}

/// A file's text.
///
/// # Errors
/// [`Error::File`]: it cannot be read, is empty, or is not UTF-8; the message then has the line of
/// the first byte that is not.
pub fn read_text(path: &Path) -> Result<String, Error> {
    let text = lab_device::emulator::read_text(path).map_err(|e| bad_file(path, e.to_string()))?;
    if text.is_empty() {
        return Err(bad_file(path, "expected a text, got an empty file"));
    }
    Ok(text)
}

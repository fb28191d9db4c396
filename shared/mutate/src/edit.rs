//! A piece of a file, and what comes in its place.

use std::ops::Range;

/// One change of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The file, from the workspace's root.
    pub file: String,
    /// The bytes that go.
    pub range: Range<usize>,
    /// What was there.
    pub original: String,
    /// What comes.
    pub replacement: String,
}

impl Edit {
    /// Replaces `range` of the file's `text`.
    pub(crate) fn new(file: &str, text: &str, range: Range<usize>, replacement: String) -> Self {
        Self { file: file.to_owned(), original: text[range.clone()].to_owned(), range, replacement }
    }

    /// Replaces the one place of `text` where `find` stands; else how many such places there are.
    pub(crate) fn of(file: &str, text: &str, find: &str, replacement: &str) -> Result<Self, usize> {
        let places: Vec<_> = if find.is_empty() {
            Vec::new()
        } else {
            text.match_indices(find).map(|m| m.0).collect()
        };
        match places[..] {
            [at] => Ok(Self::new(file, text, at..at + find.len(), replacement.to_owned())),
            _ => Err(places.len()),
        }
    }

    /// The text after the change; `None` where `text` is not the one that it was made for.
    pub fn apply(&self, text: &str) -> Option<String> {
        let there = text.get(self.range.clone())?;
        (there == self.original).then(|| {
            [&text[..self.range.start], &self.replacement, &text[self.range.end..]].concat()
        })
    }

    /// Line and column of its first character, from 1.
    pub fn place(&self, text: &str) -> (usize, usize) {
        let before = text.get(..self.range.start).unwrap_or_default();
        let line = before.rfind('\n').map_or(0, |i| i + 1);
        (before.matches('\n').count() + 1, before[line..].chars().count() + 1)
    }

    /// The lines that it touches, before and after it, with every run of blanks as one.
    pub fn lines(&self, text: &str) -> (String, String) {
        let start = text[..self.range.start].rfind('\n').map_or(0, |i| i + 1);
        let end = text[self.range.end..].find('\n').map_or(text.len(), |i| self.range.end + i);
        let after = [&text[start..self.range.start], &self.replacement, &text[self.range.end..end]];
        (squeeze(&text[start..end]), squeeze(&after.concat()))
    }
}

/// Every run of blanks as one, none at the ends.
pub(crate) fn squeeze(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

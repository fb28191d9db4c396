//! One mutant, and how it is told.

use crate::edit::squeeze;
use crate::{Edit, Operator};

/// A kernel broken in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// In which way.
    pub operator: Operator,
    /// The change.
    pub edit: Edit,
    /// Its line, from 1.
    pub line: usize,
    /// Its column, from 1.
    pub column: usize,
    /// The function that it is in.
    pub function: String,
}

impl Mutant {
    /// `shared/cuda/lab/reduce.cuh:29:5`.
    pub fn place(&self) -> String {
        format!("{}:{}:{}", self.edit.file, self.line, self.column)
    }

    /// `c < columns → c <= columns`, on one line.
    pub fn change(&self) -> String {
        let (old, new) = (&self.edit.original, &self.edit.replacement);
        let short = |text: &str| {
            let text = squeeze(text);
            match text.char_indices().nth(70) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        };
        format!("{} → {}", short(old), short(new))
    }
}

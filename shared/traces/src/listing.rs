//! The lines of a kernel that a picture shows, and the places that a run names.

use std::ops::RangeInclusive;

use lab_checker::counted::Place;
use maud::{Markup, PreEscaped, html};
use serde_json::Value;

use crate::Error;

/// The file of a `file:line:column`.
pub(crate) fn file_of(place: &str) -> &str {
    place.split(':').next().unwrap_or("")
}

/// The lines of a kernel, or of a device function, in its file: from `template` to its last brace, counted from 1.
pub(crate) struct Listing {
    pub(crate) file: String,
    /// Each with its number.
    pub(crate) lines: Vec<(usize, String)>,
}

impl Listing {
    pub(crate) fn of(file: &str, text: &str, kernel: &str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let function = |line: &str| line.contains("__global__") || line.contains("__device__");
        let begins = |n: &usize| {
            lines[*n].contains(&format!(" {kernel}("))
                && (function(lines[*n]) || *n > 0 && function(lines[*n - 1]))
        };
        let named = (0..lines.len()).find(begins).unwrap_or(0);
        let head = named - usize::from(named > 0 && !function(lines[named]));
        let template = head > 0 && lines[head - 1].starts_with("template");
        let first = head - usize::from(template);
        // A member's last brace stands below its first letter.
        let indent = lines.get(head).map_or(0, |l| l.len() - l.trim_start().len());
        let ends = |l: &&str| l.get(indent..).is_some_and(|l| l.starts_with('}'));
        let last = lines[head..].iter().position(ends).map_or(head, |n| head + n);
        // The corpus marks its bugs.
        let own = |line: &&str| line.split("  // BUG").next().unwrap_or("").to_owned();
        let lines = (first..=last).map(|n| (n + 1, own(&lines[n]))).collect();
        Self { file: file.to_owned(), lines }
    }

    /// Of a file, with no lines yet.
    pub(crate) fn empty(file: &str) -> Self {
        Self { file: file.to_owned(), lines: Vec::new() }
    }

    /// Of a stage's kernel.
    pub(crate) fn of_stage(file: &str, kernel: &str) -> Result<Self, Error> {
        let text = lab_registry::source(file);
        let text = text.ok_or_else(|| Error::Wrong(format!("{file}: no such file of a stage")))?;
        Ok(Self::of(file, text, kernel))
    }

    pub(crate) fn keep(mut self, wanted: impl Fn(usize) -> bool) -> Self {
        self.lines.retain(|(number, _)| wanted(*number));
        self
    }

    /// These lines of it.
    pub(crate) fn only(self, range: RangeInclusive<usize>) -> Self {
        self.keep(|number| range.contains(&number))
    }

    /// These lines, and so many around each; not the marks of what the book includes.
    pub(crate) fn near(mut self, lines: &[usize], around: usize) -> Self {
        self.lines.retain(|(_, text)| !text.contains("// ANCHOR"));
        self.keep(|number| lines.iter().any(|l| l.abs_diff(number) <= around))
    }

    /// Those between the lines that have these two texts; to the end, if the second is empty.
    pub(crate) fn between(self, from: &str, to: &str) -> Self {
        let line = |text: &str| self.lines.iter().find(|l| l.1.contains(text)).map(|l| l.0);
        match (line(from), line(to)) {
            (Some(a), _) if to.is_empty() => self.keep(|number| number > a),
            (Some(a), Some(b)) => self.keep(|number| number > a && number < b),
            _ => self,
        }
    }

    /// As well these lines of its file.
    pub(crate) fn with(mut self, lines: &[usize]) -> Result<Self, Error> {
        let text: Vec<&str> =
            lab_registry::source(&self.file).unwrap_or_default().lines().collect();
        for &number in lines {
            let Err(at) = self.lines.binary_search_by_key(&number, |line| line.0) else { continue };
            let line = number.checked_sub(1).and_then(|n| text.get(n)).ok_or_else(|| {
                Error::Wrong(format!("{}: a step in its line {number}, got none", self.file))
            })?;
            self.lines.insert(at, (number, (*line).to_owned()));
        }
        Ok(self)
    }

    /// What stands behind a line's `//`.
    pub(crate) fn comment(&self, line: usize) -> &str {
        let text = self.lines.iter().find(|l| l.0 == line);
        text.and_then(|t| t.1.split_once("// ")).map_or("", |(_, comment)| comment)
    }

    /// Numbered, each line with what `beside` puts behind it.
    pub(crate) fn markup(&self, beside: impl Fn(usize) -> Markup) -> Markup {
        self.markup_of(None, beside)
    }

    /// One of several: a line is known by the listing's number and its own.
    pub(crate) fn markup_of(
        &self,
        listing: Option<usize>,
        beside: impl Fn(usize) -> Markup,
    ) -> Markup {
        let known = |line: usize| match listing {
            Some(listing) => format!("{listing}.{line}"),
            None => line.to_string(),
        };
        html! {
            div.listing role="group" aria-label={ "Source: " (self.file) } {
                @for (number, text) in &self.lines {
                    div.line data-line=(known(*number)) {
                        span.number { (number) }
                        span.text { (text) }
                        (beside(*number))
                    }
                }
            }
        }
    }
}

/// The line of a `file:line:column`.
pub(crate) fn line_of(place: &str) -> usize {
    Place::of(place).line
}

/// Data for the script, as text that ends no element.
pub(crate) fn data(value: &Value) -> Markup {
    let text = value.to_string().replace('<', "\\u003c");
    html! { script type="application/json" { (PreEscaped(text)) } }
}

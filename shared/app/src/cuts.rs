//! Declarations that do not compile here, taken out of a file.
//!
//! A kernel is often wanted from a file whose host code calls libraries that are not there. What the compiler
//! complains of is cut, one declaration or `#include` at a time, until it is content; the kernel that is
//! wanted is never cut. Lines keep their numbers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::tokens::{Kind, Tokens};

/// Lines of each file whose declaration goes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cuts {
    lines: BTreeMap<PathBuf, Vec<usize>>,
}

impl Cuts {
    /// Adds what a compiler complains of; whether anything is new.
    pub(crate) fn add(&mut self, said: &str) -> bool {
        let mut is_new = false;
        for line in said.lines().filter(|l| l.contains("error: ")) {
            let mut parts = line.splitn(3, ':');
            let (Some(file), Some(Ok(number))) = (parts.next(), parts.next().map(str::parse))
            else {
                continue;
            };
            // With or without headers around it: what was included is not asked again.
            let lines = self.lines.entry(file.into()).or_default();
            if !lines.contains(&number) {
                lines.push(number);
                is_new = true;
            }
        }
        is_new
    }

    /// The text without them. `None` where a line is within what must stay.
    pub(crate) fn apply(&self, path: &Path, text: &str, kept: Option<usize>) -> Option<String> {
        let Some(lines) = self.lines.get(path) else { return Some(text.to_owned()) };
        let tokens = Tokens::read(text);
        let declarations = declarations(&tokens);
        let mut text = text.to_owned();
        for &line in lines {
            let range = line_range(&text, line);
            let found = declarations
                .iter()
                .find(|d| d.start < range.end && range.start < d.end)
                .cloned()
                .unwrap_or(range);
            let must_stay = kept.map(|kept| line_range(&text, kept));
            if must_stay.is_some_and(|k| found.start < k.end && k.start < found.end) {
                return None;
            }
            let blank: String =
                text[found.clone()].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
            // Characters of several bytes become one: what stands behind would move.
            let width = found.len() - blank.len();
            text.replace_range(found, &(blank + &" ".repeat(width)));
        }
        Some(text)
    }
}

/// Where a line stands, from 1.
fn line_range(text: &str, line: usize) -> Range<usize> {
    let start = match line {
        0 | 1 => 0,
        n => text.match_indices('\n').nth(n - 2).map_or(text.len(), |(at, _)| at + 1),
    };
    let end = text[start..].find('\n').map_or(text.len(), |at| start + at);
    start..end
}

/// The declarations that stand in no function and no class: their places in the text.
fn declarations(tokens: &Tokens<'_>) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    let mut first: Option<usize> = None;
    let mut index = 0;
    while index < tokens.all.len() {
        match (tokens.all[index].kind, tokens.at(index)) {
            (Kind::Include, _) => index += 1,
            (Kind::Directive, _) => {
                let end = directive_end(tokens.text, tokens.start(index));
                while index < tokens.all.len() && tokens.start(index) < end {
                    index += 1;
                }
            }
            (_, ";") => {
                let start = first.take().unwrap_or(index);
                all.push(tokens.start(start)..tokens.end(index));
                index += 1;
            }
            // Braces in parentheses begin no body.
            (_, "(") => {
                first = first.or(Some(index));
                index = tokens.closing(index).unwrap_or(index) + 1;
            }
            // The end of a namespace.
            (_, "}") => {
                first = None;
                index += 1;
            }
            (_, "{") if opens_scope(tokens, first, index) => {
                first = None;
                index += 1;
            }
            (_, "{") => {
                let start = first.unwrap_or(index);
                let Some(close) = tokens.closing(index) else { break };
                let is_function = is_function(tokens, start, index);
                index = close + 1;
                if is_function {
                    all.push(tokens.start(start)..tokens.end(close));
                    first = None;
                }
            }
            _ => {
                first = first.or(Some(index));
                index += 1;
            }
        }
    }
    all
}

/// The end of a directive, with the lines that a backslash adds.
pub(crate) fn directive_end(text: &str, start: usize) -> usize {
    let mut at = start;
    loop {
        let Some(end) = text[at..].find('\n').map(|n| at + n) else { return text.len() };
        if !text[..end].trim_end_matches('\r').ends_with('\\') {
            return end;
        }
        at = end + 1;
    }
}

/// `namespace x {`, `extern "C" {`.
fn opens_scope(tokens: &Tokens<'_>, first: Option<usize>, open: usize) -> bool {
    let Some(first) = first else { return false };
    let words: Vec<&str> = (first..open).map(|i| tokens.at(i)).collect();
    matches!(words[..], ["extern", text] if text.starts_with('"'))
        || words.contains(&"namespace") && !words.contains(&"=") && !words.contains(&"(")
}

/// A head with parentheses and no `=` before its body.
fn is_function(tokens: &Tokens<'_>, start: usize, open: usize) -> bool {
    let mut depth = 0;
    let mut has_list = false;
    for index in start..open {
        match tokens.at(index) {
            "(" => {
                has_list = true;
                depth += 1;
            }
            ")" => depth -= 1,
            "=" if depth == 0 && tokens.at(start) != "template" => return false,
            "struct" | "class" | "union" | "enum"
                if !has_list && tokens.at(start) != "template" =>
            {
                return (index + 1..open).any(|i| tokens.at(i) == "(");
            }
            _ => {}
        }
    }
    has_list
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "#include <a.h>
#define BOTH(x) \\
    x; x
namespace n {
struct S { int f() { return 1; } } s;
handle h;
template <int N = 4> void host(S s = {}) {
    if (N) { call(); } // é
}
__global__ void k() { }
}
int table[] = {1, 2};
int main() { return 0; }
";

    fn cut(line: usize, kept: usize) -> Option<String> {
        let mut cuts = Cuts::default();
        assert!(cuts.add(&format!("x.cu:{line}:3: error: no")));
        assert!(!cuts.add(&format!("x.cu:{line}:9: error: no\nx.cu:1:1: note: x")));
        cuts.apply(Path::new("x.cu"), TEXT, Some(kept))
    }

    #[test]
    fn what_is_cut_is_one_declaration() {
        for (line, gone, left) in [
            (1, "#include", "#define BOTH"),
            (6, "handle", "struct S"),
            (8, "host", "__global__ void k() { }\n}"),
            (5, "struct S", "handle h;"),
            (12, "table", "main"),
            (13, "main", "table"),
        ] {
            let text = cut(line, 10).unwrap();
            assert!(!text.contains(gone) && text.contains(left), "{line}: {text}");
            assert_eq!(text.matches('\n').count(), TEXT.matches('\n').count());
            assert_eq!(text.len(), TEXT.len());
        }
        assert_eq!(cut(10, 10), None, "the kernel itself");
    }
}

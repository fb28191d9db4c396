//! The tokens of a CUDA C++ text, as far as launches and kernels need them.
//!
//! Not a syntax tree: launches stand in macros, and macros stand in kernels' heads, where a parser of
//! C++ without a preprocessor gives up. Tokens are the same inside and outside of a macro.

use std::ops::Range;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier or a keyword.
    Word,
    /// A number, a string or a character.
    Literal,
    /// `<<<`, `>>>`, `::`, or one character of punctuation.
    Mark,
    /// A whole `#include` line.
    Include,
    /// `#define`, `#if` and the like: the word alone; what follows are tokens.
    Directive,
}

/// A token, by its place in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) range: Range<usize>,
}

/// A text and its tokens.
pub(crate) struct Tokens<'a> {
    pub(crate) text: &'a str,
    pub(crate) all: Vec<Token>,
}

impl<'a> Tokens<'a> {
    pub(crate) fn read(text: &'a str) -> Self {
        let mut all = Vec::new();
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let rest = &text[at..];
            let (kind, len) = match bytes[at] {
                b if b.is_ascii_whitespace() || b == b'\\' => (None, 1),
                _ if rest.starts_with("//") => (None, line_end(rest)),
                _ if rest.starts_with("/*") => {
                    (None, rest[2..].find("*/").map_or(rest.len(), |end| end + 4))
                }
                b'#' if begins_line(text, at) && is_include(rest) => {
                    (Some(Kind::Include), line_end(rest))
                }
                b'#' if begins_line(text, at) => {
                    let word = rest[1..].trim_start_matches([' ', '\t']);
                    let end = rest.len() - word.len() + word_len(word);
                    (Some(Kind::Directive), end)
                }
                b'"' | b'\'' => (Some(Kind::Literal), quoted_len(rest)),
                _ if raw_string_len(rest).is_some() => {
                    (Some(Kind::Literal), raw_string_len(rest).unwrap_or(1))
                }
                b if b.is_ascii_alphabetic() || b == b'_' => (Some(Kind::Word), word_len(rest)),
                b if b.is_ascii_digit() => (Some(Kind::Literal), number_len(rest)),
                _ if ["<<<", ">>>"].iter().any(|m| rest.starts_with(m)) => (Some(Kind::Mark), 3),
                _ if rest.starts_with("::") => (Some(Kind::Mark), 2),
                _ => (Some(Kind::Mark), rest.chars().next().map_or(1, char::len_utf8)),
            };
            if let Some(kind) = kind {
                all.push(Token { kind, range: at..at + len });
            }
            // Outside of what is known, a character may take several bytes.
            at += len;
            while !text.is_char_boundary(at) {
                at += 1;
            }
        }
        Self { text, all }
    }

    /// The text of a token; empty past the end.
    pub(crate) fn at(&self, index: usize) -> &'a str {
        self.all.get(index).map_or("", |t| &self.text[t.range.clone()])
    }

    pub(crate) fn is_word(&self, index: usize) -> bool {
        self.all.get(index).is_some_and(|t| t.kind == Kind::Word)
    }

    pub(crate) fn start(&self, index: usize) -> usize {
        self.all.get(index).map_or(self.text.len(), |t| t.range.start)
    }

    pub(crate) fn end(&self, index: usize) -> usize {
        self.all.get(index).map_or(self.text.len(), |t| t.range.end)
    }

    /// The tokens of a range with their comments and line breaks gone.
    pub(crate) fn join(&self, range: Range<usize>) -> String {
        let mut joined = String::new();
        for index in range.clone() {
            if index > range.start && self.end(index - 1) < self.start(index) {
                joined.push(' ');
            }
            joined += self.at(index);
        }
        joined
    }

    /// The token that closes the bracket at `open`: `(`, `[`, `{`, or `<` of a template.
    pub(crate) fn closing(&self, open: usize) -> Option<usize> {
        let mut opened = Vec::new();
        for index in open..self.all.len() {
            // Within other brackets, < and > compare.
            let in_angles = opened.last().is_none_or(|&o| o == "<") && self.at(open) == "<";
            match self.at(index) {
                bracket @ ("(" | "[" | "{") => opened.push(bracket),
                "<" if in_angles => opened.push("<"),
                ")" | "]" | "}" if opened.last() == Some(&"<") => return None,
                ")" | "]" | "}" => drop(opened.pop()),
                ">" if in_angles => drop(opened.pop()),
                // Three templates that end together.
                ">>>" if in_angles => opened.truncate(opened.len().saturating_sub(3)),
                _ => {}
            }
            if opened.is_empty() {
                return Some(index);
            }
        }
        None
    }

    /// The token that opens the bracket at `close`.
    pub(crate) fn opening(&self, close: usize) -> Option<usize> {
        let mut closed = Vec::new();
        for index in (0..=close).rev() {
            let in_angles = closed.last().is_none_or(|&c| c == ">") && self.at(close) == ">";
            match self.at(index) {
                bracket @ (")" | "]" | "}") => closed.push(bracket),
                ">" if in_angles => closed.push(">"),
                "(" | "[" | "{" | ";" if closed.last() == Some(&">") => return None,
                "(" | "[" | "{" => drop(closed.pop()),
                "<" if in_angles => drop(closed.pop()),
                _ => {}
            }
            if closed.is_empty() {
                return Some(index);
            }
        }
        None
    }
}

/// The rest of the line, with the lines that a backslash goes on in.
fn line_end(text: &str) -> usize {
    let mut from = 0;
    while let Some(end) = text[from..].find('\n') {
        let end = from + end;
        if !text[..end].trim_end_matches('\r').ends_with('\\') {
            return end;
        }
        from = end + 1;
    }
    text.len()
}

fn begins_line(text: &str, at: usize) -> bool {
    text[..at].trim_end_matches([' ', '\t']).chars().next_back().is_none_or(|c| c == '\n')
}

fn is_include(text: &str) -> bool {
    text[1..].trim_start_matches([' ', '\t']).starts_with("include")
}

fn word_len(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())
}

fn number_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let signed = matches!(bytes[at], b'+' | b'-')
            && matches!(bytes[at - 1].to_ascii_lowercase(), b'e' | b'p')
            && !text[..at].starts_with("0x");
        let separator =
            bytes[at] == b'\'' && bytes.get(at + 1).is_some_and(u8::is_ascii_alphanumeric);
        if !(bytes[at].is_ascii_alphanumeric()
            || matches!(bytes[at], b'.' | b'_')
            || signed
            || separator)
        {
            break;
        }
        at += 1;
    }
    at.max(1)
}

fn quoted_len(text: &str) -> usize {
    let (bytes, quote) = (text.as_bytes(), text.as_bytes()[0]);
    let mut at = 1;
    while at < bytes.len() && bytes[at] != quote && bytes[at] != b'\n' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// `R"x(…)x"`, with a prefix such as `u8`.
fn raw_string_len(text: &str) -> Option<usize> {
    let prefix =
        ["R\"", "u8R\"", "uR\"", "UR\"", "LR\""].into_iter().find(|p| text.starts_with(p))?;
    let (mark, rest) = text[prefix.len()..].split_once('(')?;
    let end = format!("){mark}\"");
    let length = prefix.len() + mark.len() + 1 + rest.find(&end)? + end.len();
    (mark.len() <= 16).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        let tokens = Tokens::read(text);
        (0..tokens.all.len()).map(|i| tokens.at(i)).collect()
    }

    #[test]
    fn what_is_quoted_or_commented_is_no_code() {
        let text = "a /* <<< */ \"<<<\\\"\" // >>>\n R\"x(<<<)\" )x\" '\"' k<<<1e-3, 0x1e+2>>>(b)";
        let expected = [
            "a",
            "\"<<<\\\"\"",
            "R\"x(<<<)\" )x\"",
            "'\"'",
            "k",
            "<<<",
            "1e-3",
            ",",
            "0x1e",
            "+",
            "2",
            ">>>",
            "(",
            "b",
            ")",
        ];
        assert_eq!(words(text), expected);
    }

    #[test]
    fn includes_are_whole_and_other_directives_a_word() {
        let text = "#  include <a/b.h> // c\n#define K(x) k##x<<<x>>>()\né 1'000 x";
        let expected = [
            "#  include <a/b.h> // c",
            "#define",
            "K",
            "(",
            "x",
            ")",
            "k",
            "#",
            "#",
            "x",
            "<<<",
            "x",
            ">>>",
            "(",
            ")",
            "é",
            "1'000",
            "x",
        ];
        assert_eq!(words(text), expected);
    }

    #[test]
    fn brackets_find_each_other() {
        let tokens = Tokens::read("f<A<(1 > 2)>, B>(x[1], {y})");
        let open = (0..tokens.all.len()).find(|&i| tokens.at(i) == "<").unwrap();
        let close = tokens.closing(open).unwrap();
        assert_eq!((tokens.at(close), tokens.at(close - 1)), (">", "B"));
        assert_eq!(tokens.opening(close), Some(open));
        assert_eq!(tokens.closing(close + 1), Some(tokens.all.len() - 1));
        assert_eq!(Tokens::read("(a").closing(0), None);
    }
}

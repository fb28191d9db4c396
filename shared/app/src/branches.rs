//! Code that `#if` cuts in its middle, such as a launch that each branch ends by itself: what it is in each branch.

use std::ops::Range;

use crate::cuts::directive_end;
use crate::tokens::{Kind, Tokens};

/// Conditions in one piece of code, at most: each doubles the texts.
const MOST_CONDITIONS: usize = 4;
const IF: [&str; 3] = ["if", "ifdef", "ifndef"];

/// A condition, and the whole text as each of its branches leaves it. What is not of the branch is blank, so that all that is left
/// stays where it was.
pub(crate) struct Branches {
    /// `#if A`, `#elif B`; the last is an `#else`.
    lines: Vec<String>,
    pub(crate) texts: Vec<String>,
    /// Where the line of its `#endif` ends.
    end: usize,
}

impl Branches {
    /// Those of the first condition that begins among these tokens; `None` where there is none that ends, or too many.
    pub(crate) fn first(tokens: &Tokens<'_>, among: Range<usize>) -> Option<Self> {
        let all: Vec<usize> = among.filter(|&at| IF.contains(&directive(tokens, at))).collect();
        let &first = all.first().filter(|_| all.len() <= MOST_CONDITIONS)?;
        let (mut own, mut depth) = (vec![first], 0);
        for at in first + 1..tokens.all.len() {
            match directive(tokens, at) {
                word if IF.contains(&word) => depth += 1,
                "endif" if depth > 0 => depth -= 1,
                "elif" | "elifdef" | "elifndef" | "else" if depth == 0 => own.push(at),
                "endif" => {
                    own.push(at);
                    break;
                }
                _ => {}
            }
        }
        if own.last().is_none_or(|&last| directive(tokens, last) != "endif") {
            return None;
        }
        let text = tokens.text;
        let line = |&at: &usize| tokens.start(at)..directive_end(text, tokens.start(at));
        let directives: Vec<Range<usize>> = own.iter().map(line).collect();
        let end = directives.last()?.end;
        let whole = directives[0].start..end;
        let bodies = directives.windows(2).map(|two| two[0].end..two[1].start);
        let mut texts: Vec<String> = bodies.map(|body| left(text, whole.clone(), body)).collect();
        let begins = &directives[..directives.len() - 1];
        let mut lines: Vec<String> = begins.iter().map(|line| text[line.clone()].into()).collect();
        if directive(tokens, own[own.len() - 2]) != "else" {
            lines.push("#else".into());
            texts.push(left(text, whole, end..end));
        }
        Some(Self { lines, texts, end })
    }

    /// Code that begins at `start`, once for each branch; `news` has, for each, what it becomes and where it ends so far.
    pub(crate) fn joined(
        &self,
        text: &str,
        start: usize,
        news: &[(usize, String)],
    ) -> (Range<usize>, String) {
        let end = news.iter().map(|(end, _)| *end).fold(self.end, usize::max);
        let (line, column) = line_of(text, start);
        let mut joined = String::new();
        for ((directive, own), (own_end, new)) in self.lines.iter().zip(&self.texts).zip(news) {
            let (blank, behind) = (" ".repeat(column), &own[*own_end..end]);
            joined += &format!("\n{directive}\n#line {line}\n{blank}{new}{behind}");
        }
        joined += "\n#endif";
        // What is behind stays where it is.
        let lines = |text: &str| text.matches('\n').count();
        let missing = lines(&text[start..end]).saturating_sub(lines(&joined));
        let (line, column) = line_of(text, end);
        joined += &format!("{}\n#line {line}\n{}", "\n".repeat(missing), " ".repeat(column));
        (start..end, joined)
    }
}

/// `endif` of `#endif`; nothing where no directive stands.
pub(crate) fn directive<'a>(tokens: &Tokens<'a>, at: usize) -> &'a str {
    match tokens.all[at].kind {
        Kind::Directive => tokens.at(at).trim_start_matches('#').trim(),
        _ => "",
    }
}

/// Whether each condition that begins among these tokens ends there.
pub(crate) fn is_whole(tokens: &Tokens<'_>, among: Range<usize>) -> bool {
    let mut depth = 0usize;
    for at in among {
        match directive(tokens, at) {
            word if IF.contains(&word) => depth += 1,
            "endif" if depth > 0 => depth -= 1,
            "elif" | "else" | "endif" if depth == 0 => return false,
            _ => {}
        }
    }
    depth == 0
}

/// Line, from 1, and column, from 0, of a place.
pub(crate) fn line_of(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..at];
    let column = before.rsplit('\n').next().map_or(0, str::len);
    (before.matches('\n').count() + 1, column)
}

/// The text with all of `whole` blank but what is kept.
fn left(text: &str, whole: Range<usize>, kept: Range<usize>) -> String {
    let blank = |range: Range<usize>| -> String {
        text[range].bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }).collect()
    };
    let (before, behind) = (blank(whole.start..kept.start), blank(kept.end..whole.end));
    [&text[..whole.start], &before, &text[kept], &behind, &text[whole.end..]].concat()
}

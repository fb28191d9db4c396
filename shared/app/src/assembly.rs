//! Inline PTX, `asm volatile("…" : …)`, as statements of C++, each on the line of the literal that it begins in.

use std::ops::Range;

use lab_ptx::{Given, NEXT_LITERAL, translate_asm};

use crate::branches::{Branches, directive, line_of};
use crate::cuts::directive_end;
use crate::instructions::needs;
use crate::tokens::{Kind, Tokens};

/// Texts that `#if` makes of one `asm`, at most.
const MOST_TEXTS: usize = 16;

/// What stands in place of the `asm` at `word`, if it is one.
///
/// # Errors
/// `#if` cuts its text in a way this does not read; the message has line and reason.
pub(crate) fn rewrite_asm(
    tokens: &Tokens<'_>,
    word: usize,
) -> Result<Option<(Range<usize>, String)>, String> {
    let open = (word + 1..word + 4).find(|&i| tokens.at(i) == "(");
    let Some((open, close)) = open.and_then(|o| Some((o, tokens.closing(o)?))) else {
        return Ok(None);
    };
    let refuse =
        |what: &str| format!("line {}: {what}", line_of(tokens.text, tokens.start(word)).0);
    let mut at = open + 1;
    let parts = Part::read(tokens, &mut at, close, 0);
    let operands = if parts.is_some() { at } else { open + 1 };
    if let Some(branches) = Branches::first(tokens, operands..close) {
        return of_branches(tokens, word, &branches).map(Some);
    }
    let parts = parts.ok_or_else(|| {
        refuse("asm: expected whole literals between the #if and #endif of its text")
    })?;
    let range = tokens.start(word)..tokens.end(close);
    let own = Asm {
        tokens,
        given: given(tokens, at, close),
        // In a macro a part of the text may be the macro's.
        is_whole: matches!(tokens.at(at), ":" | "::" | ")"),
        has_lines: has_lines(tokens, word),
    };
    let mut left = MOST_TEXTS;
    let mut new =
        own.of_parts(&[], &parts.iter().collect::<Vec<_>>(), &mut left).ok_or_else(|| {
            refuse(&format!("asm: expected at most {MOST_TEXTS} texts by #if, got more"))
        })?;
    if new.contains('\n') {
        // What is behind stays where it is.
        let lines = |text: &str| text.matches('\n').count();
        let missing = lines(&tokens.text[range.clone()]).saturating_sub(lines(&new));
        let (line, column) = line_of(tokens.text, range.end);
        new += &format!("{}\n#line {line}\n{}", "\n".repeat(missing), " ".repeat(column));
    }
    Ok(Some((range, new)))
}

/// An `asm` that `#if` cuts behind its text: one of each branch.
fn of_branches(
    tokens: &Tokens<'_>,
    word: usize,
    branches: &Branches,
) -> Result<(Range<usize>, String), String> {
    let start = tokens.start(word);
    let mut news = Vec::new();
    for text in &branches.texts {
        let own = Tokens::read(text);
        let word = own.all.iter().position(|token| token.range.start == start);
        let new = word.map(|word| rewrite_asm(&own, word)).transpose()?.flatten();
        let (range, new) = new.ok_or_else(|| {
            let line = line_of(tokens.text, start).0;
            format!("line {line}: asm: expected ) in each branch of #if, got none")
        })?;
        news.push((range.end, new));
    }
    Ok(branches.joined(tokens.text, start, &news))
}

/// Whether an `asm` may stand on several lines: not in a macro, nor among a macro's arguments.
fn has_lines(tokens: &Tokens<'_>, word: usize) -> bool {
    let before = &tokens.text[..tokens.start(word)];
    let mut lines = before.rsplit('\n');
    let mut first = lines.next().unwrap_or_default();
    for line in lines.take_while(|line| line.trim_end().ends_with('\\')) {
        first = line;
    }
    let previous = word.checked_sub(1).map_or("", |i| tokens.at(i));
    !first.trim_start().starts_with('#') && !matches!(previous, "(" | ",")
}

/// A part of a text.
enum Part {
    /// A literal, by its token.
    Literal(usize),
    /// Branches, each with the line that begins it.
    Branches(Vec<(String, Vec<Self>)>),
}

impl Part {
    /// The parts from `at` on, as far as they are literals and conditions; `None` where a condition is no whole one.
    fn read(tokens: &Tokens<'_>, at: &mut usize, close: usize, depth: usize) -> Option<Vec<Self>> {
        let mut all = Vec::new();
        while *at < close {
            match tokens.all[*at].kind {
                Kind::Literal => all.push(Self::Literal(*at)),
                Kind::Directive => match directive(tokens, *at) {
                    "if" | "ifdef" | "ifndef" => {
                        all.push(Self::branches(tokens, at, close, depth + 1)?);
                        continue;
                    }
                    "elif" | "else" | "endif" if depth > 0 => return Some(all),
                    _ => return None,
                },
                _ => break,
            }
            *at += 1;
        }
        (depth == 0).then_some(all)
    }

    fn branches(tokens: &Tokens<'_>, at: &mut usize, close: usize, depth: usize) -> Option<Self> {
        let mut branches = Vec::new();
        loop {
            let word = directive(tokens, *at);
            let end = directive_end(tokens.text, tokens.start(*at));
            let line = tokens.text[tokens.start(*at)..end].to_owned();
            while *at < close && tokens.start(*at) < end {
                *at += 1;
            }
            if word == "endif" {
                return Some(Self::Branches(branches));
            }
            branches.push((line, Self::read(tokens, at, close, depth)?));
            if *at >= close {
                return None;
            }
        }
    }
}

struct Asm<'a> {
    tokens: &'a Tokens<'a>,
    given: Vec<Given>,
    is_whole: bool,
    has_lines: bool,
}

impl Asm<'_> {
    /// What these literals do, and then these parts. `left`: so many texts there may be yet.
    fn of_parts(&self, literals: &[usize], parts: &[&Part], left: &mut usize) -> Option<String> {
        let Some((first, behind)) = parts.split_first() else {
            *left = left.checked_sub(1)?;
            return Some(self.of_literals(literals));
        };
        let branches = match first {
            Part::Literal(at) => return self.of_parts(&[literals, &[*at]].concat(), behind, left),
            Part::Branches(branches) => branches,
        };
        let (mut text, mut has_else) = (String::new(), false);
        for (line, inner) in branches {
            let all: Vec<&Part> = inner.iter().chain(behind.iter().copied()).collect();
            text += &format!("\n{line}\n{}", self.of_parts(literals, &all, left)?);
            has_else |= line.trim_start_matches(['#', ' ', '\t']).starts_with("else");
        }
        if !has_else {
            text += &format!("\n#else\n{}", self.of_parts(literals, behind, left)?);
        }
        Some(text + "\n#endif\n")
    }

    /// The statement for a whole text.
    fn of_literals(&self, literals: &[usize]) -> String {
        let tokens = self.tokens;
        let of = |&at: &usize| unquoted(tokens.at(at));
        let source = literals.iter().map(of).collect::<Vec<_>>().join(&NEXT_LITERAL.to_string());
        let text = literals.iter().map(|&at| tokens.at(at)).collect::<Vec<_>>().join(" ");
        let needs = needs(&text);
        match translate_asm(&source, &self.given).filter(|_| self.is_whole) {
            Some(all) => {
                let body = self.in_lines(&all, literals);
                if needs.is_empty() {
                    format!("do {{ {body}}} while (0)")
                } else {
                    format!("do {{ ({needs}(void)0); {{ {body}}} }} while (0)")
                }
            }
            None => {
                let operands = self.given.iter().map(|g| format!(", {}", g.expression));
                let call = format!("::emu::inline_ptx({text}{})", operands.collect::<String>());
                if needs.is_empty() { call } else { format!("({needs}{call})") }
            }
        }
    }

    /// Statements, each on the line and at the column of its literal.
    fn in_lines(&self, all: &[(usize, String)], literals: &[usize]) -> String {
        let mut body = String::new();
        for (n, (literal, statement)) in all.iter().enumerate() {
            // What the operands are stands before all.
            let literal = literals.get(*literal).filter(|_| self.has_lines && n > 0);
            if let Some(&literal) = literal {
                let quoted = self.tokens.at(literal);
                let blank = quoted.len() - quoted.trim_start_matches(['"', ' ', '{']).len();
                let (line, column) = line_of(self.tokens.text, self.tokens.start(literal));
                body += &format!("\n#line {line}\n{}", " ".repeat(column + blank));
            }
            body += statement;
        }
        body
    }
}

/// `: "=r"(x) : [of_y] "r"(y), "r"(z) : "memory"`: x, y and z.
fn given(tokens: &Tokens<'_>, from: usize, to: usize) -> Vec<Given> {
    let (mut all, mut at) = (Vec::new(), from);
    while at < to {
        if tokens.all[at].kind == Kind::Literal
            && tokens.at(at + 1) == "("
            && let Some(close) = tokens.closing(at + 1)
        {
            let expression = tokens.text[tokens.end(at + 1)..tokens.start(close)].to_owned();
            let is_named = at >= 3 && tokens.at(at - 1) == "]" && tokens.at(at - 3) == "[";
            let name = is_named.then(|| tokens.at(at - 2).to_owned());
            let constraint = tokens.at(at).trim_matches('"').to_owned();
            all.push(Given { name, constraint, expression });
            at = close;
        }
        at += 1;
    }
    all
}

/// What a literal of C++ holds; of what is escaped, what inline PTX has.
fn unquoted(literal: &str) -> String {
    if let Some(raw) = literal.strip_prefix('R') {
        let inner = raw.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
        return inner.map_or(raw, |(inner, _)| inner).to_owned();
    }
    let inner = literal.trim_matches('"');
    inner.replace("\\\n", "").replace("\\n", "\n").replace("\\t", " ").replace("\\r", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(text: &str) -> Result<String, String> {
        let tokens = Tokens::read(text);
        let word = (0..tokens.all.len()).find(|&i| tokens.at(i) == "asm").unwrap();
        rewrite_asm(&tokens, word).map(|edit| edit.unwrap().1)
    }

    #[test]
    fn an_instruction_stands_on_the_line_of_its_literal() {
        let got = rewritten("\nasm volatile(\"{ .reg .b32 r;\\n\"\n  \"  mov.u32 r, %1;\\n\"\n\"mov.u32 %0, r; }\" : \"=r\"(x)\n: \"r\"(y));")
            .unwrap();
        for expected in ["#line 3\n     ::emu", "#line 4\n ::emu", "while (0)\n#line 5\n        "] {
            assert!(got.contains(expected), "{expected:?}: {got}");
        }
        // A macro is one line.
        for text in ["#define A asm(\"membar.gl;\" \\\n \"membar.gl;\")", "A(asm(\"membar.gl;\"))"]
        {
            assert!(!rewritten(text).unwrap().contains("#line"), "{text}");
        }
    }

    #[test]
    fn a_text_that_if_cuts_is_one_of_each_branch() {
        let got = rewritten(
            "asm(\"membar.\"\n#if A\n\"gl\"\n#elif B\n\"cta\"\n#endif\n\";\" ::: \"memory\")",
        )
        .unwrap();
        let all: Vec<&str> = got.split("\n#").collect();
        assert!(got.contains("\n#if A\ndo {") && got.contains("\n#elif B\ndo {"), "{got}");
        assert!(got.contains("#else\n") && got.contains("\n#endif\n"), "{all:?}");
        let nested = "asm(\n#if A\n#ifdef B\n\"membar.gl;\"\n#else\n\"membar.cta;\"\n#endif\n#else\n\";\"\n#endif\n : )";
        assert_eq!(rewritten(nested).unwrap().matches("#endif").count(), 2);
        // Each branch may end it.
        let ends = "asm(\"mov.u32 %0, %1;\" : \"=r\"(x) :\n#ifdef A\n \"r\"(2));\n#else\n \"r\"(1));\n#endif\nf();";
        let got = rewritten(ends).unwrap();
        let (first, second) = got.split_once("\n#else\n#line 1\ndo {").unwrap();
        assert!(first.starts_with("\n#ifdef A\n#line 1\ndo {") && first.contains("(2)"), "{got}");
        assert!(second.contains("(1)") && !second.contains("(2)"), "{got}");
        assert!(got.ends_with("\n#endif\n#line 6\n      "), "{got}");
        let many = format!("asm({})", "\"\"\n#if A\n\";\"\n#endif\n".repeat(5));
        assert_eq!(
            rewritten(&many).unwrap_err(),
            "line 1: asm: expected at most 16 texts by #if, got more"
        );
        let open = rewritten("asm(\"\"\n#if A\n\";\" )").unwrap_err();
        assert_eq!(
            open,
            "line 1: asm: expected whole literals between the #if and #endif of its text"
        );
    }
}

//! `#if` within the parameters of a kernel: which of them there are.
//!
//! The host's preprocessor decides for what is compiled. A list of a kernel's parameters, and arguments in their
//! order, need an answer before that: from `-D`, and from what the file defines above the kernel.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::tokens::{Kind, Tokens};

/// Macros without parameters, and what they stand for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Macros {
    known: BTreeMap<String, String>,
}

impl Macros {
    /// `NAME` or `NAME=VALUE` each.
    pub(crate) fn of<'a>(all: impl IntoIterator<Item = &'a str>) -> Self {
        let entry = |text: &'a str| text.split_once('=').unwrap_or((text, "1"));
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self { known: all.into_iter().map(entry).map(owned).collect() }
    }

    /// Those that were not there before, or stood for something else.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut known = self.known.clone();
        known.retain(|name, value| before.known.get(name) != Some(value));
        Self { known }
    }

    /// Adds these.
    pub(crate) fn add(&mut self, others: &Self) {
        self.known.extend(others.known.clone());
    }

    /// What a `#define` or `#undef` says.
    pub(crate) fn read(&mut self, directive: &str) {
        let text = directive.trim_start_matches('#').trim();
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        match word {
            "define" if is_name(name) => {
                self.known.insert(name.to_owned(), value.trim().to_owned());
            }
            "undef" => drop(self.known.remove(name)),
            _ => {}
        }
    }

    /// What the condition of `#if` and its like comes to; false where it is of another kind than these:
    /// names, numbers, `defined`, `!`, comparisons, `&&` and `||`.
    fn holds(&self, word: &str, condition: &str) -> bool {
        let condition = condition.split("//").next().unwrap_or_default().trim();
        match word {
            "ifdef" => self.known.contains_key(condition),
            "ifndef" => !self.known.contains_key(condition),
            _ => condition.split("||").any(|all| all.split("&&").all(|one| self.is_true(one))),
        }
    }

    fn is_true(&self, text: &str) -> bool {
        let text = text.trim();
        for (sign, holds) in [
            ("==", (|a, b| a == b) as fn(i64, i64) -> bool),
            ("!=", |a, b| a != b),
            (">=", |a, b| a >= b),
            ("<=", |a, b| a <= b),
            (">", |a, b| a > b),
            ("<", |a, b| a < b),
        ] {
            if let Some((left, right)) = text.split_once(sign) {
                return matches!((self.number(left), self.number(right)), (Some(a), Some(b)) if holds(a, b));
            }
        }
        if let Some(rest) = text.strip_prefix('!') {
            return !self.is_true(rest);
        }
        if let Some(rest) = text.strip_prefix("defined") {
            return self.known.contains_key(bare(rest));
        }
        self.number(text).is_some_and(|n| n != 0)
    }

    /// A number, or a name that stands for one; a name that stands for nothing is 0.
    fn number(&self, text: &str) -> Option<i64> {
        let text = bare(text);
        let value = if is_name(text) {
            self.known.get(text).map_or("0", |value| value.as_str())
        } else {
            text
        };
        bare(value).trim_end_matches(['u', 'U', 'l', 'L']).parse().ok()
    }
}

fn bare(text: &str) -> &str {
    text.trim().trim_start_matches('(').trim_end_matches(')').trim()
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A part of a list of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Its tokens.
    Parameter(Range<usize>),
    Comma,
    /// `#ifdef X`, `#else`: the whole line.
    Condition(String),
}

/// A list of parameters: what stands in it, and which of its parameters are there.
#[derive(Clone, Debug, Default)]
pub(crate) struct List {
    pub(crate) parts: Vec<Part>,
    /// Of each parameter.
    pub(crate) is_there: Vec<bool>,
}

/// One `#if` that is open.
struct Open {
    /// What stands around it is there.
    outer: bool,
    /// One of its branches was.
    taken: bool,
    /// This one is.
    now: bool,
    /// Whether a parameter stood without a comma behind it before it.
    behind_parameter: bool,
}

impl List {
    /// Reads the tokens from `from` to `to`.
    ///
    /// # Errors
    /// The token of a condition that stands within a parameter.
    pub(crate) fn read(
        tokens: &Tokens<'_>,
        from: usize,
        to: usize,
        macros: &Macros,
    ) -> Result<Self, usize> {
        let (mut list, mut open, mut behind_parameter) =
            (Self::default(), Vec::<Open>::new(), false);
        let mut at = from;
        while at < to {
            if tokens.all[at].kind == Kind::Directive {
                let end = crate::cuts::directive_end(tokens.text, tokens.start(at));
                let line = &tokens.text[tokens.start(at)..end];
                let text = line.trim_start_matches('#').trim();
                let (word, rest) = text
                    .split_at(text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len()));
                let now = open.last().is_none_or(|o| o.now);
                match word {
                    "if" | "ifdef" | "ifndef" => {
                        let holds = now && macros.holds(word, rest);
                        open.push(Open { outer: now, taken: holds, now: holds, behind_parameter });
                    }
                    "elif" | "else" => {
                        let last = open.last_mut().ok_or(at)?;
                        let holds = word == "else" || macros.holds("if", rest);
                        last.now = last.outer && !last.taken && holds;
                        last.taken |= last.now;
                        behind_parameter = last.behind_parameter;
                    }
                    "endif" => {
                        open.pop().ok_or(at)?;
                    }
                    _ => return Err(at),
                }
                list.parts.push(Part::Condition(line.to_owned()));
                while at < to && tokens.start(at) < end {
                    at += 1;
                }
                continue;
            }
            if tokens.at(at) == "," {
                behind_parameter = false;
                list.parts.push(Part::Comma);
                at += 1;
                continue;
            }
            let start = at;
            while at < to && tokens.at(at) != "," && tokens.all[at].kind != Kind::Directive {
                if matches!(tokens.at(at), "(" | "[" | "{" | "<") {
                    at = tokens.closing(at).filter(|&close| close < to).unwrap_or(at);
                }
                at += 1;
            }
            if behind_parameter {
                return Err(start);
            }
            if at == start + 1 && tokens.at(start) == "void" {
                continue;
            }
            behind_parameter = true;
            list.parts.push(Part::Parameter(start..at));
            list.is_there.push(open.last().is_none_or(|o| o.now));
        }
        Ok(list)
    }

    pub(crate) fn parameters(&self) -> impl Iterator<Item = Range<usize>> {
        self.parts.iter().filter_map(|part| match part {
            Part::Parameter(range) => Some(range.clone()),
            _ => None,
        })
    }

    pub(crate) fn has_conditions(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Condition(_)))
    }

    /// The list with `texts` in place of the parameters, `comma` in place of the commas.
    pub(crate) fn with(&self, texts: &[String], comma: &str) -> String {
        let (mut all, mut texts) = (String::new(), texts.iter());
        for part in &self.parts {
            match part {
                Part::Parameter(_) => all += texts.next().map_or("", |t| t),
                Part::Comma => all += comma,
                Part::Condition(line) => all += &format!("\n{line}\n"),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_those_of_the_preprocessor() {
        let mut macros = Macros::of(["A", "N=4"]);
        macros.read("#define LARGE (N)");
        macros.read("#  define WIDTH 16u");
        macros.read("#define CALL(x) x");
        macros.read("#undef NONE");
        for (word, condition, expected) in [
            ("ifdef", " A", true),
            ("ifndef", " A // or not", false),
            ("if", " defined(A) && !defined B", true),
            ("if", " N > 4 || WIDTH==16", true),
            ("if", " UNKNOWN", false),
            ("if", " N", true),
            ("if", " CALL(1)", false),
            ("if", " 0", false),
        ] {
            assert_eq!(macros.holds(word, condition), expected, "{word}{condition}");
        }
    }

    fn there(text: &str, macros: &Macros) -> Vec<String> {
        let tokens = Tokens::read(text);
        let list = List::read(&tokens, 0, tokens.all.len(), macros).unwrap();
        let all = list.parameters().zip(&list.is_there);
        all.filter(|(_, is)| **is).map(|(range, _)| tokens.join(range)).collect()
    }

    #[test]
    fn a_list_has_the_parameters_whose_conditions_hold() {
        let text = "float *x,\n#ifdef Y\nfloat *y, int m,\n#elif Z\nint z,\n#else\nint w,\n#endif\nmap<int, 2> n";
        assert_eq!(
            there(text, &Macros::of(["Y"])),
            ["float *x", "float *y", "int m", "map<int, 2> n"]
        );
        assert_eq!(there(text, &Macros::of(["Z"])), ["float *x", "int z", "map<int, 2> n"]);
        assert_eq!(there(text, &Macros::default()), ["float *x", "int w", "map<int, 2> n"]);
        let behind = "int n\n#if A\n, int a\n#endif\n#if B\n, int b\n#endif\n";
        assert_eq!(there(behind, &Macros::of(["B"])), ["int n", "int b"]);
        assert_eq!(there("void", &Macros::default()), [] as [&str; 0]);
        let tokens = Tokens::read("\n#ifdef A\ndouble\n#else\nfloat\n#endif\n*x");
        assert!(List::read(&tokens, 0, tokens.all.len(), &Macros::default()).is_err());
    }
}

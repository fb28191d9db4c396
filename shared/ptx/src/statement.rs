//! PTX as a program has it between quotes: statements, and what they work on. PTX ISA, "Syntax".

/// One statement of a text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Statement {
    /// `{` and `}`: what is declared between them is not known outside.
    Open,
    Close,
    Label(String),
    /// `.reg .b32 low, high;`: a type and names.
    Registers(String, Vec<String>),
    Instruction(Instruction),
}

/// `@!p cp.async.cg.shared.global [%0], [%1], 16;`
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Instruction {
    /// The predicate that must hold, or, with `true`, must not.
    pub(crate) guard: Option<(Value, bool)>,
    /// The words of its name: `cp`, `async`, `cg`, `shared`, `global`.
    pub(crate) words: Vec<String>,
    pub(crate) operands: Vec<Operand>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Value(Value),
    /// `!p`.
    Not(Value),
    /// `d|p`.
    Pair(Value, Value),
    /// `{%0, %1}`.
    Vector(Vec<Value>),
    /// `(param0, param1)` of a call.
    Arguments(Vec<Value>),
    /// `[%0 + 16]`, and `[map, {c0, c1}]` of a tensor.
    Address {
        base: Value,
        offset: i64,
        coordinates: Vec<Value>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// `%0` or `%[name]`: one of those behind the colons.
    Own(String),
    /// `%laneid`.
    Special(String),
    /// Declared by the text itself.
    Register(String),
    /// As C++ has it.
    Number(String),
    /// A real number by its bits: `0f3F800000`, `0d3FF0000000000000`.
    Real(u64, &'static str),
    /// `_`: nobody wants it.
    Nowhere,
}

/// Where a text goes on in its next literal of C++.
pub const NEXT_LITERAL: char = '\u{E000}';

/// The statements of a text without its quotes, each with the number of the literal that it begins in; `None` where it is
/// none that is understood.
pub(crate) fn statements(text: &str) -> Option<Vec<(usize, Statement)>> {
    let text = without_comments(text);
    let mut all = Vec::new();
    // A literal may end within a word.
    let whole = text.replace(NEXT_LITERAL, "");
    let begins: Vec<usize> = text
        .match_indices(NEXT_LITERAL)
        .enumerate()
        .map(|(before, (at, _))| at - before * NEXT_LITERAL.len_utf8())
        .collect();
    let mut rest = whole.trim();
    let end = whole.trim_end().len();
    while !rest.is_empty() {
        let literal = begins.partition_point(|&begin| begin <= end - rest.len());
        let (statement, len) = match rest.as_bytes()[0] {
            b'{' => (Some(Statement::Open), 1),
            b'}' => (Some(Statement::Close), 1),
            b';' => (None, 1),
            _ => match label(rest) {
                Some((name, len)) => (Some(Statement::Label(name)), len),
                None => {
                    let end = rest.find(';')?;
                    (Some(statement(rest[..end].trim())?), end + 1)
                }
            },
        };
        all.extend(statement.map(|statement| (literal, statement)));
        rest = rest[len..].trim_start();
    }
    Some(all)
}

/// The text without comments, each line at its place. What stands between quotes stays.
pub(crate) fn without_comments(text: &str) -> String {
    let mut own = String::with_capacity(text.len());
    let (mut rest, mut in_string) = (text, false);
    while let Some(c) = rest.chars().next() {
        let len = match c {
            _ if !in_string && rest.starts_with("//") => {
                let len = rest.find('\n').unwrap_or(rest.len());
                own.extend(rest[..len].chars().filter(|c| *c == NEXT_LITERAL));
                len
            }
            _ if !in_string && rest.starts_with("/*") => {
                let len = rest.find("*/").map_or(rest.len(), |at| at + 2);
                own.push(' ');
                own.extend(rest[..len].chars().filter(|c| ['\n', NEXT_LITERAL].contains(c)));
                len
            }
            c => {
                in_string = match c {
                    '"' => !in_string,
                    '\n' => false,
                    _ => in_string,
                };
                own.push(c);
                c.len_utf8()
            }
        };
        rest = &rest[len..];
    }
    own
}

/// A name and a colon, which is no `::`.
pub(crate) fn label(text: &str) -> Option<(String, usize)> {
    let end = text.find(|c: char| !is_of_name(c) && !"%={}:".contains(c) || c == ':')?;
    let name = &text[..end];
    let is_label = text[end..].starts_with(':') && !text[end..].starts_with("::");
    (is_label && !name.is_empty()).then(|| (label_name(name), end + 1))
}

/// `%=` and `${:uid}` make a label of each copy of a text its own; here a label is known in its text alone.
pub(crate) fn label_name(name: &str) -> String {
    name.chars().map(|c| if is_of_name(c) { c } else { '_' }).collect()
}

pub(crate) fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$'
}

pub(crate) fn statement(text: &str) -> Option<Statement> {
    if let Some(declared) = text.strip_prefix(".reg") {
        let (kind, names) = declared.trim().split_once(char::is_whitespace)?;
        let names = names.split(',').map(|n| n.trim().trim_start_matches('%').to_owned());
        let names: Vec<_> = names.collect();
        let plain = |n: &String| !n.is_empty() && n.chars().all(is_of_name);
        return names.iter().all(plain).then(|| Statement::Registers(kind[1..].to_owned(), names));
    }
    let (guard, text) = match text.strip_prefix('@') {
        None => (None, text),
        Some(guarded) => {
            let (predicate, rest) = guarded.trim_start().split_once(char::is_whitespace)?;
            let name = predicate.trim_start_matches('!');
            (Some((value(name)?, name.len() < predicate.len())), rest.trim())
        }
    };
    let (name, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let words = name.split('.').map(str::to_owned).collect();
    let operands = parts(operands, ',').into_iter().map(operand).collect::<Option<_>>()?;
    Some(Statement::Instruction(Instruction { guard, words, operands }))
}

/// What stands between separators outside of brackets; nothing is no part.
pub(crate) fn parts(text: &str, separator: char) -> Vec<&str> {
    let (mut all, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '[' | '{' | '(' => depth += 1,
            ']' | '}' | ')' => depth -= 1,
            c if c == separator && depth == 0 => {
                all.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    all.push(text[from..].trim());
    if all == [""] { Vec::new() } else { all }
}

fn operand(text: &str) -> Option<Operand> {
    let inner = |open, close| text.strip_prefix(open)?.strip_suffix(close).map(str::trim);
    let values = |text| parts(text, ',').into_iter().map(value).collect::<Option<Vec<_>>>();
    if let Some(vector) = inner('{', '}') {
        return Some(Operand::Vector(values(vector)?));
    }
    if let Some(arguments) = inner('(', ')') {
        return Some(Operand::Arguments(values(arguments)?));
    }
    if let Some(address) = inner('[', ']') {
        let (place, coordinates) = match parts(address, ',')[..] {
            [place] => (place, Vec::new()),
            [place, box_] => (place, values(box_.strip_prefix('{')?.strip_suffix('}')?)?),
            _ => return None,
        };
        let (base, offset) = match place.rfind(['+', '-']).filter(|&at| at > 0) {
            None => (place, 0),
            // `+ -8` and `- 8` are the same.
            Some(at) => {
                let (base, offset) = place.split_at(at);
                let sign = if offset.starts_with('-') { -1 } else { 1 };
                let whole = i64::try_from(whole_number(offset[1..].trim())?).ok()?;
                (base.trim_end_matches(['+', ' ']), sign * whole)
            }
        };
        return Some(Operand::Address { base: value(base)?, offset, coordinates });
    }
    if let Some((first, second)) = text.split_once('|') {
        return Some(Operand::Pair(value(first.trim())?, value(second.trim())?));
    }
    if let Some(negated) = text.strip_prefix('!') {
        return Some(Operand::Not(value(negated.trim())?));
    }
    value(text).map(Operand::Value)
}

fn value(text: &str) -> Option<Value> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if text == "_" {
        return Some(Value::Nowhere);
    }
    if let Some(name) = text.strip_prefix('%') {
        let named = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
        if named.is_some() || name.bytes().all(|b| b.is_ascii_digit()) && !name.is_empty() {
            return Some(Value::Own(named.unwrap_or(name).to_owned()));
        }
        let special = name.trim_start_matches('%');
        let plain = |c| is_of_name(c) || c == '.';
        return special.chars().all(plain).then(|| Value::Special(special.to_owned()));
    }
    for (prefix, cpp) in [("0f", "float"), ("0F", "float"), ("0d", "double"), ("0D", "double")] {
        if let Some(bits) = text.strip_prefix(prefix) {
            return Some(Value::Real(u64::from_str_radix(bits, 16).ok()?, cpp));
        }
    }
    if digits.starts_with(|c: char| c.is_ascii_digit()) {
        return number(text).map(Value::Number);
    }
    (!text.is_empty() && text.chars().all(|c| is_of_name(c) || "%={}:".contains(c)))
        .then(|| Value::Register(label_name(text)))
}

/// Whole numbers, and decimal fractions.
fn number(text: &str) -> Option<String> {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    if let Ok(real) = text.parse::<f64>()
        && digits.contains('.')
    {
        return Some(format!("{real:?}"));
    }
    let whole = whole_number(digits)?;
    Some(format!("{sign}{whole}{}", if whole > u64::from(u32::MAX) { "ull" } else { "" }))
}

/// As PTX has them: `0x1f`, `0b101`, `017` of octal digits.
pub(crate) fn whole_number(digits: &str) -> Option<u64> {
    let digits = digits.trim_end_matches('U').to_lowercase();
    let of_base =
        |prefix, base| digits.strip_prefix(prefix).map(|d| u64::from_str_radix(d, base).ok());
    let is_octal = digits.len() > 1 && digits.bytes().all(|b| b.is_ascii_digit());
    let based = of_base("0x", 16).or_else(|| of_base("0b", 2));
    based.or_else(|| of_base("0", 8).filter(|_| is_octal)).unwrap_or_else(|| digits.parse().ok())
}

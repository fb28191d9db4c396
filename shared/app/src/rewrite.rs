//! What a host compiler has to be told of a CUDA file, written into it.
//!
//! `k<<<grid, block>>>(x)` becomes a call of `k` behind `emu::configure(grid, block)`, as nvcc does it
//! itself; so overloads, deduced templates and conversions are those of C++. Each kernel begins with a
//! question: called by the host, it launches itself. Dynamic shared memory becomes a pointer, inline PTX
//! calls of the emulator, or a trap that says its text. Lines stay where they are.

use std::ops::Range;

use crate::assembly::rewrite_asm;
use crate::branches::{Branches, is_whole};
use crate::conditions::{List, Macros};
use crate::cuts::directive_end;
use crate::facts::Facts;
use crate::names::{base_name, source_name};
use crate::tokens::{Kind, Tokens};

/// A kernel that a file defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name, with the arguments of a specialisation.
    pub name: String,
    /// The namespaces that it stands in: `a::b::`, or nothing.
    pub scope: String,
    /// The parameters of its template, as arguments: `T`, `N`, `Rest...`.
    pub template: Vec<String>,
    /// What each of these is: `class`, `typename`, `int`, …
    pub template_kinds: Vec<String>,
    /// Type and name of each parameter.
    pub parameters: Vec<(String, String)>,
    /// So many of them have no default.
    pub required: usize,
    /// What its body uses.
    pub facts: Facts,
    /// Where it stands, from 1.
    pub line: usize,
    /// It is made by a macro: which one, by the place in its file.
    pub in_macro: Option<usize>,
    /// Of a module of PTX, what that says of it.
    pub entry: Option<lab_ptx::Entry>,
}

impl Kernel {
    /// The namespaces that its source has: one of a module's none, whatever becomes of it here.
    #[must_use]
    pub fn shown_scope(&self) -> &str {
        if self.entry.is_some() { "" } else { &self.scope }
    }

    /// Its name in its source, a module's too.
    #[must_use]
    pub fn shown_name(&self) -> String {
        self.entry.as_ref().map_or_else(|| self.name.clone(), |entry| source_name(&entry.name))
    }

    /// Whether a name is that of a module's kernel: as the module has it, or as its source does, with or without scope and
    /// the arguments of its template.
    #[must_use]
    pub fn is_entry(&self, name: &str) -> bool {
        self.entry.as_ref().is_some_and(|entry| {
            let plain = |text: &str| text.replace(' ', "");
            entry.name == name
                || entry.cpp_name == name
                || base_name(&entry.name) == name
                || plain(&source_name(&entry.name)) == plain(name)
        })
    }
}

/// A file that a host compiler takes.
#[derive(Clone, Debug)]
pub(crate) struct Rewritten {
    pub(crate) text: String,
    pub(crate) kernels: Vec<Kernel>,
}

/// Replacements of ranges, none of which meet.
type Edits = Vec<(Range<usize>, String)>;

/// What is to be included in place of a name; `None` where that is no file of the program's own. It adds what
/// the file defines.
pub(crate) type Include<'a> =
    dyn FnMut(&str, bool, &mut Macros) -> Result<Option<String>, String> + 'a;

/// Rewrites a file. `include` answers what is to be included in place of `"name"` or `<name>` (with the
/// second argument true), if it is another file. `macros` are those before the file, and then those behind it.
///
/// # Errors
/// A launch or a kernel that is written in a way this does not read; the message has line and reason.
pub(crate) fn rewrite(
    text: &str,
    macros: &mut Macros,
    include: &mut Include<'_>,
) -> Result<Rewritten, String> {
    let text = &joined_launches(text);
    let tokens = Tokens::read(text);
    let mut reader = Reader { tokens: &tokens, hidden: Vec::new(), in_dim3: false, macros };
    let mut edits = Edits::new();
    let mut kernels = Vec::new();
    let mut scopes = Vec::new();
    let (mut directive, mut branches) = (0..0, Vec::new());
    for index in 0..tokens.all.len() {
        match (tokens.all[index].kind, tokens.at(index)) {
            (Kind::Include, line) => {
                if let Some((name, angled)) = included(line)
                    && let Some(other) = include(name, angled, reader.macros)?
                {
                    edits.push((tokens.all[index].range.clone(), format!("#include {other:?}")));
                }
            }
            (Kind::Directive, _) => {
                let start = tokens.start(index);
                let line = start..directive_end(text, start);
                directive = line.clone();
                if matches!(
                    tokens.at(index).trim_start_matches(['#', ' ', '\t']),
                    "else" | "elif" | "endif"
                ) {
                    branches.push(line.end);
                }
                edits.extend(pragma_in_macro(text, line.clone()));
                reader.macros.read(&text[line]);
            }
            (_, "{") => {
                let within = scopes.last().is_some_and(|&(is_body, _)| is_body);
                let opens_body = matches!(
                    tokens.at(index.wrapping_sub(1)),
                    ")" | "const" | "noexcept" | "override" | "else" | "do" | "try"
                );
                scopes.push((within || index > 0 && opens_body, namespace(&tokens, index)));
            }
            (_, "}") => {
                scopes.pop();
                reader.in_dim3 = false;
                reader.hidden.retain(|&(level, _)| level <= scopes.len());
            }
            (_, ";") => reader.in_dim3 = false,
            (_, "dim3") => reader.in_dim3 = tokens.is_word(index + 1),
            (_, "gridDim" | "blockDim" | "blockIdx" | "threadIdx") => {
                reader.built_in(index, scopes.len(), &mut edits);
            }
            (_, "<<<") => reader.launch(index, &mut edits)?,
            (_, "__global__") => {
                let scope = || scopes.iter().map(|(_, name)| name.as_str()).collect();
                let kernel = reader.kernel(index, &mut edits)?;
                let (start, end) = (tokens.start(index), tokens.end(index));
                let in_macro = directive.contains(&start).then_some(start);
                if kernel.is_some() && in_macro.is_some() {
                    edits.push((end..end, format!(" {MADE}({start})")));
                }
                kernels.extend(kernel.map(|kernel| Kernel { scope: scope(), in_macro, ..kernel }));
            }
            (_, "__shared__") => {
                let in_body = scopes.last().is_some_and(|&(is_body, _)| is_body);
                reader.shared(index, in_body, &mut edits)?;
            }
            // nvcc has it as a macro; g++'s own headers use the word for something else.
            (_, "__noinline__") if tokens.at(index.wrapping_sub(1)) != "(" => {
                edits.push((tokens.all[index].range.clone(), "__attribute__((noinline))".into()));
            }
            (_, "asm" | "__asm__" | "__asm") => edits.extend(rewrite_asm(&tokens, index)?),
            // `params.func = (void*)k`
            (_, "func") if matches!(tokens.at(index.wrapping_sub(1)), "." | ">") => {
                reader.untyped_kernel(index, &mut edits)
            }
            (_, "cudaLaunchKernel" | "cudaLaunchCooperativeKernel" | "cudaLaunchKernelExC") => {
                reader.untyped_kernel(index, &mut edits);
            }
            _ => {}
        }
    }
    edits.extend(counted_again(text, &edits, &branches));
    Ok(Rewritten { text: apply(text, edits), kernels })
}

/// Behind each end of a branch of `#if` the number of the next line: in a branch that is left out, lines that were put in count, and
/// what tells their numbers does not.
fn counted_again(text: &str, edits: &Edits, branches: &[usize]) -> Edits {
    let puts_in = edits.iter().filter(|(_, new)| new.contains("\n#line "));
    let Some(first) = puts_in.map(|(range, _)| range.start).min() else { return Edits::new() };
    let ends = branches.iter().filter(|&&end| end > first);
    ends.map(|&end| {
        let next = text[..end].matches('\n').count() + 2;
        (end..end, format!("\n#line {next}"))
    })
    .collect()
}

/// Behind the `__global__` of a kernel in a macro, with the macro's place: what the preprocessor leaves of it.
pub(crate) const MADE: &str = "EMU_MADE";

/// The kernels that macros have made, in a text that the preprocessor is done with. One that is written in a way this does
/// not read is left out.
pub(crate) fn made_kernels(text: &str, macros: &mut Macros) -> Vec<Kernel> {
    let tokens = Tokens::read(text);
    let reader = Reader { tokens: &tokens, hidden: Vec::new(), in_dim3: false, macros };
    let (mut kernels, mut scopes) = (Vec::new(), Vec::<String>::new());
    for index in 0..tokens.all.len() {
        match tokens.at(index) {
            "{" => scopes.push(namespace(&tokens, index)),
            "}" => drop(scopes.pop()),
            MADE => {
                let kernel = reader.kernel(index, &mut Edits::new()).ok().flatten();
                let in_macro = tokens.at(index + 2).parse().ok();
                kernels.extend(kernel.map(|k| Kernel { scope: scopes.concat(), in_macro, ..k }));
            }
            _ => {}
        }
    }
    kernels
}

/// `#define UNROLL #pragma unroll`, which nvcc takes and C++ does not: how far a loop is unrolled changes no result, and other
/// pragmas have a form for macros.
fn pragma_in_macro(text: &str, line: Range<usize>) -> Option<(Range<usize>, String)> {
    let rest = text[line.clone()].strip_prefix('#')?.trim_start();
    rest.starts_with("define").then_some(())?;
    let at = line.start + text[line.clone()].find("#pragma")?;
    let own = text[at..line.end].lines().next()?.trim_end().trim_end_matches('\\').trim_end();
    let words = own["#pragma".len()..].split("//").next()?.trim();
    let new = match words.split(|c: char| !c.is_alphanumeric()).next() {
        Some("unroll" | "nounroll") => String::new(),
        _ => format!("_Pragma({words:?})"),
    };
    Some((at..at + own.len(), new))
}

/// `k << <1, 2>> >(x)`, which nvcc takes too, as `k <<< 1, 2>>> (x)`. What stands in a literal or in a comment is no token and
/// stays.
fn joined_launches(text: &str) -> String {
    let tokens = Tokens::read(text);
    // Three of a kind, the third behind a gap in its line.
    let is_divided = |first: usize, mark: &str| {
        let gap = tokens.end(first + 1)..tokens.start(first + 2);
        (first..first + 3).all(|n| tokens.at(n) == mark)
            && tokens.end(first) == tokens.start(first + 1)
            && !gap.is_empty()
            && text[gap].bytes().all(|b| b == b' ' || b == b'\t')
    };
    let mut edits = Edits::new();
    let mut join = |first: usize, mark: &str| {
        let range = tokens.start(first)..tokens.end(first + 2);
        let gap = " ".repeat(range.len() - 3);
        edits.push((range, mark.repeat(3) + &gap));
    };
    let mut index = 0;
    while index < tokens.all.len() {
        let ends = |n: &usize| is_divided(*n, ">") || matches!(tokens.at(*n), ";" | "{" | "}");
        let close = if is_divided(index, "<") {
            (index + 3..tokens.all.len()).find(ends).filter(|&n| tokens.at(n) == ">")
        } else {
            None
        };
        if let Some(close) = close {
            join(index, "<");
            join(close, ">");
        }
        index = close.map_or(index + 1, |close| close + 3);
    }
    apply(text, edits)
}

/// `a::b::`, where the `{` opens namespace a::b.
fn namespace(tokens: &Tokens<'_>, open: usize) -> String {
    let mut first = open;
    while first > 0 && (tokens.is_word(first - 1) || tokens.at(first - 1) == "::") {
        first -= 1;
        if tokens.at(first) == "namespace" {
            let name: String = (first + 1..open).map(|i| tokens.at(i)).collect();
            return if name.is_empty() { name } else { name + "::" };
        }
    }
    String::new()
}

/// The name in an `#include` line, and whether it stands in angle brackets.
fn included(line: &str) -> Option<(&str, bool)> {
    let name = line.split_once("include")?.1.trim_start();
    match name.strip_prefix('"') {
        Some(rest) => Some((rest.split_once('"')?.0, false)),
        None => Some((name.strip_prefix('<')?.split_once('>')?.0, true)),
    }
}

fn apply(text: &str, mut edits: Edits) -> String {
    edits.sort_by_key(|(range, _)| range.start);
    let (mut out, mut at) = (String::with_capacity(text.len() + 256), 0);
    for (range, new) in edits {
        // Edits of nested code: the outer one stands.
        if range.start < at {
            continue;
        }
        out += &text[at..range.start];
        out += &new;
        // Lines keep their numbers.
        let lines = |t: &str| t.matches('\n').count();
        let gone = lines(&text[range.clone()]).saturating_sub(lines(&new));
        // In a macro they go on.
        let end = if text[range.clone()].contains("\\\n") { "\\\n" } else { "\n" };
        out.extend(std::iter::repeat_n(end, gone));
        at = range.end;
    }
    out + &text[at..]
}

struct Reader<'a> {
    tokens: &'a Tokens<'a>,
    /// Variables of host code that have the name of a built-in one, with the scope of each.
    hidden: Vec<(usize, &'a str)>,
    /// Within a declaration that begins with dim3.
    in_dim3: bool,
    /// What is defined so far.
    macros: &'a mut Macros,
}

impl<'a> Reader<'a> {
    /// `dim3 blockDim(16, 16)`: built-in variables are macros here, so host code's get another name.
    fn built_in(&mut self, index: usize, level: usize, edits: &mut Edits) {
        let tokens = self.tokens;
        let name = tokens.at(index);
        let declared = match tokens.at(index.wrapping_sub(1)) {
            "dim3" => true,
            "int" | "unsigned" => matches!(tokens.at(index + 1), "[" | "=" | ";"),
            "," => self.in_dim3 && matches!(tokens.at(index + 1), "(" | "=" | "{" | "," | ";"),
            _ => false,
        };
        if declared {
            self.hidden.push((level, name));
        }
        // A member of what describes a launch, which the headers give another name, too.
        let before = |n: usize| index.checked_sub(n).map_or("", |i| tokens.at(i));
        let is_member = before(1) == "." || before(1) == ">" && before(2) == "-";
        if is_member || self.is_hidden(name) {
            edits.push((tokens.all[index].range.clone(), format!("host_{name}")));
        }
    }

    fn is_hidden(&self, name: &str) -> bool {
        self.hidden.iter().any(|&(_, hidden)| hidden == name)
    }

    fn line(&self, index: usize) -> usize {
        self.tokens.text[..self.tokens.start(index)].matches('\n').count() + 1
    }

    /// What stands before the rest of a line, so that it keeps its columns behind a text that was put in; `None` where
    /// there is no rest, or a macro's definition that is one line.
    fn rest_in_place(&self, at: usize) -> Option<String> {
        let (before, rest) = self.tokens.text.split_at(at);
        if rest.lines().next().unwrap_or("").trim().is_empty() {
            return None;
        }
        let lines: Vec<&str> = before.split('\n').collect();
        let goes_on = lines.iter().rev().skip(1).take_while(|line| line.trim_end().ends_with('\\'));
        let first = lines[lines.len() - 1 - goes_on.count()];
        let column = lines.last().map_or(0, |line| line.len());
        (!first.trim_start().starts_with('#'))
            .then(|| format!("\n#line {}\n{}", lines.len(), " ".repeat(column)))
    }

    fn refuse(&self, index: usize, what: &str) -> String {
        format!("line {}: {what}", self.line(index))
    }

    // ---- launches -----------------------------------------------------------------------------

    /// `k<T><<<grid, block>>>(x)`, by the place of `<<<`.
    fn launch(&mut self, open: usize, edits: &mut Edits) -> Result<(), String> {
        let tokens = self.tokens;
        let mut depth = 0i64;
        let close = (open + 1..tokens.all.len()).find(|&i| {
            depth += match tokens.at(i) {
                "(" | "[" | "{" => 1,
                ")" | "]" | "}" => -1,
                _ => 0,
            };
            depth == 0 && tokens.at(i) == ">>>"
        });
        let close = close.ok_or_else(|| self.refuse(open, "expected >>> behind <<<, got none"))?;
        let arguments = close + 1;
        let end = match tokens.at(arguments) {
            "(" => tokens.closing(arguments),
            _ => None,
        };
        let end = end.ok_or_else(|| self.refuse(close, "expected (arguments) behind >>>"))?;
        let first = self.callee(open);
        let first = first.ok_or_else(|| self.refuse(open, "expected a kernel before <<<"))?;
        let has_directive = |i: usize| tokens.all[i].kind == Kind::Directive;
        if ((open..close).any(has_directive) || !is_whole(tokens, close..end))
            && let Some(branches) = Branches::first(tokens, open..end)
        {
            edits.push(self.cut_launch(open, tokens.start(first), &branches)?);
            return Ok(());
        }
        let mut configuration = String::new();
        for index in open + 1..close {
            if index > open + 1 && tokens.end(index - 1) < tokens.start(index) {
                configuration.push(' ');
            }
            let is_hidden = self.is_hidden(tokens.at(index));
            configuration += if is_hidden { "host_" } else { "" };
            configuration += tokens.at(index);
        }
        let start = tokens.start(first);
        // Between the kernel and its arguments nothing stays.
        edits.push((start..start, format!("(::emu::configure({configuration}) ? (void)")));
        edits.push((tokens.start(open)..tokens.end(close), String::new()));
        edits.push((tokens.end(end)..tokens.end(end), " : (void)0)".into()));
        Ok(())
    }

    /// A launch that `#if` cuts, and whose kernel stands at `start`: one of each branch.
    fn cut_launch(
        &mut self,
        open: usize,
        start: usize,
        branches: &Branches,
    ) -> Result<(Range<usize>, String), String> {
        let tokens = self.tokens;
        let (at, missing) = (tokens.start(open), self.refuse(open, "expected a kernel before <<<"));
        let mut news = Vec::new();
        for text in &branches.texts {
            let own = Tokens::read(text);
            let open = own.all.iter().position(|token| token.range.start == at);
            let hidden = self.hidden.clone();
            let mut reader =
                Reader { tokens: &own, hidden, in_dim3: false, macros: &mut *self.macros };
            let mut edits = Edits::new();
            reader.launch(open.ok_or_else(|| missing.clone())?, &mut edits)?;
            let end = edits.iter().map(|(range, _)| range.end).max().unwrap_or(at);
            let changed = apply(text, edits);
            let behind = text.len() - end;
            news.push((end, changed[start..changed.len() - behind].to_owned()));
        }
        Ok(branches.joined(tokens.text, start, &news))
    }

    /// The first token of the expression that ends before `open`.
    fn callee(&self, open: usize) -> Option<usize> {
        let tokens = self.tokens;
        let mut first = open.checked_sub(1)?;
        loop {
            if matches!(tokens.at(first), ">" | ")" | "]") {
                let opens = tokens.opening(first)?;
                if tokens.at(first) == ")" && !tokens.is_word(opens.checked_sub(1)?) {
                    return Some(opens);
                }
                first = opens.checked_sub(1)?;
            }
            if !tokens.is_word(first) {
                return None;
            }
            let before = |n: usize| first.checked_sub(n).map_or("", |i| tokens.at(i));
            first = match (before(1), before(2)) {
                ("::", _) if first >= 2 && (tokens.is_word(first - 2) || before(2) == ">") => {
                    first - 2
                }
                ("::", _) => return Some(first - 1),
                // Of macros: name##x.
                ("#", "#") => first - 3,
                (".", _) => first - 2,
                (">", "-") => first - 3,
                _ => return Some(first),
            };
        }
    }

    /// The cast of `cudaLaunchKernel((void*)k, …)` takes the kernel's type away: it goes.
    fn untyped_kernel(&self, call: usize, edits: &mut Edits) {
        let tokens = self.tokens;
        let at = |n: usize| tokens.at(call + n);
        let last = match [at(1), at(2), at(3), at(4), at(5), at(6)] {
            ["(" | "=", "(", "void", "*", ")", _] => call + 5,
            ["(", "(", "const", "void", "*", ")"] => call + 6,
            ["(", "reinterpret_cast", "<", "void", "*", ">"] => call + 6,
            _ => return,
        };
        edits.push((tokens.start(call + 2)..tokens.end(last), String::new()));
    }

    // ---- kernels ------------------------------------------------------------------------------

    /// The definition that `__global__` belongs to, if it is one.
    fn kernel(&self, global: usize, edits: &mut Edits) -> Result<Option<Kernel>, String> {
        let tokens = self.tokens;
        let mut at = global + 1;
        let mut cluster = String::new();
        let open = loop {
            match tokens.at(at) {
                "" | ";" | "{" | "}" => return Ok(None),
                "(" => {
                    let is_attribute = [
                        "__launch_bounds__",
                        "__cluster_dims__",
                        "__attribute__",
                        "__align__",
                        "alignas",
                        "__block_size__",
                        "__maxnreg__",
                        MADE,
                    ]
                    .contains(&tokens.at(at - 1));
                    if !is_attribute {
                        break at;
                    }
                    let Some(close) = tokens.closing(at) else { return Ok(None) };
                    if tokens.at(at - 1) == "__cluster_dims__" {
                        cluster = format!("::emu::cluster_dims({}), ", tokens.join(at + 1..close));
                    }
                    at = close + 1;
                }
                _ => at += 1,
            }
        };
        let Some(close) = tokens.closing(open) else { return Ok(None) };
        let Some(body) = (close + 1..close + 12).find(|&i| matches!(tokens.at(i), "{" | ";" | ""))
        else {
            return Ok(None);
        };
        if tokens.at(body) != "{" {
            return Ok(None);
        }
        let name = match tokens.at(open - 1) {
            ">" => tokens.opening(open - 1).and_then(|i| i.checked_sub(1)),
            _ => Some(open - 1),
        };
        let Some(mut name) = name.filter(|&n| tokens.is_word(n)) else { return Ok(None) };
        // In a macro: twice_##T.
        while name >= 3 && tokens.at(name - 1) == "#" && tokens.at(name - 2) == "#" {
            name -= 3;
        }
        let name = tokens.text[tokens.start(name)..tokens.end(open - 1)].to_owned();
        let (template, template_kinds) = self.template(global)?.into_iter().unzip();
        let template: Vec<String> = template;
        let (mut parameters, mut required) = (Vec::new(), 0);
        let list = List::read(tokens, open + 1, close, self.macros).map_err(|at| {
            self.refuse(at, "expected whole parameters between #if and #endif, got a part of one")
        })?;
        for (number, range) in list.parameters().enumerate() {
            if list.is_there[number] && !range.clone().any(|i| tokens.at(i) == "=") {
                required = list.is_there[..=number].iter().filter(|is| **is).count();
            }
            parameters.push(self.parameter(range, number, edits));
        }
        let own = if template.is_empty() {
            name.clone()
        } else {
            format!("{name}<{}>", template.join(", "))
        };
        let texts = |of: &dyn Fn(&(String, String)) -> String| -> Vec<String> {
            parameters.iter().map(of).collect()
        };
        let types = list.with(&texts(&|(t, _)| t.clone()), ", ");
        let passed = list.with(&texts(&|(_, n)| format!(", {n}")), "");
        // A list that #if divides is divided likewise here, on lines of its own.
        let names = if list.has_conditions() {
            format!("\"\" {}", list.with(&texts(&|(_, n)| format!("{n:?}")), " \",\" "))
        } else {
            format!("{:?}", list.with(&texts(&|(_, n)| n.clone()), ","))
        };
        let behind = match (list.has_conditions(), self.rest_in_place(tokens.end(body))) {
            (true, None) => format!("\n#line {}\n", self.line(body)),
            (_, rest) => rest.unwrap_or_default(),
        };
        let question = format!(
            " if (::emu::is_launch()) return {cluster}::emu::launch_configured<(static_cast<void (*)({types})>(&{own}))>\
             (__PRETTY_FUNCTION__, {names}{passed}); EMU_BEGIN_KERNEL;{behind}",
        );
        let end = tokens.end(body);
        edits.push((end..end, question));
        let mut is_there = list.is_there.iter();
        parameters.retain(|_| is_there.next() == Some(&true));
        let last = tokens.closing(body).unwrap_or(tokens.all.len());
        let facts = Facts::of(tokens, body..last, parameters.iter().map(|(_, n)| n.as_str()));
        let (scope, line) = (String::new(), self.line(global));
        Ok(Some(Kernel {
            name,
            scope,
            template,
            template_kinds,
            parameters,
            required,
            facts,
            line,
            in_macro: None,
            entry: None,
        }))
    }

    /// The parameters of the template whose function has the word at `global` in its head.
    fn template(&self, global: usize) -> Result<Vec<(String, String)>, String> {
        let tokens = self.tokens;
        let mut at = global;
        let close = loop {
            let Some(before) = at.checked_sub(1) else { return Ok(Vec::new()) };
            at = match tokens.at(before) {
                "static" | "inline" | "extern" | "void" | "__forceinline__" | "\"C\"" => before,
                ")" => match tokens.opening(before) {
                    Some(open)
                        if ["__launch_bounds__", "__cluster_dims__"]
                            .contains(&tokens.at(open.saturating_sub(1))) =>
                    {
                        open - 1
                    }
                    _ => return Ok(Vec::new()),
                },
                ">" => break before,
                _ => return Ok(Vec::new()),
            };
        };
        let Some(open) = tokens.opening(close) else { return Ok(Vec::new()) };
        if open == 0 || tokens.at(open - 1) != "template" {
            return Ok(Vec::new());
        }
        let parameters = self.split(open + 1, close).into_iter().map(|range| {
            let end = range.clone().find(|&i| tokens.at(i) == "=").unwrap_or(range.end);
            let name = end.checked_sub(1).filter(|&i| tokens.is_word(i) && i > range.start);
            let Some(name) = name else {
                return Err(self.refuse(range.start, "a template parameter needs a name"));
            };
            let is_pack = tokens.at(name - 1) == ".";
            let own = format!("{}{}", tokens.at(name), if is_pack { "..." } else { "" });
            Ok((own, tokens.join(range.start..name)))
        });
        parameters.collect()
    }

    /// Type and name of a parameter. One without a name gets one.
    fn parameter(&self, range: Range<usize>, number: usize, edits: &mut Edits) -> (String, String) {
        let tokens = self.tokens;
        let end = range.clone().find(|&i| tokens.at(i) == "=").unwrap_or(range.end);
        // Behind the name: the sizes of an array, or what a function takes.
        let pointer = (range.start..end).find(|&i| {
            tokens.at(i) == "(" && matches!(tokens.at(i + 1), "*" | "&") && tokens.is_word(i + 2)
        });
        let declarator = (range.start..end).find(|&i| tokens.at(i) == "[").unwrap_or(end);
        let name = pointer.map(|i| i + 2).or_else(|| {
            let last = declarator.checked_sub(1)?;
            let is_name = tokens.is_word(last) && last > range.start && !is_type(tokens.at(last));
            is_name.then_some(last)
        });
        match name {
            Some(name) => {
                let (before, behind) = (tokens.join(range.start..name), tokens.join(name + 1..end));
                (format!("{before} {behind}").trim().to_owned(), tokens.at(name).to_owned())
            }
            None => {
                let name = format!("emu_unnamed_{number}");
                let place = tokens.end(declarator.max(1) - 1);
                edits.push((place..place, format!(" {name}")));
                (tokens.join(range.start..end), name)
            }
        }
    }

    /// The tokens from `from` to `to`, cut at commas that stand in no brackets.
    fn split(&self, from: usize, to: usize) -> Vec<Range<usize>> {
        let (mut all, mut start, mut at) = (Vec::new(), from, from);
        while at < to {
            match self.tokens.at(at) {
                "(" | "[" | "{" | "<" => {
                    at = self.tokens.closing(at).filter(|&close| close < to).unwrap_or(at);
                }
                "," => {
                    all.push(start..at);
                    start = at + 1;
                }
                _ => {}
            }
            at += 1;
        }
        all.push(start..to);
        let is_none =
            |r: &Range<usize>| r.is_empty() || r.len() == 1 && self.tokens.at(r.start) == "void";
        all.retain(|r| !is_none(r));
        all
    }

    // ---- memory and instructions ----------------------------------------------------------------

    /// `extern __shared__ T x[];`, and `static __shared__`, which says static twice here.
    fn shared(&self, shared: usize, in_body: bool, edits: &mut Edits) -> Result<(), String> {
        let tokens = self.tokens;
        let is_end = |i: usize| matches!(tokens.at(i), ";" | "{" | "}" | "" | "\\");
        let first = (0..shared).rev().find(|&i| is_end(i) || tokens.all[i].kind == Kind::Include);
        let first = first.map_or(0, |i| i + 1);
        let Some(end) = (shared..tokens.all.len()).find(|&i| is_end(i)) else { return Ok(()) };
        for word in (first..end).filter(|&i| tokens.at(i) == "static") {
            edits.push((tokens.all[word].range.clone(), String::new()));
        }
        let Some(word) = (first..end).find(|&i| tokens.at(i) == "extern") else {
            // An attribute of the standard's must come first; g++'s own may stand anywhere.
            if tokens.at(shared + 1) == "alignas"
                && let Some(close) = tokens.closing(shared + 2)
            {
                let range = tokens.start(shared + 1)..tokens.end(close);
                let size = &tokens.text[tokens.end(shared + 2)..tokens.start(close)];
                edits.push((range, format!("__attribute__((aligned({size})))")));
            }
            return Ok(());
        };
        let bracket = (shared..end).find(|&i| tokens.at(i) == "[");
        // `extern __shared__ T x;` is one T at the beginning of that memory.
        let last = end - 1;
        if bracket.is_none() && in_body && tokens.at(end) == ";" && tokens.is_word(last) {
            let element = format!("__typeof__({})", self.shared_type(word.min(shared)..last));
            let range = tokens.start(word.min(shared))..tokens.start(end);
            let name = tokens.at(last);
            edits.push((range, format!("{element}& {name} = *({element}*)emu_dynamic_shared()")));
            self.keep_columns_behind(end, edits);
            return Ok(());
        }
        let Some(bracket) = bracket.filter(|&i| tokens.at(end) == ";" && tokens.is_word(i - 1))
        else {
            return Err(self.refuse(shared, "expected extern __shared__ T name[]"));
        };
        let name = tokens.at(bracket - 1);
        let element = self.shared_type(word.min(shared)..bracket - 1);
        // T x[][32] is a pointer to rows.
        let close = tokens.closing(bracket).unwrap_or(bracket);
        let sizes = &tokens.text[tokens.end(close)..tokens.start(end)];
        let element = format!("__typeof__({element}{sizes})");
        let range = tokens.start(word.min(shared))..tokens.start(end);
        let new = if in_body {
            format!("{element}* {name} = ({element}*)emu_dynamic_shared()")
        } else {
            format!("static ::emu::Dynamic<{element}> {name}")
        };
        edits.push((range, new));
        self.keep_columns_behind(end, edits);
        Ok(())
    }

    /// Lets what a line has behind this token stay at its columns.
    fn keep_columns_behind(&self, index: usize, edits: &mut Edits) {
        let at = self.tokens.end(index);
        edits.extend(self.rest_in_place(at).map(|rest| (at..at, rest)));
    }

    /// The type in a declaration of shared memory, without what says where it lies.
    fn shared_type(&self, range: Range<usize>) -> String {
        let tokens = self.tokens;
        let (mut element, mut at) = (String::new(), range.start);
        while at < range.end {
            match tokens.at(at) {
                "extern" | "__shared__" => {}
                "__align__" | "alignas" | "__attribute__" => {
                    at = tokens.closing(at + 1).unwrap_or(at);
                }
                word => element = format!("{element} {word}"),
            }
            at += 1;
        }
        element.trim().to_owned()
    }
}

/// Words that end a type and are no name.
fn is_type(word: &str) -> bool {
    [
        "int",
        "float",
        "double",
        "char",
        "short",
        "long",
        "unsigned",
        "signed",
        "bool",
        "const",
        "size_t",
        "__restrict__",
        "__half",
        "half",
    ]
    .contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(text: &str) -> Rewritten {
        rewrite(text, &mut Macros::default(), &mut |_, _, _| Ok(None)).unwrap()
    }

    #[test]
    fn a_launch_is_a_call_behind_its_configuration() {
        let text =
            "ns::k<T, 4><<<dim3(1, 2), n >> 1,\n 0, s>>>(x, f(y)); #define L k##n<<<g, b>>>()";
        let expected = "(::emu::configure(dim3(1, 2), n >> 1, 0, s) ? (void)ns::k<T, 4>\n(x, f(y)) : (void)0); \
                        #define L (::emu::configure(g, b) ? (void)k##n() : (void)0)";
        assert_eq!(rewritten(text).text, expected);
        // Each branch of #if has one of its own, whether it ends the launch or not.
        let cut = "k<<<\n#ifdef A\n1, 2\n#else\n3, 4\n#endif\n>>>(x);";
        let ends = "k<<<\n#ifdef A\n1, 2>>>(x);\n#else\n3, 4>>>(x);\n#endif\nf();";
        for text in [cut, ends] {
            let got = rewritten(text).text;
            let (first, second) = got.split_once("#else").unwrap();
            assert!(first.starts_with("\n#ifdef A\n#line 1\n(::emu::configure(1, 2)"), "{got}");
            assert!(
                second.contains("(::emu::configure(3, 4)") && second.contains("\n#endif"),
                "{got}"
            );
        }
        assert_eq!(rewritten("k << <1, 2>> >(x)").text, rewritten("k <<< 1, 2>>> (x)").text);
        for (text, reason) in
            [("k<<<1, 2)", "line 1: expected >>>"), ("\nk<<<1>>> x", "line 2: expected (")]
        {
            let error = rewrite(text, &mut Macros::default(), &mut |_, _, _| Ok(None)).unwrap_err();
            assert!(error.starts_with(reason), "{error}");
        }
    }

    /// Pieces of C++ in any order, some of which look like a divided launch: only the launches change.
    #[test]
    fn nothing_but_a_divided_launch_is_joined() {
        const STAY: [&str; 18] = [
            "puts(\"k << <1, 2>> >(x)\");",
            "puts(R\"(k << <1, 2>> >(x)\n\"))\");",
            "puts(R\"end(k << <1)\" 2>> >(x))end\");",
            "// k << <1, 2>> >(x)\n",
            "/* k << <1, 2>> >(x) */",
            "/* k << < */ a >> > b;",
            "'<'; '>'; '\\''; L'<';",
            "std::cout << x << y >> 1 << '<';",
            "A<B<C<int>>> a; A<B<C<int> > > b;",
            "#define SHIFT(a, b) (a << b >> 1)\n",
            "#define TEXT \"<< <\" \\\n  \">> >\"\n",
            "if (a < b && c > d) { a <<= 2; b >>= 1; }",
            "k<<<1, 2>>>(x);",
            "x = a <<\n< b;",
            "int n = 1'000'000 << 2;",
            "k << <1; 2>> >(x);",
            "\u{e9} ≤ \"\u{4e2d}\"; ",
            "operator<< (a); operator>> (b);",
        ];
        const CHANGE: [[&str; 2]; 3] = [
            ["k << <1, 2>> >(x);", "k <<< 1, 2>>> (x);"],
            [
                "k<T, 4> <<  <g, b, 1 << 3>>\t>(x, \"<< <\");",
                "k<T, 4> <<<  g, b, 1 << 3>>> (x, \"<< <\");",
            ],
            ["#define L(k) k << <g, \\\n b>> >()\n", "#define L(k) k <<< g, \\\n b>>> ()\n"],
        ];
        let mut state = 1u64;
        let mut draw = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for _ in 0..2000 {
            let (mut text, mut expected) = (String::new(), String::new());
            for _ in 0..1 + draw(9) {
                let [before, after] = match draw(4) {
                    0 => CHANGE[draw(CHANGE.len())],
                    _ => [STAY[draw(STAY.len())]; 2],
                };
                let space = ["\n", "\n\n", "\n  "][draw(3)];
                text += &format!("{before}{space}");
                expected += &format!("{after}{space}");
            }
            assert_eq!(joined_launches(&text), expected);
        }
    }

    #[test]
    fn a_kernel_asks_who_calls_it() {
        let text = "template <class T, int N = 2, class... R>
            static __global__ void __launch_bounds__(N * 32, 1) k(const T* __restrict__ x, float (*f)(int),
                int, int rows[4], R... rest, float eps = 1e-6f) { }
            __global__ void declared(int x);
            template <> __global__ void k<float>(void) {}";
        let got = rewritten(text);
        let [k, special] = &got.kernels[..] else { panic!("{:?}", got.kernels) };
        assert_eq!((&k.name[..], k.line, k.required), ("k", 2, 5));
        assert_eq!(k.template, ["T", "N", "R..."]);
        let names: Vec<&str> = k.parameters.iter().map(|(_, n)| n.as_str()).collect();
        assert_eq!(names, ["x", "f", "emu_unnamed_2", "rows", "rest", "eps"]);
        assert_eq!(k.parameters[1].0, "float (* )(int)");
        assert_eq!(k.parameters[3].0, "int [4]");
        assert!(got.text.contains("int emu_unnamed_2, int rows[4]"), "{}", got.text);
        assert!(got.text.contains("(&k<T, N, R...>))>(__PRETTY_FUNCTION__,"), "{}", got.text);
        assert_eq!((&special.name[..], special.parameters.len()), ("k<float>", 0));
        assert_eq!(got.text.matches("launch_configured").count(), 2);
    }

    #[test]
    fn parameters_may_depend_on_a_condition() {
        let text = "#define WITH_M\n__global__ void k(float* x,\n#ifdef WITH_Y\nfloat* y,\n#endif\nint n\n#ifdef WITH_M\n, int m\n#endif\n) { x[0] = 1; }";
        let got = rewritten(text);
        let names: Vec<&str> = got.kernels[0].parameters.iter().map(|(_, n)| n.as_str()).collect();
        assert_eq!((&names[..], got.kernels[0].required), (&["x", "n", "m"][..], 3));
        assert!(
            got.text.contains("void (*)(float*, \n#ifdef WITH_Y\nfloat*, \n#endif\nint"),
            "{}",
            got.text
        );
        assert!(got.text.contains("EMU_BEGIN_KERNEL;\n#line 10\n    x[0] = 1; }"), "{}", got.text);
        let divided = "__global__ void k(\n#ifdef A\nint\n#else\nfloat\n#endif\n x) {}";
        let error = rewrite(divided, &mut Macros::default(), &mut |_, _, _| Ok(None)).unwrap_err();
        assert_eq!(
            error,
            "line 7: expected whole parameters between #if and #endif, got a part of one"
        );
    }

    #[test]
    fn dynamic_shared_memory_is_a_pointer() {
        let text = "extern __shared__ float all[];
            __global__ void k() { extern\n volatile __shared__ __align__(16) int x[][32]; static __shared__ int y; }";
        let got = rewritten(text).text;
        assert!(got.starts_with("static ::emu::Dynamic<__typeof__(float)> all;"), "{got}");
        let pointer =
            "__typeof__(volatile int[32])* x = (__typeof__(volatile int[32])*)emu_dynamic_shared()";
        assert!(got.contains(pointer), "{got}");
        assert!(got.contains(" __shared__ int y;") && !got.contains("static __shared__"), "{got}");
        // And two around what says that a line goes on, at its column.
        let inserted = 2 * got.matches("\n#line ").count();
        assert_eq!(got.matches('\n').count(), text.matches('\n').count() + inserted);
        let (start, kernel) = text.split_once("{ extern").unwrap();
        let column = start.lines().last().unwrap().len() + 1;
        let behind = got.split_once("#line 2\n").unwrap().1;
        assert_eq!(behind.find(|c| c != ' '), Some(column + 1), "{kernel}: {got}");
        let macros =
            "#define K(name) __global__ void name() { \\\n extern __shared__ int s[]; s[0] = 1; }";
        assert!(!rewritten(macros).text.contains("#line"), "a macro is one line");
        let one = rewritten("__global__ void k() { extern __shared__ Both<int, 4> s; }").text;
        let expected = "__typeof__(Both < int , 4 >)& s = *(__typeof__(Both < int , 4 >)*)emu_dynamic_shared()";
        assert!(one.contains(expected), "{one}");
    }

    #[test]
    fn a_body_says_what_its_launch_wants() {
        let text = "namespace a { namespace { } namespace b::c {
            __global__ void k(float* x, float* y, float* z, int* t) {
                extern __shared__ int s[]; int i = threadIdx.y + blockIdx.x;
                x[i] = y[i]; x[2] = 3; y[0] = z[1] += 1; t[0] == 1; cg::this_grid().sync(); } } }
            __global__ void l() {}";
        let got = rewritten(text).kernels;
        assert_eq!((&got[0].scope[..], &got[1].scope[..]), ("a::b::c::", ""));
        let facts = &got[0].facts;
        assert_eq!((facts.block_rank, facts.grid_rank), (2, 1));
        assert!(facts.dynamic_shared && facts.cooperative && !facts.cluster);
        assert_eq!(facts.written_only, [true, false, false, false]);
    }

    #[test]
    fn ptx_and_untyped_kernels_are_seen() {
        let got = rewritten(
            "asm volatile(\"bar.sync %0;\" : : \"r\"(1)); cudaLaunchKernel((void*)k<T>, g);",
        )
        .text;
        let node = rewritten("p.func = (void*)k; p->gridDim = 1; func = (void*)x;").text;
        assert_eq!(node, "p.func = k; p->host_gridDim = 1; func = (void*)x;");
        assert_eq!(
            got,
            "do { [[maybe_unused]] auto emu_o0 = (1); \n#line 1\n              ::emu::ptx::barrier(::emu::ptx::as<uint32_t>\
             (emu_o0)); } while (0)\n#line 1\n                                       ; cudaLaunchKernel(k<T>, g);"
        );
        let newer = rewritten("asm(\"cp.async.wait_all;\");").text;
        assert_eq!(
            newer,
            "do { (EMU_NEEDS_cp_async (void)0); { \n#line 1\n     emu_async_commit(), emu_async_wait(0); } } while (0)\n\
             #line 1\n                         ;"
        );
        let unknown = rewritten("asm(\"tcgen05.dealloc %0;\" :: \"r\"(x));").text;
        assert_eq!(unknown, "(EMU_NEEDS_tcgen05 ::emu::inline_ptx(\"tcgen05.dealloc %0;\", x));");
    }

    #[test]
    fn lines_keep_their_numbers_behind_a_branch_that_is_left_out() {
        let text =
            "#ifdef A\n#endif\n#ifdef B\nasm(\"membar.gl;\");\n#else // none\nf();\n#endif\ng();";
        let got = rewritten(text).text;
        assert!(got.starts_with("#ifdef A\n#endif\n#ifdef B\n"), "{got}");
        assert!(got.contains("#else // none\n#line 6\nf();\n#endif\n#line 8\ng();"), "{got}");
    }

    #[test]
    fn a_pragma_may_stand_in_a_macro() {
        let text = "#define UNROLL #pragma unroll 4\n#define A(n) \\\n  #pragma unroll n \\\n  f(n);\n\
                    # define B #pragma omp simd // all\n#pragma unroll\n";
        let expected = "#define UNROLL \n#define A(n) \\\n   \\\n  f(n);\n\
                        # define B _Pragma(\"omp simd\")\n#pragma unroll\n";
        assert_eq!(rewritten(text).text, expected);
    }

    #[test]
    fn ptx_in_a_macro_keeps_its_lines() {
        let text =
            "#define W(n) asm(\"cp.async.wait_group %0;\\n\" \\\n  :: \"n\"(n)); \\\n f()\nW(1);";
        let got = rewritten(text).text;
        assert!(got.contains("while (0)\\\n; \\\n f()\nW(1);"), "{got}");
        assert_eq!(got.matches('\n').count(), text.matches('\n').count());
        // Part of the text comes from the macro.
        let part = rewritten("asm(\"add.\" type \" %0, %1, 1;\" : \"=r\"(x) : \"r\"(y));").text;
        assert_eq!(part, "::emu::inline_ptx(\"add.\", x, y);");
    }

    #[test]
    fn operands_of_ptx_may_have_names() {
        let got =
            rewritten("asm(\"mov.b32 %[to], %[from];\" : [to] \"=r\"(x) : [from] \"r\"(y));").text;
        assert!(
            got.contains(
                "::emu::ptx::put(emu_o0, ::emu::ptx::as<uint32_t>(emu_o1)); } while (0)\n"
            ),
            "{got}"
        );
    }

    #[test]
    fn includes_are_asked_for() {
        let mut asked = Vec::new();
        let mut include = |name: &str, angled: bool, macros: &mut Macros| {
            asked.push((name.to_owned(), angled));
            macros.read("#define IN_A 1");
            Ok((name == "a.h").then(|| "b.h".to_owned()))
        };
        let text = "#include \"a.h\" // x\n# include <c.h>\n\
                    __global__ void k(int n\n#ifdef IN_A\n, int m\n#endif\n) {}\n";
        let got = rewrite(text, &mut Macros::default(), &mut include).unwrap();
        assert!(got.text.starts_with("#include \"b.h\"\n# include <c.h>\n"), "{}", got.text);
        assert_eq!(got.kernels[0].parameters.len(), 2);
        assert_eq!(asked, [("a.h".to_owned(), false), ("c.h".to_owned(), true)]);
    }
}

//! The mutants of a file, from its syntax tree.

use std::ops::Range;

use tree_sitter::Node;

use crate::syntax::{callee, children, declared_name, is_constant, operator, parse};
use crate::{Edit, Error, Mutant, Operator};

/// Where the headers of single instructions lie: a function there is a call of the emulator beside a line
/// of assembler, with nothing in it for the operators that break algorithms.
pub const INSTRUCTIONS: &str = "shared/cuda/lab/ptx/";

/// Every mutant of a file's text, in the order of the text. Only the bodies of functions are
/// touched; never comments, strings, the preprocessor's lines, or code that the emulator does not
/// compile. In headers of instructions also calls and numbers, and constants outside of functions.
///
/// # Errors
/// The grammar cannot be loaded.
pub fn mutants(file: &str, text: &str) -> Result<Vec<Mutant>, Error> {
    let tree = parse(text)?;
    let instructions = file.starts_with(INSTRUCTIONS);
    let mut generator = Generator { file, text, instructions, function: None, found: Vec::new() };
    generator.visit(tree.root_node());
    let mut found = generator.found;
    found.sort_by_key(|m| (m.edit.range.start, m.operator, m.edit.range.end));
    let mut all: Vec<Mutant> = Vec::new();
    for mutant in found {
        if mutant.edit.original != mutant.edit.replacement
            && all.iter().all(|m| m.edit != mutant.edit)
        {
            all.push(mutant);
        }
    }
    Ok(all)
}

struct Generator<'a> {
    file: &'a str,
    text: &'a str,
    instructions: bool,
    function: Option<String>,
    found: Vec<Mutant>,
}

impl<'a> Generator<'a> {
    fn text(&self, node: Node<'_>) -> &'a str {
        &self.text[node.byte_range()]
    }

    fn replace(&mut self, operator: Operator, node: Node<'_>, by: impl Into<String>) {
        self.replace_range(operator, node.byte_range(), by.into());
    }

    fn replace_range(&mut self, operator: Operator, range: Range<usize>, by: String) {
        let Some(function) = self.function.clone() else { return };
        let edit = Edit::new(self.file, self.text, range, by);
        let (line, column) = edit.place(self.text);
        self.found.push(Mutant { operator, edit, line, column, function });
    }

    fn visit(&mut self, node: Node<'_>) {
        match node.kind() {
            "function_definition" => return self.function(node),
            "preproc_ifdef" => return self.conditional_lines(node),
            "static_assert_declaration" => return,
            "expression_statement" => self.statement(node),
            "declaration" if self.function.is_none() => return self.constant(node),
            "declaration" => self.declaration(node),
            "if_statement" => self.if_statement(node),
            "for_statement" => self.for_statement(node),
            "while_statement" | "do_statement" => {
                let body = node.child_by_field_name("body");
                if self.instructions && body.is_some_and(|b| children(b).is_empty()) {
                    self.replace(Operator::Barrier, node, ";");
                }
                if let Some(condition) = node.child_by_field_name("condition") {
                    self.condition(condition);
                }
            }
            "conditional_expression" => self.ternary(node),
            "call_expression" if self.instructions => self.arguments(node),
            "number_literal" if self.instructions => self.number(node),
            "subscript_expression" => self.subscript(node),
            "binary_expression" => self.product(node),
            _ => {}
        }
        children(node).into_iter().for_each(|c| self.visit(c));
    }

    fn function(&mut self, node: Node<'_>) {
        let declarator = node.child_by_field_name("declarator");
        let (Some(declarator), Some(body)) = (declarator, node.child_by_field_name("body")) else {
            return;
        };
        let outer = self.function.take();
        self.function = declared_name(declarator, self.text);
        if self.text[node.start_byte()..declarator.start_byte()].contains("__global__") {
            self.replace(Operator::EmptyKernel, body, "{}");
        }
        self.visit(body);
        self.function = outer;
    }

    /// `constexpr unsigned type = sizeof(T) == 4 ? TF32 : F16;` outside of any function.
    fn constant(&mut self, node: Node<'_>) {
        let declarator = node.child_by_field_name("declarator");
        if self.instructions {
            self.function = declarator.and_then(|d| declared_name(d, self.text));
        }
        children(node).into_iter().for_each(|c| self.visit(c));
        self.function = None;
    }

    /// The emulator compiles with LAB_EMULATOR defined: the other branch is for GPUs.
    fn conditional_lines(&mut self, node: Node<'_>) {
        let name = node.child_by_field_name("name").map(|n| self.text(n));
        let alternative = node.child_by_field_name("alternative");
        let here = self.text(node).starts_with("#ifdef");
        for child in children(node) {
            let otherwise = alternative.is_some_and(|a| a.id() == child.id());
            if name != Some("LAB_EMULATOR") || here != otherwise {
                self.visit(child);
            }
        }
    }

    fn statement(&mut self, node: Node<'_>) {
        let Some(inner) = children(node).into_iter().next() else { return };
        match inner.kind() {
            "call_expression" => match callee(inner, self.text) {
                Some(
                    "sync" | "wait" | "arrive_and_wait" | "async_wait" | "__pipeline_wait_prior",
                ) => {
                    self.replace(Operator::Barrier, node, ";");
                }
                Some(n) if n.starts_with("__sync") => self.replace(Operator::Barrier, node, ";"),
                Some(n) if n.starts_with("__threadfence") => {
                    self.replace(Operator::Fence, node, ";");
                }
                _ if self.instructions => self.replace(Operator::Instruction, node, ";"),
                _ => {}
            },
            "assignment_expression" if operator(inner) == "=" => {
                let value = inner.child_by_field_name("right");
                if value.is_some_and(is_constant) {
                    self.replace(Operator::Initialisation, node, ";");
                }
            }
            _ => {}
        }
    }

    fn declaration(&mut self, node: Node<'_>) {
        let parts = children(node);
        let fixed = parts.iter().any(|p| {
            let text = self.text(*p);
            p.kind() == "type_qualifier" && (text == "const" || text == "constexpr")
                || p.kind() == "placeholder_type_specifier"
        });
        // A loop's own counter is no accumulator.
        if fixed || node.parent().is_some_and(|p| p.kind() == "for_statement") {
            return;
        }
        for part in parts.into_iter().filter(|p| p.kind() == "init_declarator") {
            let name = part.child_by_field_name("declarator");
            let value = part.child_by_field_name("value");
            if let (Some(name), Some(value)) = (name, value)
                && is_constant(value)
            {
                self.replace(Operator::Initialisation, part, self.text(name));
            }
        }
    }

    fn if_statement(&mut self, node: Node<'_>) {
        let condition = node.child_by_field_name("condition");
        let (Some(condition), Some(then)) = (condition, node.child_by_field_name("consequence"))
        else {
            return;
        };
        if self.text[node.start_byte()..condition.start_byte()].contains("constexpr") {
            return;
        }
        self.condition(condition);
        if is_jump(then) {
            self.replace(Operator::Guard, node, ";")
        } else {
            self.replace(Operator::Guard, node, self.text(then))
        }
    }

    fn for_statement(&mut self, node: Node<'_>) {
        let update = node.child_by_field_name("update");
        let advance =
            update.filter(|u| u.kind() == "assignment_expression" && operator(*u) == "+=");
        let by = advance.and_then(|u| u.child_by_field_name("right"));
        if let (Some(advance), Some(by)) = (advance, by)
            && let Some(left) = advance.child_by_field_name("left")
        {
            let twice = format!("{} += 2 * {}", self.text(left), in_brackets(by, self.text(by)));
            self.replace(Operator::Stride, advance, twice);
        }
        let Some(condition) = node.child_by_field_name("condition") else { return };
        self.condition(condition);
        // Halved from step to step.
        if operator(condition) == ">"
            && let (Some(left), Some(right)) = sides(condition)
            && self.text(right) == "0"
        {
            self.replace(Operator::LastStep, condition, format!("{} > 1", self.text(left)));
        }
        let step = match update {
            Some(u) if u.kind() == "update_expression" && self.text(u).contains("++") => "1",
            _ => by.map_or("", |b| self.text(b)),
        };
        if !step.is_empty()
            && condition.kind() == "binary_expression"
            && operator(condition) == "<"
            && let (Some(left), Some(right)) = sides(condition)
        {
            let early = format!("{} + {step} < {}", self.text(left), self.text(right));
            self.replace(Operator::LastStep, condition, early);
        }
    }

    fn ternary(&mut self, node: Node<'_>) {
        let condition = node.child_by_field_name("condition");
        let (Some(condition), Some(then)) = (condition, node.child_by_field_name("consequence"))
        else {
            return;
        };
        self.condition(condition);
        self.replace(Operator::Guard, node, in_brackets(then, self.text(then)));
        if let Some(otherwise) = node.child_by_field_name("alternative")
            && self.instructions
        {
            self.replace(Operator::Guard, node, in_brackets(otherwise, self.text(otherwise)));
        }
    }

    /// Of a call, each argument: a flag turned, another scope, or one more; and neighbours that trade
    /// places.
    fn arguments(&mut self, call: Node<'_>) {
        let function = call.child_by_field_name("function");
        let list = call.child_by_field_name("arguments");
        let (Some(function), Some(list)) = (function, list) else { return };
        if self.text(function).contains("_cast<") {
            return;
        }
        let arguments = children(list);
        for pair in arguments.windows(2) {
            let both = pair[0].start_byte()..pair[1].end_byte();
            let swapped = format!("{}, {}", self.text(pair[1]), self.text(pair[0]));
            self.replace_range(Operator::Argument, both, swapped);
        }
        for argument in arguments {
            let text = self.text(argument);
            let other = match text {
                "true" => "false".into(),
                "false" => "true".into(),
                "EMU_SCOPE_BLOCK" => "EMU_SCOPE_CLUSTER".into(),
                "EMU_SCOPE_CLUSTER" => "EMU_SCOPE_BLOCK".into(),
                "nullptr" => continue,
                _ => format!("{} + 1", in_brackets(argument, text)),
            };
            self.replace(Operator::Argument, argument, other);
        }
    }

    /// A number that is reckoned with.
    fn number(&mut self, node: Node<'_>) {
        let around = ["binary_expression", "conditional_expression"];
        if node.parent().is_some_and(|p| around.contains(&p.kind())) {
            self.replace(Operator::Number, node, format!("({} + 1)", self.text(node)));
        }
    }

    /// Comparisons of a condition, and the parts that `&&` joins.
    fn condition(&mut self, node: Node<'_>) {
        if node.kind() == "binary_expression" {
            let (Some(left), Some(right)) = sides(node) else { return };
            let (a, b) = (self.text(left), self.text(right));
            match operator(node) {
                "<" => return self.replace(Operator::OffByOne, node, format!("{a} <= {b}")),
                ">=" => return self.replace(Operator::OffByOne, node, format!("{a} > {b}")),
                "&&" => {
                    self.replace(Operator::Guard, node, b);
                    self.replace(Operator::Guard, node, a);
                }
                "||" => {}
                _ => return,
            }
        }
        let through = [
            "binary_expression",
            "condition_clause",
            "parenthesized_expression",
            "unary_expression",
        ];
        if through.contains(&node.kind()) {
            children(node).into_iter().for_each(|c| self.condition(c));
        }
    }

    /// `a[i][j]`.
    fn subscript(&mut self, node: Node<'_>) {
        let argument = node.child_by_field_name("argument");
        let Some(inner) = argument.filter(|a| a.kind() == "subscript_expression") else { return };
        let whole = inner.child_by_field_name("argument");
        let indices = |n: Node<'_>| n.child_by_field_name("indices").map(|i| self.text(i));
        if let (Some(whole), Some(i), Some(j)) = (whole, indices(inner), indices(node)) {
            self.replace(Operator::SwapIndices, node, format!("{}{j}{i}", self.text(whole)));
        }
    }

    /// `r * columns + c`: what an index is multiplied by before another is added.
    fn product(&mut self, node: Node<'_>) {
        let sum = node.parent().filter(|p| p.kind() == "binary_expression" && operator(*p) == "+");
        let (Some(left), Some(right)) = sides(node) else { return };
        let by = self.text(right);
        let stride = right.kind() == "identifier" || by.contains("Dim.");
        if operator(node) == "*" && sum.is_some() && stride {
            self.replace(Operator::Stride, node, format!("{} * ({by} + 1)", self.text(left)));
        }
    }
}

fn sides<'t>(node: Node<'t>) -> (Option<Node<'t>>, Option<Node<'t>>) {
    (node.child_by_field_name("left"), node.child_by_field_name("right"))
}

/// An expression's text, so that it stays whole beside an operator.
fn in_brackets(node: Node<'_>, text: &str) -> String {
    let loose = ["binary_expression", "conditional_expression", "assignment_expression"];
    if loose.contains(&node.kind()) { format!("({text})") } else { text.to_owned() }
}

/// `return;`, `continue;`, `{ break; }`.
fn is_jump(node: Node<'_>) -> bool {
    match node.kind() {
        "return_statement" | "continue_statement" | "break_statement" => true,
        "compound_statement" => matches!(children(node)[..], [only] if is_jump(only)),
        _ => false,
    }
}

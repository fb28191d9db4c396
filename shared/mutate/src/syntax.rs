//! The syntax tree of a kernel file, and questions about its nodes.

use tree_sitter::{Node, Parser, Tree};

use crate::Error;

/// Parses CUDA C++. Byte offsets are those of `text`.
///
/// # Errors
/// The grammar and the parser do not fit together.
pub(crate) fn parse(text: &str) -> Result<Tree, Error> {
    // The grammar takes a pragma between a loop and its body for the body. Bytes stay in place.
    let blank = |line: &str| {
        if line.trim_start().starts_with("#pragma") {
            line.bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }).collect()
        } else {
            line.to_owned()
        }
    };
    let clean: String = text.split_inclusive('\n').map(blank).collect();
    let refuse = |message: String| Error::File { path: "the CUDA grammar".into(), message };
    let mut parser = Parser::new();
    parser.set_language(&tree_sitter_cuda::LANGUAGE.into()).map_err(|e| refuse(e.to_string()))?;
    parser.parse(clean, None).ok_or_else(|| refuse("the parser gave up".into()))
}

/// The children that are syntax, not punctuation or comments.
pub(crate) fn children<'a>(node: Node<'a>) -> Vec<Node<'a>> {
    let mut cursor = node.walk();
    node.named_children(&mut cursor).filter(|n| n.kind() != "comment").collect()
}

/// The operator of a binary or assignment expression.
pub(crate) fn operator<'a>(node: Node<'a>) -> &'a str {
    node.child_by_field_name("operator").map_or("", |n| n.kind())
}

/// Whether its value is known without looking at any variable: `0`, `-1.0f`, `M(0)`, `{0, 0}`,
/// `lowest<M>()`.
pub(crate) fn is_constant(node: Node<'_>) -> bool {
    let all = |n: Node<'_>| children(n).into_iter().all(is_constant);
    match node.kind() {
        "number_literal" | "char_literal" | "true" | "false" | "null" => true,
        "unary_expression" | "parenthesized_expression" => {
            operator(node) != "&" && operator(node) != "*" && all(node)
        }
        "initializer_list" => all(node),
        "argument_list" => !children(node).is_empty() && all(node),
        "compound_literal_expression" => node.child_by_field_name("value").is_some_and(all),
        "call_expression" => {
            let function = node.child_by_field_name("function");
            let arguments = node.child_by_field_name("arguments");
            let (Some(function), Some(arguments)) = (function, arguments) else { return false };
            let none = children(arguments).is_empty();
            all(arguments) && (!none || function.kind() == "template_function")
        }
        _ => false,
    }
}

/// The name that a declarator declares.
pub(crate) fn declared_name(node: Node<'_>, text: &str) -> Option<String> {
    let mut at = node;
    while let Some(inner) = at.child_by_field_name("declarator") {
        at = inner;
    }
    if at.kind() == "reference_declarator" {
        at = children(at).into_iter().next()?;
        return declared_name(at, text);
    }
    Some(text[at.byte_range()].to_owned())
}

/// The name of what is called, without template arguments: `__syncthreads`, `sync` of `grid.sync`.
pub(crate) fn callee<'a>(call: Node<'_>, text: &'a str) -> Option<&'a str> {
    let mut at = call.child_by_field_name("function")?;
    loop {
        let inner = at.child_by_field_name("field").or_else(|| at.child_by_field_name("name"));
        match inner {
            Some(inner) => at = inner,
            None => return Some(&text[at.byte_range()]),
        }
    }
}

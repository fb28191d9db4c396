//! The names of a kernel's parameters, as its source has them.
//!
//! C++ does not tell a program how a function's parameters are called, and PTX does not keep it. So
//! the text is read: what stands between the parentheses of each `__global__` function. The export
//! table holds the number of names against the number of parameters, so a signature that is read
//! wrongly does not compile.

use std::collections::BTreeMap;

/// From the name of each kernel to those of its parameters, in order.
pub(crate) type Kernels = BTreeMap<String, Vec<String>>;

/// The kernel that an instantiation is of: `saxpy` of `lab::saxpy<float>`.
pub(crate) fn kernel_of(instantiation: &str) -> &str {
    let template = instantiation.split('<').next().unwrap_or(instantiation).trim();
    template.rsplit("::").next().unwrap_or(template)
}

/// Of every kernel that the text defines by a signature of its own; one that a macro makes is not
/// found.
pub(crate) fn parameter_names(text: &str) -> Kernels {
    let text = without_comments(text);
    let mut kernels = Kernels::new();
    for (at, keyword) in text.match_indices("__global__") {
        if let Some((kernel, parameters)) = signature(&text[at + keyword.len()..]) {
            let names = parameters.into_iter().map(|p| last_identifier(p).to_owned());
            kernels.insert(kernel.to_owned(), names.collect());
        }
    }
    kernels
}

/// The name and the parameters of the function that a text begins with. Attributes before the name
/// have parentheses too.
fn signature(text: &str) -> Option<(&str, Vec<&str>)> {
    let mut rest = text;
    loop {
        let open = rest.find(['(', ';', '{']).filter(|&at| rest.as_bytes()[at] == b'(')?;
        let close = open + closing(&rest[open..])?;
        let name = last_identifier(&rest[..open]);
        match name {
            "__launch_bounds__" | "__cluster_dims__" | "__align__" | "__attribute__" | "" => {
                rest = &rest[close + 1..];
            }
            _ => return Some((name, split(&rest[open + 1..close]))),
        }
    }
}

/// Where the parenthesis that a text begins with is closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(at, c)| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        (depth == 0).then_some(at)
    })
}

/// At the commas that stand in no brackets.
fn split(parameters: &str) -> Vec<&str> {
    let (mut all, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in parameters.char_indices() {
        match c {
            '(' | '<' | '[' | '{' => depth += 1,
            ')' | '>' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                all.push(&parameters[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    all.push(&parameters[start..]);
    all.retain(|p| !p.trim().is_empty() && p.trim() != "void");
    all
}

fn last_identifier(text: &str) -> &str {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let text = text.split('=').next().unwrap_or(text).trim_end();
    &text[text.rfind(|c| !is_part(c)).map_or(0, |at| at + 1)..]
}

fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        kept.push_str(&rest[..at]);
        let (end, skipped) = if rest[at..].starts_with("//") { ("\n", 0) } else { ("*/", 2) };
        rest = rest[at..].find(end).map_or("", |end| &rest[at + end + skipped..]);
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_behind_attributes_types_and_comments() {
        let text = "
            // __global__ void commented(int not_this);
            template <class T, int N>
            __global__ void __launch_bounds__(WI * WJ, (N + 1))
                first(const T* __restrict__ x, Pair<int, float> pair, /* of all */ T (*f)[4],
                      const __grid_constant__ Sizes sizes, float eps = 1e-6f) {}
            extern \"C\" __global__ void second() { call(1, 2); }
            __global__ void third(void);";
        let found = parameter_names(text);
        assert_eq!(found["second"], [""; 0]);
        assert_eq!(found["third"], [""; 0]);
        assert_eq!(found.len(), 3);
        let [x, pair, _, sizes, eps] = &found["first"][..] else { panic!("{found:?}") };
        assert_eq!([x, pair, sizes, eps], ["x", "pair", "sizes", "eps"]);
    }

    #[test]
    fn an_instantiation_names_its_kernel() {
        assert_eq!(kernel_of("saxpy<float, 4>"), "saxpy");
        assert_eq!(kernel_of("lab::tiles<lab::Tile<4>>"), "tiles");
        assert_eq!(kernel_of("plain"), "plain");
    }
}

//! The names of a kernel's parameters, and of its template's, as its source has them.
//!
//! C++ does not tell a program how a function's parameters are called, and PTX does not keep it. So
//! the text is read: what stands between the parentheses of each `__global__` function, and between
//! the angle brackets before it. The export table holds the number of names against the number of
//! parameters, so a signature that is read wrongly does not compile.

use std::collections::BTreeMap;

/// What the source says of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// Its parameters, in order.
    pub(crate) parameters: Vec<String>,
    /// Those of its template.
    pub(crate) template: Vec<String>,
    /// `template <…>`; empty where it is none.
    pub(crate) head: String,
    /// The threads that `__launch_bounds__` says a block has; empty where there is none.
    pub(crate) threads: String,
    /// Whether a constant `NAME_shared` says how many bytes of dynamic shared memory it has.
    pub(crate) has_shared: bool,
}

impl Kernel {
    /// C++ that defines a constant with the threads of a block as `threads_name`, and the expression
    /// of the bytes of an instantiation's dynamic shared memory.
    pub(crate) fn block(&self, name: &str, instantiation: &str) -> Option<[String; 3]> {
        if self.threads.is_empty() {
            return None;
        }
        let end = instantiation.find('<').unwrap_or(instantiation.len());
        let (path, arguments) = instantiation.split_at(end);
        let constant = format!("lab_threads_of_{name}");
        let definition = format!("{} constexpr int {constant} = {};", self.head, self.threads);
        let shared = if self.has_shared {
            format!("{}_shared{arguments}", path.trim_end())
        } else {
            "0".into()
        };
        Some([definition, format!("{constant}{arguments}"), shared])
    }
}

/// By name.
pub(crate) type Kernels = BTreeMap<String, Kernel>;

/// The kernel that an instantiation is of: `saxpy` of `lab::saxpy<float>`.
pub(crate) fn kernel_of(instantiation: &str) -> &str {
    let template = instantiation.split('<').next().unwrap_or(instantiation).trim();
    template.rsplit("::").next().unwrap_or(template)
}

/// Every kernel that the text defines by a signature of its own; one that a macro makes is not
/// found.
pub(crate) fn kernels(text: &str) -> Kernels {
    let text = without_comments(text);
    let mut kernels = Kernels::new();
    for (at, keyword) in text.match_indices("__global__") {
        let Some(found) = signature(&text[at + keyword.len()..]) else { continue };
        let owned =
            |all: &[&str]| all.iter().map(|p| last_identifier(p).to_owned()).collect::<Vec<_>>();
        let head = template_head(&text[..at]);
        let kernel = Kernel {
            parameters: owned(&found.parameters),
            template: head.and_then(|h| h.split_once('<')).map_or(Vec::new(), |(_, inside)| {
                owned(&split(inside.strip_suffix('>').unwrap_or(inside)))
            }),
            head: head.unwrap_or("").split_whitespace().collect::<Vec<_>>().join(" "),
            threads: found.threads.unwrap_or("").trim().to_owned(),
            has_shared: text.contains(&format!(" {}_shared =", found.name)),
        };
        kernels.insert(found.name.to_owned(), kernel);
    }
    kernels
}

/// `template <…>`, if a text ends with it.
fn template_head(text: &str) -> Option<&str> {
    let text = text.trim_end();
    text.strip_suffix('>').and_then(|rest| rest.rfind("template")).map(|at| &text[at..])
}

/// A function's name, the parameters that it declares, and the first number of its launch bounds.
struct Signature<'a> {
    name: &'a str,
    parameters: Vec<&'a str>,
    threads: Option<&'a str>,
}

/// Of the function that a text begins with. Attributes before the name have parentheses too.
fn signature(text: &str) -> Option<Signature<'_>> {
    let (mut rest, mut threads) = (text, None);
    loop {
        let open = rest.find(['(', ';', '{']).filter(|&at| rest.as_bytes()[at] == b'(')?;
        let close = open + position_of_closing(&rest[open..])?;
        let inside = split(&rest[open + 1..close]);
        match last_identifier(&rest[..open]) {
            "__launch_bounds__" => threads = inside.first().copied(),
            "__cluster_dims__" | "__align__" | "__attribute__" | "" => {}
            name => return Some(Signature { name, parameters: inside, threads }),
        }
        rest = &rest[close + 1..];
    }
}

/// Where the parenthesis that a text begins with is closed.
fn position_of_closing(text: &str) -> Option<usize> {
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
    let begins = |text: &str, at: usize| text[at + 1..].starts_with(['/', '*']);
    while let Some((at, _)) = rest.match_indices('/').find(|&(at, _)| begins(rest, at)) {
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
            template <class T, int N> constexpr int first_shared = sizeof(T) * N;
            template <class T, int N = 4>
            __global__ void __launch_bounds__(WI * WJ, (N + 1))
                first(const T* __restrict__ x, Pair<int, float> pair, /* of all */ T (*f)[4],
                      const __grid_constant__ Sizes sizes, float eps = 1e-6f) {}
            extern \"C\" __global__ void second() { call(1, 2); }
            __global__ void third(void);";
        let found = kernels(text);
        assert_eq!(found["second"], Kernel::default());
        assert_eq!(found["third"], Kernel::default());
        assert_eq!(found.len(), 3);
        let first = &found["first"];
        let [x, pair, _, sizes, eps] = &first.parameters[..] else { panic!("{found:?}") };
        assert_eq!([x, pair, sizes, eps], ["x", "pair", "sizes", "eps"]);
        assert_eq!(first.template, ["T", "N"]);
        let [definition, threads, shared] = first.block("first", "lab::first<float, 8>").unwrap();
        let said = "template <class T, int N = 4> constexpr int lab_threads_of_first = WI * WJ;";
        assert_eq!(definition, said);
        assert_eq!(threads, "lab_threads_of_first<float, 8>");
        assert_eq!(shared, "lab::first_shared<float, 8>");
        assert_eq!(found["second"].block("second", "second"), None);
    }

    #[test]
    fn an_instantiation_names_its_kernel() {
        assert_eq!(kernel_of("saxpy<float, 4>"), "saxpy");
        assert_eq!(kernel_of("lab::tiles<lab::Tile<4>>"), "tiles");
        assert_eq!(kernel_of("plain"), "plain");
    }
}

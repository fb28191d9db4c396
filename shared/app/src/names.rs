//! Names of kernels as compilers write them, and as people do.

use cpp_demangle::{DemangleOptions, Symbol};

/// At most so much of a name stands in a report: those of some libraries fill a page.
const LONGEST: usize = 120;

/// `void ns::k<float>(float*, int)` of a mangled name; none of other names.
fn demangled(name: &str) -> Option<String> {
    // What begins otherwise may still be read as a type: `f` as `float`.
    name.strip_prefix("_Z")?;
    let symbol = Symbol::new(name).ok()?;
    symbol.demangle_with_options(&DemangleOptions::new()).ok().filter(|text| text != name)
}

/// Parts of a text at a sign, where no bracket is open. `->` and `operator<` are none of a kernel's name.
fn split(text: &str, sign: char) -> Vec<&str> {
    let (mut depth, mut from, mut all) = (0i32, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if c == sign && depth == 0 {
            all.push(&text[from..at]);
            from = at + c.len_utf8();
        }
    }
    all.push(&text[from..]);
    all
}

/// Name with its template's arguments, and the parameters between parentheses.
fn parts(demangled: &str) -> (&str, &str) {
    let mut depth = 0i32;
    let open = demangled.char_indices().find(|&(at, c)| {
        match c {
            '<' | '[' | '{' => depth += 1,
            '>' | ']' | '}' => depth -= 1,
            '(' if depth == 0 => return !demangled[at..].starts_with("(anonymous"),
            _ => {}
        }
        false
    });
    let Some((open, _)) = open else { return (demangled, "") };
    let head = &demangled[..open];
    let behind = &demangled[open + 1..];
    let name = split(head, ' ').into_iter().rfind(|part| !part.is_empty()).unwrap_or(head);
    // `(anonymous namespace)::k` is one word.
    let name = match head.find("(anonymous namespace)") {
        Some(at) => head[at..].trim(),
        None => name,
    };
    (name, behind.rsplit_once(')').map_or(behind, |(inner, _)| inner))
}

/// `ns::k<float>`, however long.
pub(crate) fn source_name(name: &str) -> String {
    demangled(name).map_or_else(|| name.to_owned(), |demangled| parts(&demangled).0.to_owned())
}

/// The same, as a report has it.
pub(crate) fn short_name(name: &str) -> String {
    let own = source_name(name);
    match own.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &own[..end]),
        None => own,
    }
}

/// `k` of `ns::k<float>`: what a kernel is called without its scope and its template's arguments.
pub(crate) fn base_name(name: &str) -> String {
    let Some(demangled) = demangled(name) else { return name.to_owned() };
    let own = parts(&demangled).0;
    let own = own.split('<').next().unwrap_or(own);
    own.rsplit("::").next().unwrap_or(own).to_owned()
}

/// What each parameter points to, where it is a pointer to numbers.
pub(crate) fn pointer_types(name: &str) -> Vec<Option<String>> {
    const NUMBERS: [(&str, &str); 14] = [
        ("float", "float"),
        ("double", "double"),
        ("int", "int"),
        ("unsigned int", "unsigned"),
        ("short", "short"),
        ("unsigned short", "unsigned short"),
        ("signed char", "signed char"),
        ("unsigned char", "unsigned char"),
        ("char", "char"),
        ("long", "long"),
        ("unsigned long", "unsigned long"),
        ("long long", "long long"),
        ("unsigned long long", "unsigned long long"),
        ("bool", "bool"),
    ];
    let Some(demangled) = demangled(name) else { return Vec::new() };
    let pointee = |parameter: &str| {
        let pointee = parameter.trim().strip_suffix('*')?.trim_end();
        let pointee = pointee.strip_suffix(" const").unwrap_or(pointee);
        let known = NUMBERS.iter().find(|(name, _)| *name == pointee)?;
        Some(known.1.to_owned())
    };
    split(parts(&demangled).1, ',').into_iter().map(pointee).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_people_write_them() {
        for (mangled, short, base) in [
            ("_Z3addPKfS0_Pfi", "add", "add"),
            ("add", "add", "add"),
            // Mangled, this is a type.
            ("f", "f", "f"),
            ("_ZN2ns3addIfLi4EEEvPT_", "ns::add<float, 4>", "add"),
            ("_ZN12_GLOBAL__N_13addEPf", "(anonymous namespace)::add", "add"),
        ] {
            assert_eq!((short_name(mangled).as_str(), base_name(mangled).as_str()), (short, base));
        }
    }

    #[test]
    fn what_parameters_point_to() {
        let of = |name: &str| -> Vec<String> {
            pointer_types(name).into_iter().map(Option::unwrap_or_default).collect()
        };
        assert_eq!(of("_Z3addPKfS0_Pfi"), ["float", "float", "float", ""]);
        assert_eq!(of("_ZN2ns3addIfLi4EEEvPT_"), ["float"]);
        assert!(of("add").is_empty());
    }
}

//! Reads `include/contract.def`, which the C++ side expands, into `$OUT_DIR/contract.rs`: a macro for
//! each kind of line, which hands all its lines to the macro that it is given (see `src/abi.rs`).

use std::fmt::Write as _;
use std::path::Path;

const TABLE: &str = "include/contract.def";

/// `EMU_KIND(arguments)`.
struct Line {
    kind: String,
    arguments: Vec<String>,
}

fn main() {
    println!("cargo::rerun-if-changed={TABLE}");
    let text = std::fs::read_to_string(TABLE).unwrap_or_else(|e| panic!("{TABLE}: {e}"));
    let lines = read_lines(&text);
    let mut rust = String::new();
    for (kind, name) in [
        ("HOOK", "for_all_hooks"),
        ("COORDINATE", "for_all_coordinates"),
        ("BARRIER", "for_all_barriers"),
        ("COLLECTIVE", "for_all_collectives"),
        ("VALUE", "for_all_values"),
    ] {
        // Probes are hooks of another kind: all of the runtime's functions stand in one list.
        let is_wanted = |line: &&Line| line.kind == kind || kind == "HOOK" && line.kind == "PROBE";
        let entries: String = lines.iter().filter(is_wanted).map(entry).collect();
        writeln!(
            rust,
            "macro_rules! {name} {{ ($callback:ident) => {{ $callback! {{\n{entries}}} }}; }}"
        )
        .expect("writing to a string");
    }
    writeln!(
        rust,
        "/// Of the table's lines, as glue.cpp computes it.\n\
         pub(crate) const CONTRACT_HASH: u64 = {:#x};",
        fnv1a(&lines.iter().map(line_to_hash).collect::<String>())
    )
    .expect("writing to a string");
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    std::fs::write(Path::new(&out).join("contract.rs"), rust).expect("contract.rs");
}

fn read_lines(text: &str) -> Vec<Line> {
    let code = text.lines().filter(|l| !l.starts_with('#'));
    let code: Vec<&str> = code.map(|l| l.split("//").next().unwrap_or_default()).collect();
    let mut code = &code.join("\n")[..];
    let mut lines = Vec::new();
    while let Some(start) = code.find("EMU_") {
        code = &code[start + "EMU_".len()..];
        let open = code.find('(').unwrap_or_else(|| panic!("{TABLE}: no ( in: {code}"));
        let (arguments, rest) = split_arguments(&code[open + 1..]);
        lines.push(Line { kind: code[..open].to_owned(), arguments });
        code = rest;
    }
    lines
}

/// The arguments up to the parenthesis that closes them, spaces as the preprocessor has them, and
/// what comes after.
fn split_arguments(code: &str) -> (Vec<String>, &str) {
    let (mut depth, mut start, mut arguments) = (0, 0, Vec::new());
    for (at, c) in code.char_indices() {
        match c {
            ',' | ')' if depth == 0 => {
                let words: Vec<&str> = code[start..at].split_whitespace().collect();
                arguments.push(words.join(" "));
                start = at + 1;
                if c == ')' {
                    return (arguments, &code[start..]);
                }
            }
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
    }
    panic!("{TABLE}: no ) in: {code}")
}

/// A line for a Rust macro.
fn entry(line: &Line) -> String {
    let arguments: Vec<&str> = line.arguments.iter().map(String::as_str).collect();
    match (&line.kind[..], &arguments[..]) {
        ("HOOK", [attributes, result, name, parameters, _]) => {
            let result = if *attributes == "EMU_NORETURN" { "!" } else { rust_type(result) };
            format!("    hook fn {name}({}) -> {result};\n", rust_parameters(parameters))
        }
        ("PROBE", [name, parameters]) => {
            format!("    probe fn {name}({}) -> ();\n", rust_parameters(parameters))
        }
        ("COORDINATE", [name]) => format!("    {}\n", camel_case(name)),
        ("BARRIER", [name, cuda_name]) => format!("    {} {cuda_name}\n", camel_case(name)),
        ("COLLECTIVE", [name, cuda_name, operand]) => {
            format!("    {} {cuda_name} {operand}\n", camel_case(name))
        }
        ("VALUE", [c_type, name, value]) => {
            format!("    {name}: {} = {value};\n", rust_type(c_type))
        }
        (kind, _) => panic!("{TABLE}: EMU_{kind} with {} arguments", arguments.len()),
    }
}

/// A line as glue.cpp writes it into what it hashes.
fn line_to_hash(line: &Line) -> String {
    let kept: Vec<&str> = match (&line.kind[..], &line.arguments[..]) {
        ("HOOK", [attributes, result, name, parameters, _]) => {
            vec![attributes, result, name, parameters]
        }
        ("COLLECTIVE", [name, _, operand]) => vec![name, operand],
        ("BARRIER", [name, _]) => vec![name],
        (_, all) => all.iter().map(String::as_str).collect(),
    };
    format!("{} {}\n", line.kind, kept.join(" "))
}

/// `(int kind, const void* from)`.
fn rust_parameters(parameters: &str) -> String {
    let inside = parameters.trim_start_matches('(').trim_end_matches(')');
    let declared = inside.split(',').map(str::trim).filter(|p| !p.is_empty());
    let rust = declared.map(|p| {
        let (c_type, name) = p.rsplit_once(' ').unwrap_or_else(|| panic!("{TABLE}: no name: {p}"));
        format!("{name}: {}", rust_type(c_type))
    });
    rust.collect::<Vec<_>>().join(", ")
}

fn rust_type(c_type: &str) -> &'static str {
    match c_type {
        "void" => "()",
        "int" | "int32_t" => "i32",
        "unsigned" | "uint32_t" => "u32",
        "int64_t" => "i64",
        "uint64_t" => "u64",
        "size_t" => "usize",
        "void*" => "*mut std::ffi::c_void",
        "const void*" => "*const std::ffi::c_void",
        "const char*" => "*const std::ffi::c_char",
        other => panic!("{TABLE}: expected a type that rust_type in build.rs knows, got {other}"),
    }
}

/// `SHUFFLE_UP` to `ShuffleUp`.
fn camel_case(name: &str) -> String {
    let capitalised = |word: &str| word[..1].to_owned() + &word[1..].to_lowercase();
    name.split('_').map(capitalised).collect()
}

fn fnv1a(text: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

//! The kernels of a file, each with a command to begin with.

use std::path::Path;

use lab_app::{Element, Kernel};
use serde_json::json;

use super::Arguments;
use crate::failure::CheckFailure;
use crate::own;
use crate::words::counted;

/// Prints them, each with a command of this name to begin with. Nothing is compiled.
pub fn list(
    json: bool,
    file: &Path,
    arguments: &Arguments,
    verb: &str,
) -> Result<(), CheckFailure> {
    arguments.with_file(file, |read| list_of(json, [file, read], arguments, verb))
}

/// Those of `read`, which is the file itself or what nvcc has made of it.
fn list_of(
    json: bool,
    [file, read]: [&Path; 2],
    arguments: &Arguments,
    verb: &str,
) -> Result<(), CheckFailure> {
    let kernels = lab_app::Program::kernels(&[read.to_owned()], &arguments.reading()?)
        .map_err(|error| CheckFailure::Usage(error.to_string()))?;
    let has_main =
        lab_app::Program::has_main(file).map_err(|e| CheckFailure::Usage(e.to_string()))?;
    let next = has_main.then(|| format!("{} app {}", own::shell(), file.display()));
    if json {
        let kernels = kernels.iter().map(|(path, kernel)| {
            json!({ "file": path, "line": kernel.line, "kernel": signature(kernel),
                    "command": command(verb, file, kernel, arguments).join(" ") })
        });
        say!("{}", json!({ "kernels": kernels.collect::<Vec<_>>(), "next": next }));
        return Ok(());
    }
    for (path, kernel) in &kernels {
        say!("{}:{}: {}", path.display(), kernel.line, signature(kernel));
        say!("{}\n", wrapped(&command(verb, file, kernel, arguments)));
    }
    say!("{} in {}", counted(kernels.len(), "kernel"), file.display());
    if !kernels.is_empty() {
        say!(
            "Sizes and values in these commands are guesses: put your own there. Most launch\n\
             a few threads more than there are elements: a kernel that has no guard for those\n\
             goes out of bounds. All options:\n  {} {verb} --help",
            own::shell()
        );
    }
    if let Some(next) = next {
        say!("The file's whole program, every launch checked:\n  {next}");
    }
    Ok(())
}

/// `sum<T>(const T* x, int n)`
fn signature(kernel: &Kernel) -> String {
    let own: Vec<(&str, &str)> = match &kernel.entry {
        Some(entry) => entry.parameters.iter().map(|p| (&p.ptx[..], &p.name[..])).collect(),
        None => kernel.parameters.iter().map(|(t, name)| (&t[..], &name[..])).collect(),
    };
    let parameters = own.into_iter().map(|(of_type, name)| format!("{of_type} {name}"));
    let template = if kernel.template.is_empty() {
        String::new()
    } else {
        format!("<{}>", kernel.template.join(", "))
    };
    let (scope, name) = (kernel.shown_scope(), kernel.shown_name());
    format!("{scope}{name}{template}({})", parameters.collect::<Vec<_>>().join(", "))
}

/// Lines of at most 80 columns, which a shell takes as one command.
fn wrapped(words: &[String]) -> String {
    let (mut text, mut width) = (String::from("  "), 2);
    for (index, word) in words.iter().enumerate() {
        let len = word.chars().count();
        if index > 0 && width + 1 + len > 78 {
            text += " \\\n     ";
            width = 5;
        }
        if index > 0 {
            text.push(' ');
            width += 1;
        }
        text += word;
        width += len;
    }
    text
}

/// What a parameter takes, as far as its type says.
enum Guess {
    /// Memory of this type, and whether the kernel may write it.
    Memory {
        element: String,
        is_const: bool,
    },
    Whole,
    Expression(String),
}

/// A type without what does not decide about its values, and its stars.
fn bare(of_type: &str) -> (String, usize, bool) {
    let is_const = of_type
        .split(['*', '&'])
        .next()
        .is_some_and(|t| t.split_whitespace().any(|w| w == "const"));
    let spaced = of_type.replace('*', " * ").replace('&', " ");
    let words = spaced.split_whitespace().filter(|w| {
        let not = ["const", "volatile", "__restrict__", "__restrict", "restrict", "*", "struct"];
        !not.contains(w)
    });
    (words.collect::<Vec<_>>().join(" "), of_type.matches(['*', '[']).count(), is_const)
}

fn is_type_parameter(kernel: &Kernel, name: &str) -> bool {
    let at = kernel.template.iter().position(|t| t == name);
    at.is_some_and(|i| matches!(kernel.template_kinds[i].trim(), "class" | "typename"))
}

fn guess(kernel: &Kernel, of_type: &str) -> Guess {
    let (base, stars, is_const) = bare(of_type);
    // Of a module that does not say what a number of 64 bits is, it is mostly an address.
    if base == "::emu::ptx::Word" {
        return Guess::Memory { element: "float".into(), is_const: false };
    }
    let is_any = is_type_parameter(kernel, &base) || base == "void";
    let element = if is_any { "float".to_owned() } else { base.clone() };
    match (stars, Element::of(&element).parts) {
        (0, Some((lab_app::Component::Bool, 1))) => Guess::Expression("true".into()),
        (0, Some((part, 1))) if part.is_float() => Guess::Expression("1.0f".into()),
        (0, Some((_, 1))) => Guess::Whole,
        (0, _) => Guess::Expression(format!("{base}{{}}")),
        (1, _) => Guess::Memory { element, is_const },
        _ => Guess::Expression("nullptr".into()),
    }
}

/// In quotes where a shell would take it apart.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "=:,._-/@+".contains(c);
    if word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// A command that launches the kernel, word by word; an option and its value are one.
fn command(verb: &str, file: &Path, kernel: &Kernel, arguments: &Arguments) -> Vec<String> {
    let facts = &kernel.facts;
    let guesses: Vec<Guess> = kernel.parameters.iter().map(|(t, _)| guess(kernel, t)).collect();
    let wholes: Vec<&str> = kernel
        .parameters
        .iter()
        .zip(&guesses)
        .filter(|(_, g)| matches!(g, Guess::Whole))
        .map(|((_, name), _)| name.as_str())
        .collect();
    // So many elements, about, whatever the rank.
    let size = match wholes.len() {
        0 | 1 => 1000,
        2 => 32,
        3 => 16,
        _ => 8,
    };
    let elements: usize = size.max(1) * wholes.iter().skip(1).map(|_| size).product::<usize>();
    let required = kernel.entry.as_ref().and_then(|entry| entry.required_block);
    let (block, threads) = match (required, facts.block_rank) {
        (Some([x, 1, 1]), _) => (x.to_string(), x as usize),
        (Some([x, y, z]), _) => (format!("{x},{y},{z}"), (x * y * z) as usize),
        (None, 1) => ("256".into(), 256),
        (None, 2) => ("16,16".into(), 256),
        (None, _) => ("8,8,4".into(), 256),
    };
    let blocks = elements.min(1 << 16).div_ceil(threads);
    let grid = match facts.grid_rank {
        1 => blocks.to_string(),
        2 => format!("{0},{0}", blocks.isqrt().max(1)),
        _ => "2,2,2".into(),
    };
    let shape = match &wholes[..] {
        [] => "1000".to_owned(),
        all => all[..all.len().min(4)].join(" * "),
    };
    let mut words = vec![format!("{} {verb}", own::shell()), quoted(&file.display().to_string())];
    let own = [
        ("-I", arguments.include.iter().map(|p| p.display().to_string()).collect()),
        ("-D", arguments.define.clone()),
    ];
    for (option, values) in own {
        words.extend(values.iter().map(|v: &String| format!("{option} {}", quoted(v))));
    }
    // Its kernels have been read by another front than that of these words.
    if kernel.entry.is_some() && file.extension().is_none_or(|ending| ending != "ptx") {
        words.push("--front nvcc".into());
    }
    words.push(format!("--kernel {}", quoted(&instance(kernel, facts.block_rank))));
    words.push(format!("--grid {grid} --block {block}"));
    if facts.dynamic_shared {
        words.push("--shared 16384".into());
    }
    if facts.cooperative {
        words.push("--cooperative".into());
    }
    if facts.cluster {
        words.push("--cluster 2 --arch sm_90".into());
    }
    // Those that a launcher adds are null without an argument.
    let added = kernel.entry.as_ref().map_or(0, |entry| entry.hidden);
    let asked = kernel.parameters.len() - added;
    for (index, ((_, name), guess)) in
        kernel.parameters.iter().zip(&guesses).take(asked).enumerate()
    {
        let only_written = facts.written_only.get(index) == Some(&true) && wholes.len() < 2;
        let value = match guess {
            Guess::Whole => size.to_string(),
            Guess::Expression(text) => text.clone(),
            Guess::Memory { element, is_const } => {
                let parts = Element::of(element).parts;
                let is_float = parts.is_some_and(|(part, _)| part.is_float());
                // Whole numbers may be places: 0 is one everywhere.
                let fill = if is_float { "" } else { "=0" };
                match (is_const, only_written) {
                    (true, _) => format!("in:{element}[{shape}]{fill}"),
                    (false, true) => format!("out:{element}[{shape}]"),
                    (false, false) => format!("inout:{element}[{shape}]{fill}"),
                }
            }
        };
        let is_named = !name.starts_with("emu_unnamed_");
        let text = if is_named { format!("{name}={value}") } else { value };
        words.push(format!("--arg {}", quoted(&text)));
    }
    words
}

/// The kernel with arguments for its template, where its parameters do not decide them.
fn instance(kernel: &Kernel, block_rank: usize) -> String {
    let Kernel { template, template_kinds, parameters, .. } = kernel;
    let (scope, name) = (kernel.shown_scope(), kernel.shown_name());
    let types = parameters.iter().map(|(t, _)| t.as_str()).collect::<Vec<_>>().join(" ");
    let is_deduced = |name: &String| {
        types.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == name)
    };
    // As far as the last that is not deduced.
    let needed = template.iter().rposition(|name| !is_deduced(name)).map_or(0, |i| i + 1);
    let values: Vec<&str> = template
        .iter()
        .zip(template_kinds)
        .take(needed)
        .filter(|(name, _)| !name.ends_with("..."))
        .map(|(_, kind)| match kind.trim() {
            "class" | "typename" => "float",
            "bool" => "true",
            _ if block_rank > 1 => "16",
            _ => "256",
        })
        .collect();
    if values.is_empty() {
        format!("{scope}{name}")
    } else {
        format!("{scope}{name}<{}>", values.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_guessed_by_what_they_say() {
        assert_eq!(bare("const float* __restrict__"), ("float".into(), 1, true));
        assert_eq!(bare("unsigned int"), ("unsigned int".into(), 0, false));
        assert_eq!(bare("float * const"), ("float".into(), 1, false));
        assert_eq!(bare("int [4]"), ("int [4]".into(), 1, false));
    }

    #[test]
    fn a_command_wraps_between_options() {
        let words: Vec<String> =
            ["lab check", "x.cu", &"y".repeat(72), "z"].map(str::to_owned).to_vec();
        assert_eq!(
            wrapped(&words),
            format!("  lab check x.cu \\\n      {} \\\n      z", "y".repeat(72))
        );
    }
}

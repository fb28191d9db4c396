//! `lab new STAGE`: a stage that compiles and passes, to be changed from there.

use std::path::{Path, PathBuf};

use clap::Args;
use lab_device::emulator::write_atomically;
use serde_json::json;

use crate::commands::workspace;
use crate::failure::Failure;
use crate::{Common, STAGES};
use lab_device::emulator::shown;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Its name: lower-case letters, digits and underscores, a letter first
    stage: String,
}

/// What stands for the name in the templates.
const PLACE: &str = "NEW_STAGE";

/// The files of a stage, and what they hold.
const FILES: [(&str, &str); 6] = [
    ("Cargo.toml", include_str!("../../templates/stage/Cargo.toml.in")),
    ("build.rs", include_str!("../../templates/stage/build.rs.in")),
    ("kernels/twice.cu", include_str!("../../templates/stage/kernels/twice.cu.in")),
    ("src/lib.rs", include_str!("../../templates/stage/src/lib.rs.in")),
    ("tests/correctness.rs", include_str!("../../templates/stage/tests/correctness.rs.in")),
    ("README.md", include_str!("../../templates/stage/README.md.in")),
];

/// Finds the line that a new one follows.
type Place = fn(&[&str]) -> Option<usize>;

/// Where a stage is registered: the file, the place in it, and the new line.
const LINES: [(&str, Place, &str); 3] = [
    ("Cargo.toml", last_stage_of_the_workspace, "NEW_STAGE = { path = \"stages/NEW_STAGE\" }"),
    ("shared/registry/Cargo.toml", last_dependency, "NEW_STAGE.workspace = true"),
    ("shared/registry/src/lib.rs", last_stage_of_the_tool, "    &NEW_STAGE::STAGE,"),
];

fn last_stage_of_the_workspace(lines: &[&str]) -> Option<usize> {
    lines.iter().rposition(|l| l.contains("{ path = \"stages/"))
}

fn last_dependency(lines: &[&str]) -> Option<usize> {
    let start = lines.iter().position(|l| *l == "[dependencies]")?;
    lines[start..].iter().position(|l| l.is_empty()).map(|length| start + length - 1)
}

fn last_stage_of_the_tool(lines: &[&str]) -> Option<usize> {
    lines.iter().rposition(|l| l.starts_with("    &") && l.ends_with("::STAGE,"))
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let name = &arguments.stage;
    let root = workspace()?.root;
    check(name, &root)?;
    // All that could be refused comes before anything is written.
    let registered = LINES
        .iter()
        .map(|(file, place, line)| {
            let path = root.join(file);
            let text = read(&path)?;
            let mut lines: Vec<&str> = text.lines().collect();
            let after = place(&lines).ok_or_else(|| {
                Failure::Usage(format!("{file}: expected the stages that there are, got none"))
            })?;
            let line = line.replace(PLACE, name);
            lines.insert(after + 1, &line);
            Ok(Registered { with: lines.join("\n") + "\n", path, before: text })
        })
        .collect::<Result<Vec<_>, Failure>>()?;
    let target = root.join("stages").join(name);
    let made = tempfile::tempdir_in(&root).map_err(|e| Failure::file(&root, e))?;
    for (file, text) in FILES {
        let path = made.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap_or(&root))
            .map_err(|e| Failure::file(&path, e))?;
        std::fs::write(&path, text.replace(PLACE, name)).map_err(|e| Failure::file(&path, e))?;
    }
    place(&target, made.path(), &registered)?;
    if common.json {
        let files = FILES.map(|(file, _)| format!("stages/{name}/{file}"));
        say!("{}", json!({ "stage": name, "files": files, "registered": LINES.map(|l| l.0) }));
    } else {
        say!("stages/{name} is there, and registered in {}.\n", LINES.map(|l| l.0).join(", "));
        say!("  cargo test -p {name}          it passes; keep it so");
        say!("  cargo run -- check {name}     what the emulator says of it\n");
        say!("The kernel is stages/{name}/kernels/twice.cu, its harness src/lib.rs.");
    }
    Ok(())
}

/// A file that names all stages.
struct Registered {
    path: PathBuf,
    before: String,
    with: String,
}

/// Puts a stage where it belongs and registers it; where that fails, all is as it was.
fn place(target: &Path, made: &Path, registered: &[Registered]) -> Result<(), Failure> {
    // As any new directory: the umask narrows it.
    std::fs::create_dir(target).map_err(|e| Failure::file(target, e))?;
    let done = fill(target, made).and_then(|()| register(registered));
    done.inspect_err(|_| {
        // What cannot be undone is no reason to say less of what went wrong.
        let _ = std::fs::remove_dir_all(target);
    })
}

/// Moves the files of a stage to where they belong.
fn fill(target: &Path, made: &Path) -> Result<(), Failure> {
    for (file, _) in FILES {
        let path = target.join(file);
        std::fs::create_dir_all(path.parent().unwrap_or(target))
            .and_then(|()| std::fs::rename(made.join(file), &path))
            .map_err(|e| Failure::file(&path, e))?;
    }
    Ok(())
}

/// Writes all of the files, or leaves all as they were.
fn register(all: &[Registered]) -> Result<(), Failure> {
    for (index, Registered { path, with, .. }) in all.iter().enumerate() {
        if let Err(error) = write_atomically(path, with.as_bytes()) {
            for Registered { path, before, .. } in &all[..index] {
                let _ = write_atomically(path, before.as_bytes());
            }
            return Err(Failure::file(path, error));
        }
    }
    Ok(())
}

/// A crate of this name can be made.
fn check(name: &str, root: &Path) -> Result<(), Failure> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    if !starts || !name.chars().all(plain) || name.len() > 40 {
        let name = shown(name, 60);
        return Err(Failure::Usage(format!(
            "stage: expected at most 40 lower-case letters, digits and underscores, a letter first, \
             got '{name}'"
        )));
    }
    let taken = STAGES.iter().any(|s| s.name == name) || root.join("stages").join(name).exists();
    let packages = read(&root.join("Cargo.lock"))?;
    if taken || packages.lines().any(|l| l == format!("name = \"{name}\"")) {
        return Err(Failure::Usage(format!(
            "stage: expected a name that no stage and no crate here has, got '{name}'"
        )));
    }
    // Strict and reserved keywords of all editions, and the crates that every crate sees.
    const WORDS: [&str; 60] = [
        "abstract",
        "alloc",
        "as",
        "async",
        "await",
        "become",
        "box",
        "break",
        "const",
        "continue",
        "core",
        "crate",
        "do",
        "dyn",
        "else",
        "enum",
        "extern",
        "false",
        "final",
        "fn",
        "for",
        "gen",
        "if",
        "impl",
        "in",
        "let",
        "loop",
        "macro",
        "macro_rules",
        "match",
        "mod",
        "move",
        "mut",
        "override",
        "priv",
        "proc_macro",
        "pub",
        "raw",
        "ref",
        "return",
        "safe",
        "self",
        "static",
        "std",
        "struct",
        "super",
        "test",
        "trait",
        "true",
        "try",
        "type",
        "typeof",
        "union",
        "unsafe",
        "unsized",
        "use",
        "virtual",
        "where",
        "while",
        "yield",
    ];
    if WORDS.contains(&name) {
        return Err(Failure::Usage(format!("stage: expected no word of Rust's, got '{name}'")));
    }
    Ok(())
}

fn read(path: &PathBuf) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|e| Failure::file(path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_registered_is_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let made = root.join("made");
        let prepare = || {
            for (file, text) in FILES {
                let path = made.join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
        };
        let of = |file: &str| Registered {
            path: root.join(file),
            before: "before".into(),
            with: "with".into(),
        };
        let target = root.join("stage");
        std::fs::write(root.join("first"), "before").unwrap();
        prepare();
        let failure = place(&target, &made, &[of("first"), of("no/second")]).unwrap_err();
        assert!(failure.message().contains("no/second: No such file"), "{}", failure.message());
        assert_eq!(std::fs::read_to_string(root.join("first")).unwrap(), "before");
        assert!(!target.exists());

        prepare();
        place(&target, &made, &[of("first")]).unwrap();
        assert_eq!(std::fs::read_to_string(root.join("first")).unwrap(), "with");
        assert!(FILES.iter().all(|(file, _)| target.join(file).is_file()));
        // What is there already is not touched.
        prepare();
        assert!(place(&target, &made, &[of("first")]).is_err());
        assert!(target.join("Cargo.toml").is_file());
    }
}

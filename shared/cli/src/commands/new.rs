//! `lab new STAGE`: a stage that compiles and passes, to be changed from there.

use std::path::{Path, PathBuf};

use clap::Args;
use lab_device::emulator::write_atomically;
use serde_json::json;

use crate::commands::workspace;
use crate::failure::Failure;
use crate::{Common, STAGES};

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
    ("shared/cli/Cargo.toml", last_dependency, "NEW_STAGE.workspace = true"),
    ("shared/cli/src/lib.rs", last_stage_of_the_tool, "    &NEW_STAGE::STAGE,"),
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
            Ok((lines.join("\n") + "\n", path))
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
    let made = made.keep();
    std::fs::rename(&made, &target).map_err(|e| Failure::file(&target, e))?;
    for (text, path) in registered {
        write_atomically(&path, text.as_bytes()).map_err(|e| Failure::file(&path, e))?;
    }
    if common.json {
        let files = FILES.map(|(file, _)| format!("stages/{name}/{file}"));
        println!("{}", json!({ "stage": name, "files": files, "registered": LINES.map(|l| l.0) }));
    } else {
        println!("stages/{name} is there, and registered in {}.\n", LINES.map(|l| l.0).join(", "));
        println!("  cargo test -p {name}                    it passes; keep it so");
        println!("  cargo run -- check {name}     what the emulator says of it\n");
        println!("The kernel is stages/{name}/kernels/twice.cu, its harness src/lib.rs.");
    }
    Ok(())
}

/// A crate of this name can be made.
fn check(name: &str, root: &Path) -> Result<(), Failure> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    if !starts || !name.chars().all(plain) || name.len() > 40 {
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
    const WORDS: [&str; 12] = [
        "as", "async", "await", "crate", "dyn", "fn", "impl", "loop", "match", "mod", "move",
        "test",
    ];
    if WORDS.contains(&name) {
        return Err(Failure::Usage(format!("stage: expected no word of Rust's, got '{name}'")));
    }
    Ok(())
}

fn read(path: &PathBuf) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|e| Failure::file(path, e))
}

//! `lab dev bundle DIR`: the tool and what it needs, for a GPU machine that has neither Rust nor a C++ compiler.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab_device::emulator::write_atomically;
use lab_device::{Build, KernelSource, OBJECTS_DIRECTORY, compile_missing};
use serde_json::json;

use crate::Common;
use crate::commands::bench::state_of_tree;
use crate::failure::Failure;

/// Kernels and headers are inside the binary, or lie beside it; this says what to do with it.
const RUN: &str = r#"#!/usr/bin/env bash
# Checks and measures every kernel on this machine's GPU: doctor, self-test, benchmarks, record.
# The record goes to $OUT/history, or to ./history where OUT is not set.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lab="$here/lab"
"$lab" doctor
"$lab" devices --device cuda
"$lab" selftest
"$lab" tour --device cuda
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck synccheck; do
        echo "compute-sanitizer $tool"
        compute-sanitizer --tool "$tool" --error-exitcode 1 --print-limit 20 "$lab" selftest --device cuda --quick
    done
fi
if [ "$(cat "$here/commit")" = dirty ]; then
    "$lab" bench --device cuda
else
    "$lab" bench --device cuda --record --out "${OUT:-.}/history"
fi
"#;

pub(crate) fn run(common: &Common, directory: &Path) -> Result<(), Failure> {
    common.selector()?;
    let refuse = |e| Failure::file(directory, e);
    std::fs::create_dir_all(directory).map_err(refuse)?;
    let tool = crate::own::executable().map_err(refuse)?;
    let target = directory.join("lab");
    // Under another name first, so that a failure leaves no half-made tool.
    let draft = directory.join(".lab.part");
    std::fs::copy(&tool, &draft).map_err(refuse)?;
    let stripped = Command::new("strip").arg(&draft).status().is_ok_and(|s| s.success());
    std::fs::rename(&draft, &target).map_err(refuse)?;
    let objects = write_objects(directory)?;
    let state = state_of_tree().and_then(|commit| match newer_source(&tool) {
        None => Ok(commit),
        Some(source) => {
            Err(format!("{} is newer than the tool; `cargo build` makes it anew", source.display()))
        }
    });
    let commit = state.as_deref().unwrap_or("dirty");
    std::fs::write(directory.join("commit"), format!("{commit}\n")).map_err(refuse)?;
    let script = directory.join("run.sh");
    std::fs::write(&script, RUN).map_err(refuse)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).map_err(refuse)?;
    let size = std::fs::metadata(&target).map_err(refuse)?.len();
    if common.json {
        say!(
            "{}",
            json!({ "directory": directory.display().to_string(), "bytes": size, "commit": commit, "stripped": stripped,
                    "objects": objects })
        );
        return Ok(());
    }
    say!("{}: lab ({:.1} MB), run.sh, commit", directory.display(), size as f64 * 1e-6);
    if objects > 0 {
        say!(
            "{OBJECTS_DIRECTORY}: {objects} kernels compiled for the emulator, which the tool reads there"
        );
    }
    if let Err(reason) = state {
        say!("Its benchmarks will not be recorded: {reason}");
    }
    if !stripped {
        say!("`strip` is not on the path: the tool carries its debug information");
    }
    say!(
        "On the GPU machine: bash {}/run.sh",
        directory.file_name().unwrap_or_default().to_string_lossy()
    );
    Ok(())
}

/// A source that has changed since the tool was built of it, as cargo's list beside the tool has them; `None` where there is
/// no list. Its records would name a commit that it is not of.
fn newer_source(tool: &Path) -> Option<PathBuf> {
    let list = std::fs::read_to_string(tool.with_extension("d")).ok()?;
    let changed = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    let built = changed(tool)?;
    // A space of a path is written as `\ `.
    let list = list.split_once(": ")?.1.replace("\\ ", "\0");
    let mut sources = list.split_whitespace().map(|s| PathBuf::from(s.replace('\0', " ")));
    sources.find(|source| changed(source).is_some_and(|at| at > built))
}

/// Writes the objects that are not inside the tool into the directory where it looks for them; how many.
fn write_objects(directory: &Path) -> Result<usize, Failure> {
    let outside: Vec<(&'static KernelSource, Build, &str)> = crate::kernels()
        .flat_map(|kernel| [Build::Plain, Build::Checked].map(|build| (kernel, build)))
        .filter_map(|(kernel, build)| Some((kernel, build, kernel.kept_name(build)?)))
        .collect();
    if outside.is_empty() {
        return Ok(0);
    }
    compile_missing(outside.iter().map(|(kernel, build, _)| (*kernel, *build)))?;
    let beside = directory.join(OBJECTS_DIRECTORY);
    let refuse = |e| Failure::file(&beside, e);
    std::fs::create_dir_all(&beside).map_err(refuse)?;
    // Those of an earlier tool.
    let is_wanted = |name: &std::ffi::OsStr| outside.iter().any(|(_, _, wanted)| name == *wanted);
    for entry in std::fs::read_dir(&beside).map_err(refuse)? {
        let entry = entry.map_err(refuse)?;
        if !is_wanted(&entry.file_name()) {
            std::fs::remove_file(entry.path()).map_err(refuse)?;
        }
    }
    for (kernel, build, name) in &outside {
        write_atomically(&beside.join(name), kernel.object(*build)?).map_err(refuse)?;
    }
    Ok(outside.len())
}

//! What a reader makes: exercises, and new stages. In a copy of the sources, with nothing built there.
#![allow(missing_docs)]

use std::path::Path;

use assert_cmd::Command;

/// The sources that `lab` looks for in a workspace.
const PARTS: [&str; 5] = ["Cargo.toml", "Cargo.lock", "shared/cli", "shared/cuda", "stages"];

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let name = entry.unwrap().file_name();
            copy(&from.join(&name), &to.join(&name));
        }
    } else {
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    }
}

fn workspace() -> tempfile::TempDir {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let directory = tempfile::tempdir().unwrap();
    PARTS.iter().for_each(|part| copy(&root.join(part), &directory.path().join(part)));
    let emulator = root.join("shared/emulator").canonicalize().unwrap();
    std::os::unix::fs::symlink(emulator, directory.path().join("shared/emulator")).unwrap();
    directory
}

fn lab(directory: &Path) -> Command {
    let mut lab = Command::cargo_bin("lab").unwrap();
    lab.env_remove("LAB_DEVICE").env_remove("LAB_KERNEL_OBJECTS").current_dir(directory);
    lab
}

/// Exit code, and all that was said.
fn said(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|t| String::from_utf8_lossy(&t).into_owned());
    (output.status.code().unwrap_or(-1), text.concat())
}

#[track_caller]
fn refused(command: &mut Command, parts: &[&str]) {
    let (code, text) = said(command);
    assert_eq!(code, 2, "{text}");
    assert!(!text.contains("panicked"), "{text}");
    parts.iter().for_each(|part| assert!(text.contains(part), "'{part}' in: {text}"));
}

#[test]
fn an_exercise_is_begun_judged_and_solved() {
    let directory = workspace();
    let root = directory.path();
    let exercise = || {
        let mut lab = lab(root);
        lab.args(["exercise", "transpose-conflicts"]);
        lab
    };
    let file = root.join("exercises/transpose-conflicts.cu");
    let (code, text) = said(&mut exercise());
    assert!(code == 0 && text.contains("exercises/transpose-conflicts.cu"), "{text}");
    let given = std::fs::read_to_string(&file).unwrap();

    let (code, text) = said(&mut exercise());
    assert!(code == 1 && text.contains("32.00 times the fewest"), "{text}");
    assert!(text.contains("Hint:"), "{text}");

    std::fs::write(&file, given.replace("threadIdx.x", "thread.x")).unwrap();
    let (code, text) = said(&mut exercise());
    assert!(code == 1 && text.contains("does not compile"), "{text}");

    std::fs::write(&file, given.replace("__syncthreads();", "")).unwrap();
    let (code, text) = said(&mut exercise());
    assert!(code == 3 && text.contains("racecheck"), "{text}");

    std::fs::write(&file, given.replace("[TILE][TILE];", "[TILE][TILE + 1];")).unwrap();
    let (code, text) = said(&mut exercise());
    assert!(code == 0 && text.contains("Solved."), "{text}");

    let (code, text) = said(exercise().arg("--fresh"));
    assert!(code == 0, "{text}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), given);
}

#[test]
fn exercises_are_listed_and_unknown_ones_refused() {
    let directory = workspace();
    let (code, text) = said(lab(directory.path()).arg("exercise"));
    for stage in lab::STAGES {
        // What is wrong on purpose has no right answer.
        let told = text.contains(&format!("┆ {} ", stage.name));
        assert!(code == 0 && told == (stage.name != "qkv_v0"), "{}: {text}", stage.name);
    }
    refused(
        lab(directory.path()).args(["exercise", "nothing"]),
        &["exercise: expected one of transpose-conflicts", "got 'nothing'"],
    );
}

#[test]
fn a_new_stage_is_written_and_registered_once() {
    let directory = workspace();
    let root = directory.path();
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let before = read("shared/cli/src/lib.rs");
    let (code, text) = said(lab(root).args(["new", "my_stage"]));
    assert_eq!(code, 0, "{text}");
    let new = root.join("stages/my_stage");
    for file in ["Cargo.toml", "build.rs", "src/lib.rs", "tests/correctness.rs", "README.md"] {
        let text = std::fs::read_to_string(new.join(file)).unwrap();
        assert!(!text.contains("NEW_STAGE"), "{file}: {text}");
    }
    assert!(new.join("kernels/twice.cu").is_file());
    assert!(read("Cargo.toml").contains("\nmy_stage = { path = \"stages/my_stage\" }\n"));
    assert!(read("shared/cli/Cargo.toml").contains("\nmy_stage.workspace = true\n"));
    assert!(read("shared/cli/src/lib.rs").contains("::STAGE,\n    &my_stage::STAGE,\n];"));
    refused(lab(root).args(["new", "my_stage"]), &["no stage and no crate here", "'my_stage'"]);

    let registered = read("shared/cli/src/lib.rs");
    assert_eq!(registered.lines().count(), before.lines().count() + 1);
    for (name, what) in [
        ("Stage", "lower-case"),
        ("9lives", "a letter first"),
        ("a-b", "lower-case"),
        ("../up", "lower-case"),
        ("", "lower-case"),
        ("serde", "no crate here has"),
        ("playg", "no stage"),
        ("match", "no word of Rust's"),
    ] {
        refused(lab(root).args(["new", name]), &["stage: expected", what]);
    }
    assert_eq!(read("shared/cli/src/lib.rs"), registered);
    let elsewhere = tempfile::tempdir().unwrap();
    refused(lab(elsewhere.path()).args(["new", "other"]), &["current directory: expected"]);
}

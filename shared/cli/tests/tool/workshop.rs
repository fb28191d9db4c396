//! What a reader makes: exercises, and new stages. In a copy of the sources, with nothing built there.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use assert_cmd::Command;

/// The sources that `lab` looks for in a workspace.
const PARTS: [&str; 5] = ["Cargo.toml", "Cargo.lock", "shared/registry", "shared/cuda", "stages"];

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
    let place = "bank conflicts: at exercises/transpose-conflicts.cu:";
    assert!(text.contains(place) && text.contains("up to 32 lanes of a warp"), "{text}");
    assert_eq!(text.matches("times the fewest").count(), 1, "{text}");
    let look = "Where to look: ";
    let command = text.lines().find_map(|line| line.strip_prefix(look)).unwrap();
    assert!(command.ends_with("lab exercise transpose-conflicts --hint"), "{command}");
    assert!(!text.contains("PAD"), "no hint that nobody asked for: {text}");

    std::fs::write(&file, given.replace("threadIdx.x", "thread.x")).unwrap();
    let (code, text) = said(&mut exercise());
    assert!(code == 1 && text.contains("does not compile"), "{text}");
    names_its_place(&text, &given, "threadIdx.x");

    std::fs::write(&file, given.replace("__syncthreads();", "")).unwrap();
    let (code, text) = said(&mut exercise());
    assert!(code == 3 && text.contains("racecheck"), "{text}");
    names_its_place(&text, &given, "tile[j][threadIdx.x] =");

    std::fs::write(&file, given.replace("[TILE][TILE];", "[TILE][TILE + 1];")).unwrap();
    let (code, text) = said(&mut exercise());
    assert!(code == 0 && text.contains("Solved."), "{text}");
    assert!(text.contains("solved; next: tile-barriers"), "{text}");
    let state = || listed(root)["exercises"][0]["state"].clone();
    assert_eq!(state(), "solved");

    // Another way that does not work takes nothing back; to begin again does.
    std::fs::write(&file, "no C++").unwrap();
    assert_eq!(said(&mut exercise()).0, 1);
    assert_eq!(state(), "solved");
    let solved = std::fs::read_to_string(&file).unwrap();
    let (code, text) = said(exercise().arg("--fresh"));
    assert!(code == 0 && text.contains("does not count as solved any more"), "{text}");
    let kept = file.with_file_name("transpose-conflicts.old.cu");
    assert_eq!(std::fs::read_to_string(kept).unwrap(), solved);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), given);
    assert_eq!(state(), "begun");
}

/// The report names the reader's file with the line of the text, and no file of the stage or of a
/// copy.
#[track_caller]
fn names_its_place(report: &str, given: &str, text: &str) {
    let line = given.lines().position(|l| l.contains(text)).unwrap() + 1;
    let place = format!("exercises/transpose-conflicts.cu:{line}:");
    assert!(report.contains(&place), "'{place}' in: {report}");
    assert!(!report.contains("stages/playg"), "{report}");
    let temporary = std::env::temp_dir();
    // The tool itself may have been built there.
    let tool = assert_cmd::cargo::cargo_bin("lab");
    let report = report.replace(&*tool.to_string_lossy(), "lab");
    assert!(!report.contains(&*temporary.to_string_lossy()), "{report}");
}

fn listed(root: &Path) -> serde_json::Value {
    let output = lab(root).args(["exercise", "--json"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_hint_and_a_solution_come_when_they_are_asked_for() {
    let directory = workspace();
    let root = directory.path();
    let (code, text) = said(lab(root).args(["exercise", "transpose-conflicts", "--hint"]));
    assert!(code == 0 && text.contains("PAD is a template parameter"), "{text}");
    let (code, text) = said(lab(root).args(["exercise", "transpose-conflicts", "--solution"]));
    assert!(code == 0 && text.contains("  +     __shared__ T tile[TILE][TILE + PAD];\n"), "{text}");
    let kernel = std::fs::read_to_string(root.join("stages/playg/kernels/transpose.cu")).unwrap();
    for number in text.lines().filter_map(|l| l.strip_prefix("stages/playg/kernels/transpose.cu:"))
    {
        let line = kernel.lines().nth(number.parse::<usize>().unwrap() - 1).unwrap();
        assert!(text.contains(&format!("  + {line}\n")), "{number} is '{line}' in: {text}");
    }
    // Who looks at these begins nothing.
    assert!(!root.join("exercises").exists());
    for (first, second) in [("--hint", "--solution"), ("--hint", "--watch"), ("--watch", "--fresh")]
    {
        let arguments = ["exercise", "transpose-conflicts", first, second];
        refused(lab(root).args(arguments), &["cannot be used with"]);
        refused(lab(root).args(["exercise", first]), &["required"]);
    }
}

#[test]
fn the_list_says_what_is_solved_and_what_is_begun() {
    let directory = workspace();
    let root = directory.path();
    let all = listed(root)["exercises"].as_array().unwrap().len();
    let list = || said(lab(root).arg("exercise"));
    assert!(list().1.contains(&format!("0 of {all} solved; next: transpose-conflicts\n")));

    assert_eq!(said(lab(root).args(["exercise", "sum-conflicts"])).0, 0);
    assert_eq!(said(lab(root).args(["exercise", "weights-of-nothing"])).0, 0);
    // One in a header has a header to write.
    assert!(root.join("exercises/weights-of-nothing.cuh").is_file());
    let progress = root.join("exercises/progress.json");
    std::fs::write(&progress, r#"{"solved": ["transpose-conflicts", "was-one-once"]}"#).unwrap();
    let (code, text) = list();
    assert!(code == 0 && text.contains(&format!("1 of {all} solved; next: tile-barriers\n")));
    let row = |name: &str| text.lines().find(|l| l.starts_with(&format!(" {name} "))).unwrap();
    let state = |name: &str| row(name).split_whitespace().nth(2).unwrap().to_owned();
    assert_eq!(
        (state("transpose-conflicts"), state("sum-conflicts")),
        ("solved".into(), "begun".into())
    );
    assert_eq!(state("two-maxima"), "softmax_online", "the task: {text}");
    let (_, narrow) = said(lab(root).env("COLUMNS", "80").arg("exercise"));
    assert!(narrow.lines().count() <= all + 4, "a line each: {narrow}");
    assert_eq!(listed(root)["next"], "tile-barriers");

    for corrupt in ["", "{", "[]", r#"{"solved": 1}"#, r#"{"solved": [], "more": 1}"#] {
        std::fs::write(&progress, corrupt).unwrap();
        for arguments in [&["exercise"][..], &["exercise", "sum-conflicts"]] {
            refused(
                lab(root).args(arguments),
                &["exercises/progress.json: expected", "got: ", "delete it"],
            );
        }
    }
    assert_eq!(std::fs::read_to_string(&progress).unwrap(), r#"{"solved": [], "more": 1}"#);
}

#[test]
fn a_watched_exercise_is_judged_at_each_save_until_it_is_solved() {
    let directory = workspace();
    let root = directory.path();
    let file = root.join("exercises/transpose-conflicts.cu");
    assert_eq!(said(lab(root).args(["exercise", "transpose-conflicts"])).0, 0);
    let given = std::fs::read_to_string(&file).unwrap();
    // What does not compile is judged soon.
    std::fs::write(&file, given.replace("threadIdx.x", "thread.x")).unwrap();
    let program = assert_cmd::cargo::cargo_bin("lab");
    let mut watch = std::process::Command::new(program)
        .args(["exercise", "transpose-conflicts", "--watch"])
        .env_remove("LAB_DEVICE")
        .env_remove("LAB_KERNEL_OBJECTS")
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut until = |end: &str| -> String {
        let mut said = String::new();
        while !said.contains(end) {
            said += &lines.next().unwrap_or_else(|| panic!("'{end}' after: {said}"));
            said.push('\n');
        }
        said
    };
    let waits = "Waiting for the next save of exercises/transpose-conflicts.cu";
    let text = until(waits);
    assert!(text.contains("thread.x") && text.contains("does not compile"), "{text}");

    std::fs::write(&file, given.replace("threadIdx.y", "other.y")).unwrap();
    let text = until(waits);
    assert!(text.contains("other.y") && !text.contains("thread.x"), "{text}");

    // As editors save: the old file goes, another one takes its name.
    std::fs::remove_file(&file).unwrap();
    let draft = root.join("exercises/draft");
    std::fs::write(&draft, given.replace("[TILE][TILE];", "[TILE][TILE + 1];")).unwrap();
    std::fs::rename(&draft, &file).unwrap();
    until("Solved.");
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    assert_eq!(listed(root)["exercises"][0]["state"], "solved");
}

#[test]
fn exercises_are_listed_and_unknown_ones_refused() {
    let directory = workspace();
    let (code, text) = said(lab(directory.path()).arg("exercise"));
    for stage in lab_registry::STAGES {
        // What is wrong on purpose has no right answer.
        let told = text.contains(&format!(" {} ", stage.name));
        assert!(code == 0 && told == (stage.name != "qkv_v0"), "{}: {text}", stage.name);
    }
    refused(
        lab(directory.path()).args(["exercise", "unknown"]),
        &[
            "exercise: expected transpose-conflicts, ",
            " more that `lab exercise` lists, got 'unknown'",
        ],
    );
    refused(
        lab(directory.path()).args(["exercise", "two-maxim"]),
        &["exercise: expected two-maxima, or another that `lab exercise` lists, got 'two-maxim'"],
    );
}

#[test]
fn a_new_stage_is_written_and_registered_once() {
    let directory = workspace();
    let root = directory.path();
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let before = read("shared/registry/src/lib.rs");
    let (code, text) = said(lab(root).args(["new", "my_stage"]));
    assert_eq!(code, 0, "{text}");
    let new = root.join("stages/my_stage");
    for file in ["Cargo.toml", "build.rs", "src/lib.rs", "tests/correctness.rs", "README.md"] {
        let text = std::fs::read_to_string(new.join(file)).unwrap();
        assert!(!text.contains("NEW_STAGE"), "{file}: {text}");
    }
    assert!(new.join("kernels/twice.cu").is_file());
    assert!(read("Cargo.toml").contains("\nmy_stage = { path = \"stages/my_stage\" }\n"));
    assert!(read("shared/registry/Cargo.toml").contains("\nmy_stage.workspace = true\n"));
    assert!(read("shared/registry/src/lib.rs").contains("::STAGE,\n    &my_stage::STAGE,\n];"));
    refused(lab(root).args(["new", "my_stage"]), &["no stage and no crate here", "'my_stage'"]);

    let registered = read("shared/registry/src/lib.rs");
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
        ("self", "no word of Rust's"),
        ("gen", "no word of Rust's"),
        ("yield", "no word of Rust's"),
        ("std", "no word of Rust's"),
    ] {
        refused(lab(root).args(["new", name]), &["stage: expected", what]);
    }
    assert_eq!(read("shared/registry/src/lib.rs"), registered);
    let elsewhere = tempfile::tempdir().unwrap();
    refused(lab(elsewhere.path()).args(["new", "other"]), &["current directory: expected"]);
}

/// Waiting for every group is right, and too much: the next tiles are to come meanwhile.
#[test]
fn an_exercise_asks_for_how_many_groups_are_waited_for() {
    let directory = workspace();
    let root = directory.path();
    let exercise = || said(lab(root).args(["exercise", "wait-for-copies"]));
    assert_eq!(exercise().0, 0);
    let file = root.join("exercises/wait-for-copies.cu");
    let given = std::fs::read_to_string(&file).unwrap();
    // The first of two waits, in the line of a TODO.
    let todo = "__syncthreads();  // TODO";
    let text = given.replacen(todo, "async_wait<0>(); __syncthreads();  //", 1);
    std::fs::write(&file, text.replace(todo, "async_wait<STAGES - 2>(); __syncthreads();  //"))
        .unwrap();
    let line = given.lines().position(|l| l.contains(todo)).unwrap() + 1;
    let (code, text) = exercise();
    let place = format!("exercises/wait-for-copies.cu:{line}: it waits for a group that may");
    assert!(code == 1 && text.contains(&place), "{place} in: {text}");
    assert_eq!(text.matches("it waits for a group").count(), 1, "{text}");
    assert!(!text.contains("Results are right"), "{text}");
}

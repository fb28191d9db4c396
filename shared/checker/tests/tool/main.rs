//! The tool, run from a directory that knows nothing of this repository.
#![allow(missing_docs)]

mod built;
mod host;
mod modules;
mod public;
mod sources;

use std::path::Path;
use std::process::Command;

/// Exit code, stdout and stderr of the tool, run there.
fn run(here: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_lab-checker"));
    let output = tool.current_dir(here).args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_tool_stands_alone_and_says_its_own_name() {
    let here = tempfile::tempdir().unwrap();
    let sum = concat!(env!("CARGO_MANIFEST_DIR"), "/../app/programs/sum.cu");
    std::fs::copy(sum, here.path().join("sum.cu")).unwrap();
    let run = |words: &str| run(here.path(), &words.split_whitespace().collect::<Vec<_>>());
    let (code, stdout, _) = run("check sum.cu");
    assert_eq!(code, Some(0));
    assert!(stdout.contains("lab-checker check sum.cu --kernel sum_blocks"), "{stdout}");
    let arguments = "--grid 8 --block 128 --shared 512 --arg in:f32[n] --arg out:f32[8] --arg 1000";
    let (code, stdout, stderr) = run(&format!("check sum.cu -D FORGETFUL {arguments}"));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stdout.contains("racecheck: race on byte 128 of dynamic shared memory"), "{stdout}");
    assert!(stderr.starts_with("lab-checker: sum_blocks<T = float>: 1 finding"), "{stderr}");
    let (code, stdout, _) = run("check nothing.cu --json");
    assert_eq!(code, Some(2));
    assert!(stdout.starts_with("{\"error\":\"nothing.cu: "), "{stdout}");
}

/// The step of the ready action, as a runner's bash runs it: each kernel is checked though the first has a race, and the worst
/// exit code is the step's.
#[test]
fn the_action_checks_each_kernel_and_ends_with_the_worst_exit_code() {
    let action = include_str!("../../action/action.yml");
    let (_, step) = action.split_once("- name: Check the kernels").unwrap();
    let (_, script) = step.split_once("run: |\n").unwrap();
    let script: Vec<&str> = script
        .lines()
        .take_while(|line| line.starts_with("        "))
        .map(str::trim_start)
        .collect();
    assert!(script.last().unwrap().starts_with("exit "), "{script:?}");

    let here = tempfile::tempdir().unwrap();
    let sum = concat!(env!("CARGO_MANIFEST_DIR"), "/../app/programs/sum.cu");
    std::fs::copy(sum, here.path().join("sum.cu")).unwrap();
    let arguments = "kernel = \"sum_blocks\"\ngrid = \"8\"\nblock = \"128\"\nshared = \"512\"\n\
        args = [\"in:f32[n]\", \"out:f32[8]\", \"1000\"]\n";
    std::fs::write(here.path().join("sum.toml"), arguments).unwrap();
    let racy = format!("define = [\"FORGETFUL\"]\n{arguments}");
    std::fs::write(here.path().join("racy.toml"), racy).unwrap();
    let tool = std::path::Path::new(env!("CARGO_BIN_EXE_lab-checker")).parent().unwrap();
    let path = format!("{}:{}", tool.display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-e", "-o", "pipefail", "-c", &script.join("\n")])
        .current_dir(here.path())
        .env("PATH", path)
        .env("KERNELS", "sum.cu racy.toml\nsum.cu sum.toml\n")
        .env("SARIF", "found")
        .output()
        .unwrap();
    let (said, faults) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(3), "{said}{faults}");
    assert!(
        said.contains("::error file=sum.cu::lab-checker ended with exit code 3: racy.toml"),
        "{said}"
    );
    assert!(!said.contains("code 3: sum.toml"), "{said}");
    let results = |name: &str| {
        let text = std::fs::read_to_string(here.path().join("found").join(name)).unwrap();
        let sarif: serde_json::Value = serde_json::from_str(&text).unwrap();
        sarif["runs"][0]["results"].as_array().unwrap().len()
    };
    assert_eq!((results("racy-toml.sarif"), results("sum-toml.sarif")), (1, 0));
}

#[test]
fn complex_numbers_have_their_header() {
    let here = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../app/programs"));
    let (code, stdout, stderr) = run(here, &["app", "complex.cu"]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.starts_with("right: "), "{stdout}");
}

#[test]
fn a_program_that_launches_nothing_is_told_so() {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("waived.cu"), "int main() { return 0; }\n").unwrap();
    let (code, _, stderr) = run(here.path(), &["app", "waived.cu"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("no kernel was launched, so nothing was checked"), "{stderr}");
}

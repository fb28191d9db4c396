//! The tool, run from a directory that knows nothing of this repository.
#![allow(missing_docs)]

mod modules;

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

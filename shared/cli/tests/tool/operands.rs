//! The emulator's arithmetic beside a GPU's: each form of an instruction on thousands of operands, by the digests of a record.

use std::path::Path;

use assert_cmd::Command;
use lab_harness::suite::test_turn;

/// Of so many parts of the forms each run has one: to compile all of them takes minutes.
const PARTS: usize = 16;

fn lab(arguments: &[&str]) -> (bool, String) {
    let record = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/operands/h200.json");
    let output = Command::cargo_bin("lab")
        .unwrap()
        .args(["dev", "operands", "--device", "emulator", "--record"])
        .arg(record)
        .args(arguments)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.success(), told)
}

#[test]
fn instructions_leave_the_bits_that_a_gpu_leaves() {
    let all = std::env::var_os("LAB_ALL_CHECKS").is_some();
    let part = format!("{}/{PARTS}", test_turn() % PARTS + 1);
    let one_part = ["--part", part.as_str()];
    let (is_right, told) = lab(if all { &[] } else { &one_part });
    assert!(is_right && told.contains(": 0 differ"), "{told}");
}

//! The emulator's arithmetic beside a GPU's: each form of an instruction on thousands of operands, by the digests of a record.

use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;

/// What `lab dev operands` says of the record at this path: its exit code, and its words.
fn compare(record: &Path, more: &[&str]) -> (Option<i32>, String) {
    let output = Command::cargo_bin("lab")
        .unwrap()
        .args(["dev", "operands", "--device", "emulator", "--record"])
        .arg(record)
        .args(more)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.code(), told)
}

fn record() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/operands/h200.json")
}

#[test]
fn instructions_leave_the_bits_that_a_gpu_leaves() {
    let (code, told) = compare(&record(), &[]);
    assert!(code == Some(0) && told.contains(": 0 differ"), "{told}");
}

/// A record in which one digit is another is not the emulator's.
#[test]
fn one_digit_of_a_record_is_seen() {
    let text = std::fs::read_to_string(record()).unwrap();
    let mut all: Value = serde_json::from_str(&text).unwrap();
    let digests = &mut all["exact"]["add.u16"];
    let own = digests.as_str().unwrap().to_owned();
    let digit = if own.starts_with('0') { "1" } else { "0" };
    *digests = Value::from(format!("{digit}{}", &own[1..]));
    let here = tempfile::tempdir().unwrap();
    let wrong = here.path().join("wrong.json");
    std::fs::write(&wrong, all.to_string()).unwrap();
    let (code, told) = compare(&wrong, &["--only", "add.u16"]);
    assert!(code == Some(1) && told.contains("add.u16: differs for edges"), "{told}");
}

#[test]
fn none_of_the_forms_is_no_comparison() {
    let (code, told) = compare(&record(), &["--only", "nothing.of.this"]);
    assert!(code == Some(2) && told.contains("got 'nothing.of.this'"), "{told}");
}

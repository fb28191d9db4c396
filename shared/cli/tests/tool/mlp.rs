//! `lab mlp`: trained, stopped and gone on with, judged, asked; and what it refuses.

use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;

fn lab(arguments: &[&str]) -> Command {
    let mut lab = Command::cargo_bin("lab").unwrap();
    lab.env_remove("LAB_DEVICE").args(["--device", "emulator", "mlp"]).args(arguments);
    lab
}

#[track_caller]
fn passed(arguments: &[&str]) -> Value {
    let output = lab(arguments).arg("--json").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"))
}

#[track_caller]
fn refused(arguments: &[&str], parts: &[&str]) {
    let output = lab(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    parts.iter().for_each(|part| assert!(said.contains(part), "'{part}' in: {said}"));
}

/// A cycle of words, which one word tells of the next.
fn text(directory: &Path) -> String {
    let path = directory.join("text.txt");
    std::fs::write(&path, "the quick brown fox jumps over a lazy dog .\n".repeat(12)).unwrap();
    path.display().to_string()
}

const SMALL: [&str; 8] = ["--embed", "8", "--hidden", "16", "--batch", "16", "--lr", "0.05"];

fn train<'a>(text: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["train", text, "--out", out], &SMALL[..], more].concat()
}

#[test]
fn a_cycle_of_words_is_learned_and_told() {
    let directory = tempfile::tempdir().unwrap();
    let text = text(directory.path());
    let out = directory.path().join("m.safetensors").display().to_string();
    let report = passed(&train(&text, &out, &["--epochs", "6"]));
    assert_eq!((&report["tokens"], &report["vocabulary"]), (&120.into(), &11.into()), "{report}");
    let [model, alike] = ["model", "all alike"].map(|n| report["perplexity"][n].as_f64().unwrap());
    assert!(model < 1.5 && alike > 10.9, "{report}");
    for file in report["files"].as_array().unwrap() {
        assert!(Path::new(file.as_str().unwrap()).is_file(), "{file}");
    }

    let report = passed(&["predict", &out, "Quick, the quick", "--top", "2"]);
    assert_eq!(report["next"][0]["token"], "brown", "{report}");
    assert!(report["next"][0]["probability"].as_f64().unwrap() > 0.5, "{report}");
    assert_eq!((report["next"].as_array().unwrap().len(), &report["unknown"]), (2, &0.into()));
    let report = passed(&["predict", &out, "Quick, the quick", "--context", "9"]);
    assert_eq!(report["unknown"], 2, "{report}");

    let report = passed(&["eval", &out]);
    let bits = |name: &str| report["models"][name]["bits_per_token"].as_f64().unwrap();
    assert!(bits("model") < bits("unigrams") && bits("bigrams") < bits("unigrams"), "{report}");
    let report = passed(&["eval", &out, &text]);
    assert_eq!(report["tokens"], 119, "{report}");
}

#[test]
fn what_was_stopped_ends_in_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let text = text(directory.path());
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (whole, halves) = (path("whole.safetensors"), path("halves.safetensors"));
    let more = ["--schedule", "constant", "--epochs", "4"];
    passed(&train(&text, &whole, &more));
    passed(&train(&text, &halves, &["--schedule", "constant", "--epochs", "2"]));
    passed(&train(&text, &halves, &[&more[..], &["--resume"]].concat()));
    let parameters = |file: &str| {
        let bytes = std::fs::read(file).unwrap();
        let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut all: Vec<_> =
            all.tensors().into_iter().map(|(n, t)| (n, t.data().to_vec())).collect();
        all.sort();
        all
    };
    assert_eq!(parameters(&whole), parameters(&halves));

    let other = train(&text, &halves, &[&more[..], &["--resume", "--seed", "3"]].concat());
    refused(&other, &["--seed: expected 0, as it was begun, got 3"]);
    let none = path("none.safetensors");
    refused(&train(&text, &none, &["--resume"]), &["--resume: expected a training that was begun"]);
    std::fs::write(&text, "another text, of other words").unwrap();
    let again = train(&text, &halves, &[&more[..], &["--resume"]].concat());
    refused(&again, &["expected the text that the model was trained on"]);
    refused(&["eval", &whole], &["expected the text that the model was trained on"]);
}

#[test]
fn any_bytes_are_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("data");
    std::fs::write(&file, [0u8, 255, 10].repeat(40)).unwrap();
    let (file, out) =
        (file.display().to_string(), directory.path().join("m").display().to_string());
    refused(&train(&file, &out, &[]), &["expected UTF-8, got byte 0xFF at offset 1, line 1"]);
    let report = passed(&train(&file, &out, &["--tokens", "bytes", "--epochs", "3"]));
    assert_eq!((&report["tokens"], &report["vocabulary"]), (&120.into(), &4.into()), "{report}");
}

#[test]
fn bad_input() {
    let directory = tempfile::tempdir().unwrap();
    let text = text(directory.path());
    let path = |name: &str| directory.path().join(name).display().to_string();
    let out = path("m.safetensors");
    let file = |name: &str, bytes: &[u8]| {
        std::fs::write(path(name), bytes).unwrap();
        path(name)
    };
    let of = |text: &str, parts: &[&str]| refused(&train(text, &out, &[]), parts);
    of(&path("missing.txt"), &["missing.txt"]);
    of(&file("empty", b""), &["expected a text, got an empty file"]);
    of(&file("one", b"word"), &["expected two words or more, got 1"]);
    of(&file("cut", b"good\nbad \xC3"), &["0xC3 at offset 9, line 2"]);
    of(&directory.path().display().to_string(), &["directory"]);
    for (option, value, said) in [
        ("--max-vocab", "1", "--max-vocab: expected 2 or more"),
        ("--max-vocab", "9999999", "--max-vocab: expected 1 to 1048576"),
        ("--held-out", "1", "--held-out: expected a number from 0"),
        ("--held-out", "NaN", "--held-out: expected a number from 0"),
        ("--epochs", "0", "--epochs: expected 1 to"),
        ("--embed", "0", "--embed: expected 1 to 4096"),
        ("--hidden", "5000", "--hidden: expected 1 to 4096"),
        ("--clip", "-1", "--clip: expected a number from 0"),
    ] {
        refused(&["train", &text, "--out", &out, option, value], &[said]);
    }
    for lr in ["0", "-1", "NaN", "inf"] {
        refused(&["train", &text, "--out", &out, "--lr", lr], &["--lr: expected a number above 0"]);
    }
    refused(&train(&text, &path("no/such/m"), &[]), &["no/such"]);
    assert!(!Path::new(&out).exists());

    let foreign = file("foreign.safetensors", b"not one");
    refused(&["eval", &foreign], &["foreign.safetensors"]);
    refused(&["predict", &foreign, "the"], &["foreign.safetensors"]);
    passed(&train(&text, &out, &["--epochs", "1"]));
    refused(&["predict", &out, " "], &["WORDS: expected one token at least"]);
    refused(&["eval", &out, &path("one")], &["expected two tokens or more, got 1"]);
    let mut bytes = std::fs::read(&out).unwrap();
    bytes.truncate(bytes.len() / 2);
    refused(&["eval", &file("half.safetensors", &bytes)], &["half.safetensors"]);
}

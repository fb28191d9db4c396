//! `lab compile` of one version. NVRTC needs no GPU; where there is none, these tests say so and stop. CI has one.
#![allow(missing_docs)]

use assert_cmd::Command;
use lab_device::nvrtc::Nvrtc;
use serde_json::Value;

fn nvrtc() -> bool {
    match Nvrtc::get() {
        Ok(_) => true,
        Err(error) => {
            assert!(std::env::var_os("LAB_REQUIRE_NVRTC").is_none(), "NVRTC was required: {error}");
            println!("skipped, no NVRTC here: {error}");
            false
        }
    }
}

fn lab(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::cargo_bin("lab").unwrap().args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

fn json(arguments: &[&str]) -> Value {
    let (code, text) = lab(arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {text}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_version_has_the_kernels_that_it_launches() {
    if !nvrtc() {
        return;
    }
    let said = json(&["--json", "compile", "matmul:v2_tiled", "--resources", "--dtype", "f32"]);
    let kernels = said["kernels"].as_array().unwrap();
    assert_eq!(kernels.len(), 1, "{said}");
    let one = &kernels[0];
    assert_eq!(one["file"], "kernels/v2_tiled.cu");
    for what in ["registers", "threads", "shared", "constant"] {
        assert!(one[what].as_u64().unwrap() > 0, "{what}: {said}");
    }
    assert_eq!(one["dynamic_shared"], 0);
}

#[test]
fn threads_are_those_of_the_launch() {
    if !nvrtc() {
        return;
    }
    // It has no launch bounds.
    let said = json(&["--json", "compile", "matmul:v1_coalesced", "--resources", "--dtype", "f32"]);
    assert_eq!(said["kernels"][0]["threads"], 32 * 32, "{said}");
}

#[test]
fn each_branch_has_its_label() {
    if !nvrtc() {
        return;
    }
    for wide in [&[][..], &["--wide"]] {
        let mut arguments = vec!["compile", "matmul:v2_tiled", "--ptx", "--dtype", "f32"];
        arguments.extend(wide);
        let (code, text) = lab(&arguments);
        assert_eq!(code, Some(0), "{text}");
        let branches = text.lines().filter_map(|l| l.split_once("bra $"));
        let mut targets: Vec<String> = branches.map(|(_, to)| format!("| ${to}:")).collect();
        targets.sort();
        targets.dedup();
        assert!(!targets.is_empty(), "{text}");
        for target in targets {
            let labels = text.lines().filter(|l| l.trim() == target).count();
            assert_eq!(labels, 1, "{target} in {text}");
        }
    }
}

#[test]
fn ptx_stands_below_the_line_that_it_is_of() {
    if !nvrtc() {
        return;
    }
    let (code, text) = lab(&["compile", "matmul:v2_tiled", "--ptx", "--dtype", "f32"]);
    assert_eq!(code, Some(0), "{text}");
    let mut lines = text.lines();
    assert!(lines.any(|l| l.contains("__syncthreads()")), "{text}");
    assert!(lines.next().unwrap().contains("| bar.sync"), "{text}");
}

#[test]
fn a_difference_counts_the_barriers_of_both() {
    if !nvrtc() {
        return;
    }
    let compared = [
        "--json",
        "compile",
        "matmul:v2_tiled",
        "--against",
        "matmul:v1_coalesced",
        "--dtype",
        "f32",
    ];
    let said = json(&compared);
    let opcodes = said["opcodes"].as_array().unwrap();
    let barrier = |o: &&Value| o["opcode"].as_str().unwrap().starts_with("bar");
    let [ours, theirs] = [0, 1].map(|which| -> u64 {
        opcodes.iter().filter(barrier).map(|o| o["count"][which].as_u64().unwrap()).sum()
    });
    assert!(ours >= 2 && theirs == 0, "{said}");
    assert_eq!(said["kernels"].as_array().unwrap().len(), 2);
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let refused = |arguments: &[&str]| assert_eq!(lab(arguments).0, Some(2), "{arguments:?}");
    refused(&["compile", "--ptx"]);
    refused(&["compile", "matmul", "--ptx", "--resources"]);
    if nvrtc() {
        refused(&["compile", "matmul:v2_tiled", "--write", "/nowhere"]);
        refused(&["compile", "matmul:v2_tiled", "--ptx", "--arch", "sm_80,sm_90a"]);
        refused(&["compile", "matmul:v2_tiled", "--ptx", "--against", "matmul:v1"]);
        refused(&["compile", "matmul:v2_tiled", "--against", "matmul:v1"]);
        refused(&["compile", "matmul:v2_tiled", "--ptx", "--dtype", "f8"]);
    }
}

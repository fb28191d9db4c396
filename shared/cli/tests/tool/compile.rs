//! `lab compile` of one version. NVRTC needs no GPU; where there is none, these tests say so and stop. CI has one.

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

fn nvdisasm() -> bool {
    match lab_device::toolkit::find_nvdisasm() {
        Ok(_) => nvrtc(),
        Err(error) => {
            let required = std::env::var_os("LAB_REQUIRE_NVRTC").is_some();
            assert!(!required, "nvdisasm was required: {error}");
            println!("skipped, no nvdisasm here: {error}");
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
fn sass_stands_below_the_line_that_it_is_of() {
    if !nvdisasm() {
        return;
    }
    let (code, text) = lab(&["compile", "matmul:v2_tiled", "--sass", "--dtype", "f32"]);
    assert_eq!(code, Some(0), "{text}");
    let mut lines = text.lines();
    assert!(lines.any(|l| l.contains("__syncthreads()")), "{text}");
    assert!(lines.next().unwrap().contains("| BAR.SYNC"), "{text}");
    // What is a header's stands below the call.
    assert!(!text.contains("of no line of this file"), "{text}");
}

/// What a load brings has a barrier, and what needs it waits for that: so the bits are those that they are taken for.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn whoever_needs_a_load_waits_for_its_barrier() {
    if !nvdisasm() {
        return;
    }
    for arch in ["sm_80", "sm_90a", "sm_100a"] {
        let asked = ["--json", "compile", "matmul:v2_tiled", "--sass", "--dtype", "f32"];
        let said = json(&[&asked[..], &["--arch", arch]].concat());
        let all = said["kernels"][0]["instructions"].as_array().unwrap();
        let text = |i: &Value| i["text"].as_str().unwrap().to_owned();
        for (n, instruction) in all.iter().enumerate() {
            assert_eq!(instruction["address"].as_u64(), Some(n as u64 * 16), "{arch}");
            assert!(instruction["stall"].as_u64().unwrap() < 16, "{arch}");
        }
        let mut seen = 0;
        for (n, load) in all.iter().enumerate() {
            let text_of_load = text(load);
            let words: Vec<&str> = text_of_load.split_whitespace().collect();
            let at = usize::from(words[0].starts_with('@'));
            let is_load = ["LDG.", "LDS", "S2R"].iter().any(|o| words[at].starts_with(o));
            let (true, Some(barrier)) = (is_load, load["sets"]["write"].as_u64()) else { continue };
            let needs = |i: &&Value| {
                let text = text(i);
                let mut names = text.split(|c: char| !c.is_ascii_alphanumeric());
                names.any(|name| name == words[at + 1].trim_end_matches(','))
            };
            let is_end =
                |i: &&Value| text(i).contains("BRA") || !i["labels"].as_array().unwrap().is_empty();
            let ahead: Vec<&Value> = all[n + 1..].iter().take_while(|i| !is_end(i)).collect();
            let Some(user) = ahead.iter().position(needs) else { continue };
            let waits = |i: &&Value| i["waits"].as_array().unwrap().contains(&barrier.into());
            assert!(ahead[..=user].iter().any(waits), "{arch}: {load} and {}", ahead[user]);
            seen += 1;
        }
        assert!(seen > 20, "{arch}: {seen}");
    }
}

#[test]
fn machine_code_in_its_own_order_has_addresses() {
    if !nvdisasm() {
        return;
    }
    let asked = ["compile", "matmul:v2_tiled", "--sass", "--dtype", "f32", "--in-order"];
    let (code, text) = lab(&asked);
    assert_eq!(code, Some(0), "{text}");
    let addresses =
        text.lines().filter_map(|l| u64::from_str_radix(l.trim().split(' ').next()?, 16).ok());
    let addresses: Vec<u64> = addresses.collect();
    assert!(addresses.len() > 100, "{text}");
    assert!(addresses.iter().enumerate().all(|(n, address)| *address == n as u64 * 16), "{text}");
    assert!(text.lines().any(|l| l == ".L_x_0:"), "{text}");
    assert!(text.contains("rN until the operands are read"), "{text}");
}

#[test]
fn listings_fit_a_terminal() {
    if !nvrtc() {
        return;
    }
    let shown = |more: &[&str], columns: Option<&str>| {
        let mut lab = Command::cargo_bin("lab").unwrap();
        lab.args(["compile", "matmul:v3_rows", "--ptx", "--dtype", "f32"]).args(more);
        match columns {
            Some(columns) => lab.env("COLUMNS", columns),
            None => lab.env_remove("COLUMNS"),
        };
        String::from_utf8(lab.output().unwrap().stdout).unwrap()
    };
    let longest = |text: &str| text.lines().map(|l| l.chars().count()).max().unwrap();
    let cue = "--wide shows whole lines";
    for more in [&[][..], &["--in-order"]] {
        let narrow = shown(more, Some("80"));
        assert!(longest(&narrow) <= 80 && narrow.contains(cue), "{narrow}");
    }
    for (more, columns) in [(&[][..], None), (&["--wide"], Some("80")), (&[], Some("0"))] {
        let whole = shown(more, columns);
        assert!(longest(&whole) > 80 && !whole.contains(cue), "{whole}");
    }
}

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn each_branch_of_sass_has_its_label() {
    if !nvdisasm() {
        return;
    }
    let said = json(&["--json", "compile", "matmul:v13_stores", "--sass", "--dtype", "f16"]);
    assert_eq!(said["language"], "SASS");
    let instructions = said["kernels"][0]["instructions"].as_array().unwrap();
    let labels = |i: &Value| i["labels"].as_array().unwrap().clone();
    let labels: Vec<Value> = instructions.iter().flat_map(labels).collect();
    let texts: Vec<&str> = instructions.iter().map(|i| i["text"].as_str().unwrap()).collect();
    let targets: Vec<&str> = texts.iter().filter_map(|t| Some(t.split_once("BRA ")?.1)).collect();
    assert!(targets.len() > 10, "{said}");
    for target in targets {
        assert_eq!(labels.iter().filter(|l| *l == target).count(), 1, "{target}: {said}");
    }
    // The tensor cores' instruction is of a header, and has the line of the call.
    let at = texts.iter().position(|t| t.contains("HGMMA.64x256x16.F32")).unwrap();
    let (_, text) = lab(&["compile", "matmul:v13_stores", "--sass", "--dtype", "f16"]);
    let line = format!("{:5}  ", instructions[at]["line"].as_u64().unwrap());
    let called = text.lines().find(|l| l.starts_with(&line)).unwrap();
    assert!(called.contains("multiply"), "{called}");
}

#[test]
fn a_difference_counts_machine_code() {
    if !nvdisasm() {
        return;
    }
    let compared = ["--json", "compile", "matmul:v2_tiled", "--sass", "--dtype", "f32"];
    let said = json(&[&compared[..], &["--against", "matmul:v1_coalesced"]].concat());
    let opcodes = said["opcodes"].as_array().unwrap();
    let barrier = |o: &&Value| o["opcode"].as_str().unwrap().starts_with("BAR.SYNC");
    let [ours, theirs] = [0, 1].map(|which| -> u64 {
        opcodes.iter().filter(barrier).map(|o| o["count"][which].as_u64().unwrap()).sum()
    });
    assert!(ours >= 2 && theirs == 0, "{said}");
}

#[test]
fn without_a_disassembler_the_package_is_named() {
    if !nvrtc() {
        return;
    }
    if std::path::Path::new("/usr/local/cuda/bin/nvdisasm").is_file() {
        println!("skipped: the lab always looks into /usr/local/cuda, and it has one");
        return;
    }
    let toolkit = Nvrtc::get().unwrap().toolkit();
    // A toolkit that has NVRTC and its headers alone.
    let root = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(toolkit.nvrtc.parent().unwrap(), root.path().join("lib64")).unwrap();
    let headers = toolkit.includes.iter().find(|d| d.join("cuda_fp16.h").is_file()).unwrap();
    std::os::unix::fs::symlink(headers, root.path().join("include")).unwrap();
    let output = Command::cargo_bin("lab")
        .unwrap()
        .args(["compile", "matmul:v2_tiled", "--sass"])
        .env("CUDA_HOME", root.path())
        .env_remove("CUDA_PATH")
        .env("PATH", root.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("pip install nvidia-cuda-nvdisasm"), "{said}");
    assert!(said.contains(&root.path().join("bin").display().to_string()), "{said}");
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
fn a_full_disk_is_told() {
    if !nvrtc() {
        return;
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let program = assert_cmd::cargo::cargo_bin("lab");
    let arguments = ["compile", "matmul:v2_tiled", "--ptx", "--dtype", "f32"];
    let output = std::process::Command::new(program).args(arguments).stdout(full).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("standard output: No space left"), "{said}");
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let refused = |arguments: &[&str]| assert_eq!(lab(arguments).0, Some(2), "{arguments:?}");
    refused(&["compile", "--ptx"]);
    refused(&["compile", "matmul", "--ptx", "--resources"]);
    refused(&["compile", "--sass"]);
    refused(&["compile", "--in-order"]);
    refused(&["compile", "matmul:v2_tiled", "--in-order", "--resources"]);
    refused(&["compile", "matmul:v2_tiled", "--sass", "--ptx"]);
    for arch in ["", "banana", "compute_90", "sm_9", "sm_90a,"] {
        refused(&["compile", "matmul:v2_tiled", "--ptx", "--arch", arch]);
    }
    if nvrtc() {
        refused(&["compile", "matmul:v2_tiled", "--write", "/nowhere"]);
        refused(&["compile", "matmul:v2_tiled", "--ptx", "--arch", "sm_80,sm_90a"]);
        refused(&["compile", "matmul:v2_tiled", "--ptx", "--against", "matmul:v1"]);
        refused(&["compile", "matmul:v2_tiled", "--against", "matmul:v1"]);
        refused(&["compile", "matmul:v2_tiled", "--ptx", "--dtype", "f8"]);
        refused(&["compile", "matmul:v2_tiled", "--in-order"]);
    }
}

//! Bad input is one clear message that names the argument, what was expected and what came; the
//! right exit code; no panic; no output file.

use std::path::Path;

use assert_cmd::Command;
use lab_device::DType;
use lab_harness::{Tensor, Tensors, tensor};

fn lab() -> Command {
    let mut lab = Command::cargo_bin("lab").unwrap();
    lab.env_remove("LAB_DEVICE").args(["--device", "emulator"]);
    lab
}

/// Runs it; it must end with `code` and say all of `said` on stderr.
#[track_caller]
fn refused(command: &mut Command, code: i32, said: &[&str]) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("exit {:?}: {}", output.status.code(), text.trim());
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    for part in said {
        assert!(text.contains(part), "'{part}' in: {text}");
    }
}

fn file(directory: &Path, tensors: &[(&str, Tensor)]) -> String {
    let path = directory.join("in.safetensors");
    let all: Tensors = tensors.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect();
    tensor::write(&path, &all).unwrap();
    path.display().to_string()
}

#[test]
fn names_and_options() {
    refused(lab().args(["run", "nothing"]), 2, &["stage: expected playg", "got 'nothing'"]);
    for (name, said) in [
        ("sofmax", "stage: expected playg:softmax, or another that `lab list` lists"),
        ("matmull", "stage: expected matmul, or another that `lab list` lists, got 'matmull'"),
        (
            "playg:sofmax",
            "version of playg: expected softmax, or another that `lab list playg` lists",
        ),
    ] {
        refused(lab().args(["run", name]), 2, &[said]);
    }
    refused(
        lab().args(["run", "playg:nothing"]),
        2,
        &["version of playg: expected copy_swapped", "'nothing'"],
    );
    refused(lab().args(["run", "playg"]), 2, &["version: expected playg:", "got 'playg'"]);
    refused(
        lab().args(["run", "playg:saxpy", "--dtype", "f8"]),
        2,
        &["--dtype: expected one of f16", "'f8'"],
    );
    refused(
        lab().args(["run", "playg:softmax", "--dtype", "f64"]),
        2,
        &["dtype of playg:softmax: expected f32, f16, bf16, got f64"],
    );
    refused(lab().args(["run", "playg:saxpy", "--dtype", "i32"]), 2, &["got i32"]);
    refused(lab().args(["run", "playg:saxpy", "--frobnicate"]), 2, &["--frobnicate"]);
    refused(lab().args(["run", "playg:saxpy", "--seed", "x"]), 2, &["--seed"]);
    let said = ["--seed: expected a value that is not negative, got '-1'"];
    refused(lab().args(["run", "playg:saxpy", "--seed", "-1"]), 2, &said);
    refused(
        lab().args(["run", "playg:saxpy", "--set", "b=1"]),
        2,
        &["--set of playg:saxpy: expected a, got 'b'"],
    );
    refused(
        lab().args(["run", "playg:saxpy", "--set", "a"]),
        2,
        &["--set: expected KEY=VALUE, got 'a'"],
    );
    refused(
        lab().args(["run", "playg:saxpy", "--set", "a=much"]),
        2,
        &["--set a: expected a finite number, got 'much'"],
    );
    refused(lab().args(["run", "playg:sum", "--set", "a=1"]), 2, &["expected no option, got 'a'"]);
    refused(lab().args(["compile", "nothing"]), 2, &["stage: expected playg"]);
    refused(
        lab().args(["list", "nothing"]),
        2,
        &["family or stage: expected adamw, add", "got 'nothing'"],
    );
    refused(lab().args(["list", "playg:x"]), 2, &["version of playg: expected copy_swapped"]);
    refused(lab().args(["dance"]), 2, &["dance"]);
}

#[test]
fn a_list_of_what_is_named() {
    let listed = |name: &str| -> Vec<String> {
        let output = lab().args(["--json", "list", name]).output().unwrap();
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let stages = said["stages"].as_array().unwrap();
        let versions = stages.iter().flat_map(|s| s["versions"].as_array().unwrap());
        versions.map(|v| v["name"].as_str().unwrap().to_owned()).collect()
    };
    let matmul = listed("matmul");
    assert!(matmul.len() > 10 && matmul.iter().all(|name| name.starts_with("matmul:")));
    assert_eq!(listed("playg:softmax"), ["playg:softmax"]);
    // A family is of several stages.
    let forward = listed("vlstm_fw");
    for stage in ["vlstm_fw_v1:", "vlstm_fw_v4:"] {
        assert!(forward.iter().any(|name| name.starts_with(stage)), "{forward:?}");
    }
    let text = lab().args(["list", "qkv_v1"]).output().unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("qkv_v1: ") && !text.contains("playg"), "{text}");
}

#[test]
fn sizes() {
    for (shape, said) in [
        ("N=0", "dimension N: expected 1 to 1099511627776, got 0"),
        ("N=-1", "--shape: expected NAME=SIZE"),
        ("N=1,N=2", "--shape: expected each name once, got N"),
        ("M=3", "--shape of playg:saxpy: expected N, got 'M'"),
        ("N", "--shape: expected NAME=SIZE[,NAME=SIZE…], got 'N'"),
        ("N=1000000000000", "at most 2^33 elements"),
        ("N=99999999999999999999999", "--shape: expected NAME=SIZE"),
    ] {
        refused(lab().args(["run", "playg:saxpy", "--shape", shape]), 2, &[said]);
    }
    // Of a stage each version takes the sizes that it knows.
    lab().args(["check", "qkv_v1", "--shape", "S=3,DHQK=2", "--dtype", "f32"]).assert().success();
    lab().args(["check", "playg", "--shape", "R=2,C=3", "--dtype", "f32"]).assert().success();
    let said = "left out, not in f64: playg:add, playg:mul";
    refused(lab().args(["check", "playg", "--shape", "N=3,C=2", "--dtype", "f64"]), 0, &[said]);
    refused(lab().args(["check", "playg:add", "--dtype", "f64"]), 2, &["dtype of playg:add"]);
    refused(
        lab().args(["check", "playg", "--shape", "R=2,Q=3"]),
        2,
        &["--shape of playg:", "got 'Q'"],
    );
    refused(
        lab().args(["run", "playg:softmax", "--shape", "R=5000000000"]),
        2,
        &["dimension R: expected 1 to 2147483647"],
    );
    for (shape, said) in [
        ("M=0", "dimension M: expected 1 to 2097120, got 0"),
        ("M=2097121", "dimension M: expected 1 to 2097120, got 2097121"),
        ("N=3000000", "dimension N: expected 1 to 2097120, got 3000000"),
        ("K=3000000000", "dimension K: expected 1 to 2097120, got 3000000000"),
        ("G=65536", "dimension G: expected 1 to 65535, got 65536"),
        ("R=3", "--shape of matmul:v4_blocks: expected G, M, N, K, got 'R'"),
    ] {
        refused(lab().args(["run", "matmul:v4_blocks", "--shape", shape]), 2, &[said]);
    }
    for (shape, said) in [
        ("S=0", "dimension S: expected 1 to 16777216, got 0"),
        ("DHQK=257", "dimension DHQK: expected 1 to 256, got 257"),
        ("DHHV=0", "dimension DHHV: expected 1 to 256, got 0"),
        ("NH=65536", "dimension NH: expected 1 to 65535, got 65536"),
        ("K=3", "--shape of qkv_v1:block_tile: expected B, NH, S, DHQK, DHHV, got 'K'"),
    ] {
        refused(lab().args(["run", "qkv_v1", "--shape", shape]), 2, &[said]);
    }
    for (shape, said) in [
        ("DHQK=272", "dimension DHQK: expected a multiple of 16 from 16 to 256, got 272"),
        ("DHHV=24", "dimension DHHV: expected a multiple of 16 from 16 to 256, got 24"),
        ("DHHV=0", "dimension DHHV: expected a multiple of 16 from 16 to 256, got 0"),
    ] {
        refused(lab().args(["run", "vlstm_fw_v0", "--shape", shape]), 2, &[said]);
        refused(lab().args(["run", "vlstm_fw_v1", "--shape", shape]), 2, &[said]);
    }
    refused(
        lab().args(["run", "vlstm_fw_v1", "--set", "eps=-1"]),
        2,
        &["--set eps: expected a number that is not negative, got -1"],
    );
    for (shape, said) in [
        ("S=0", "dimension S: expected 1 to 16777216, got 0"),
        ("DHQK=250", "dimension DHQK: expected a multiple of 16 from 16 to 256, got 250"),
        ("DHHV=512", "dimension DHHV: expected a multiple of 16 from 16 to 256, got 512"),
        ("N=3", ": expected B, NH, S, DHQK, DHHV, got 'N'"),
    ] {
        for stage in ["vlstm_fwbw_v0", "vlstm_fwbw_v1"] {
            refused(lab().args(["run", stage, "--shape", shape]), 2, &[said]);
        }
    }
    for (asked, said) in [
        (
            ["--shape", "DHQK=272"],
            "dimension DHQK: expected a multiple of 16 from 16 to 256, got 272",
        ),
        (
            ["--shape", "DHHV=512"],
            "dimension DHHV: expected a multiple of 16 from 16 to 256, got 512",
        ),
        (["--shape", "S=0"], "dimension S: expected 1 to 16777216, got 0"),
        (["--dtype", "f32"], "dtype of vlstm_fwbw_v3:v3_carried: expected f16, bf16, got f32"),
        (["--set", "eps=-1"], "--set eps: expected a number that is not negative, got -1"),
    ] {
        refused(lab().args(["run", "vlstm_fwbw_v3"]).args(asked), 2, &[said]);
    }
    for (asked, said) in [
        (
            ["--shape", "DHQK=144"],
            "dimension DHQK: expected a multiple of 16 from 16 to 128, got 144",
        ),
        (
            ["--shape", "DHHV=272"],
            "dimension DHHV: expected a multiple of 16 from 16 to 256, got 272",
        ),
        (["--dtype", "f32"], "dtype of vlstm_fwbw_v4:v2_segments: expected f16, bf16, got f32"),
        (
            ["--set", "state_grad=yes"],
            "--set state_grad: expected no, where no state C0, n0, m0 goes in, got yes",
        ),
        (["--set", "segments=7"], "--set segments: expected"),
    ] {
        refused(lab().args(["run", "vlstm_fwbw_v4:v2_segments"]).args(asked), 2, &[said]);
    }
    for (asked, said) in [
        (
            ["--shape", "DHQK=144"],
            "dimension DHQK: expected a multiple of 16 from 16 to 128, got 144",
        ),
        (
            ["--shape", "DHHV=144"],
            "dimension DHHV: expected a multiple of 16 from 16 to 128, got 144",
        ),
        (["--dtype", "f32"], "dtype of vlstm_fwbw_v2:v4_skip: expected f16, bf16, got f32"),
        (["--set", "normalizer_grad=no"], "normalizer_grad: expected constant or exact, got 'no'"),
    ] {
        refused(lab().args(["run", "vlstm_fwbw_v2"]).args(asked), 2, &[said]);
    }
    for (setting, said) in [
        ("normalizer_grad=both", "normalizer_grad: expected constant or exact, got 'both'"),
        ("eps=-1", "--set eps: expected a number that is not negative, got -1"),
        ("eps=small", "--set eps: expected a finite number, got 'small'"),
    ] {
        refused(lab().args(["run", "vlstm_fwbw_v0", "--set", setting]), 2, &[said]);
    }
    for (shape, said) in [
        ("B=65536", "dimension B: expected 1 to 65535, got 65536"),
        ("DHQK=528", "dimension DHQK: expected a multiple of 16 from 16 to 512, got 528"),
        ("DHHV=8", "dimension DHHV: expected a multiple of 16 from 16 to 512, got 8"),
        ("S=3", "--shape of vlstm_step:v2_slices: expected B, NH, DHQK, DHHV, got 'S'"),
    ] {
        refused(lab().args(["run", "vlstm_step:v2_slices", "--shape", shape]), 2, &[said]);
    }
    for (setting, said) in [
        ("state=f16", "--set state: expected auto or f32 or bf16, got 'f16'"),
        ("state=bf16", "tensor 'C0': expected f32 in a run of f32, got bf16"),
        ("lanes=5", "--set lanes: expected auto or 4 or 8 or 16 or 32, got '5'"),
        ("eps=-1", "--set eps: expected a number that is not negative, got -1"),
    ] {
        refused(lab().args(["run", "vlstm_step:v2_slices", "--set", setting]), 2, &[said]);
    }
    for (version, shape, said) in [
        ("v0_cell", "H=0", "dimension H: expected 1 to 32768, got 0"),
        ("v1_sequence", "H=257", "dimension H: expected 1 to 256, got 257"),
        ("v0_cell", "T=32769", "dimension T: expected 1 to 32768, got 32769"),
        ("v0_cell", "S=3", "--shape of lstm_fused:v0_cell: expected B, T, I, H, got 'S'"),
    ] {
        let version = format!("lstm_fused:{version}");
        refused(lab().args(["run", &version, "--shape", shape]), 2, &[said]);
    }
    for (version, shape, said) in [
        ("v0_sample", "B=2", "dimension B: expected 1 to 1, got 2"),
        ("v1_batch", "V=0", "dimension V: expected 1 to 1048576, got 0"),
        ("v1_tensor", "H=4097", "dimension H: expected 1 to 4096, got 4097"),
        ("v1_recomputed", "H=513", "dimension H: expected 1 to 512, got 513"),
        ("v2_resident", "E=65", "dimension E: expected 1 to 64, got 65"),
        ("v2_resident", "V=9000", "shared memory of a block, V=9000 E=12 H=20: expected at most"),
        ("v1_batch", "T=3", "--shape of mlp_fused:v1_batch: expected N, B, V, E, H, got 'T'"),
    ] {
        let version = format!("mlp_fused:{version}");
        refused(lab().args(["run", &version, "--shape", shape]), 2, &[said]);
    }
    refused(
        lab().args(["run", "mlp_fused:v1_batch", "--set", "lr=-1"]),
        2,
        &["--set lr: expected a number above 0, got -1"],
    );
    for blocks in ["0", "33", "1.5"] {
        refused(
            lab().args(["run", "qkv_v0", "--set", &format!("blocks={blocks}")]),
            2,
            &["--set blocks: expected a whole number from 1 to 32, got", blocks],
        );
    }
    refused(
        lab().args(["run", "matmul:v6_async", "--dtype", "f16"]),
        2,
        &["dtype of matmul:v6_async: expected f32, got f16"],
    );
    refused(
        lab().args(["run", "playg:softmax", "--input", "x", "--shape", "R=1"]),
        2,
        &["--shape"],
    );
}

#[test]
fn devices() {
    let with = |device: &str| {
        let mut lab = Command::cargo_bin("lab").unwrap();
        lab.env_remove("LAB_DEVICE").args(["run", "playg:saxpy", "--device", device]);
        lab
    };
    refused(&mut with("gpu"), 2, &["device: expected auto, cuda, cuda:N or emulator, got 'gpu'"]);
    refused(&mut with("cuda:x"), 2, &["got 'cuda:x'"]);
    refused(&mut with("cuda:99"), 4, &["no CUDA device"]);
    refused(lab().args(["bench"]), 4, &["timing needs a GPU"]);
    let mut by_variable = Command::cargo_bin("lab").unwrap();
    refused(by_variable.env("LAB_DEVICE", "abacus").arg("tour"), 2, &["got 'abacus'"]);
    let mut order = lab();
    refused(
        order.env("LAB_EMULATOR_ORDER", "sideways").args(["run", "playg:saxpy"]),
        2,
        &[
            "LAB_EMULATOR_ORDER: expected forward, reverse, warps, random[:SEED] or starve[:SEED], got \
           'sideways'",
        ],
    );
    refused(lab().env("LAB_EMULATOR_THREADS", "0").arg("tour"), 2, &["LAB_EMULATOR_THREADS"]);
}

#[test]
fn comparisons() {
    refused(
        lab().args(["compare", "nothing"]),
        2,
        &[
            "family or stage: expected adamw, add, append_to_cache, attention, attention_fwbw",
            "got 'nothing'",
        ],
    );
    refused(
        lab().args(["compare", "softmax", "--dtype", "f64"]),
        2,
        &["expected f32, f16, bf16, got f64"],
    );
    refused(lab().args(["compare", "softmax", "--dtype", "f7"]), 2, &["--dtype: expected one of"]);
    refused(
        lab().args(["compare", "softmax", "--shape", "C=0"]),
        2,
        &["dimension C: expected 1 to"],
    );
    refused(
        lab().args(["compare", "softmax", "--shape", "C=20000"]),
        2,
        &["dimension C: expected 1 to 16384, got 20000"],
    );
    refused(lab().args(["compare", "sum", "--svg", "/proc/x.svg"]), 2, &["/proc/x.svg"]);
    refused(lab().args(["bench", "nothing"]), 2, &["family or stage: expected adamw, add"]);
    let shape = &["shape: expected sizes of one of B=1,DHHV=64,DHQK=64,NH=32,S=4096, got 'S=5'"];
    refused(lab().args(["bench", "qkv", "--shape", "S=5"]), 2, shape);
    refused(lab().args(["bench", "qkv", "--shape", "S=x"]), 2, &["S=x"]);
    let names = &["version: expected one of qkv_v0:grid_tile, qkv_v1:", "got 'v9'"];
    refused(lab().args(["bench", "qkv", "--version", "v9"]), 2, names);
    let shape = "B=1,NH=32,S=4096,DHQK=64,DHHV=64";
    let all = &["judged-on: expected all sizes of qkv_v1:", "got 'S=64'"];
    refused(lab().args(["bench", "qkv", "--shape", shape, "--judged-on", "S=64"]), 2, all);
    let peers = &["no/such", "--peers: expected a directory with attention.py, attention_step.py"];
    refused(lab().args(["bench", "qkv", "--peers", "no/such"]), 2, peers);
    refused(lab().args(["history", "--from", "/nowhere"]), 2, &["/nowhere"]);
}

#[test]
fn tunings() {
    refused(
        lab().args(["tune", "matmul"]),
        4,
        &["tuning needs a GPU: the emulator has only the tiles", "--list shows"],
    );
    refused(
        lab().args(["tune", "playg:sum"]),
        2,
        &["version: expected one with tile parameters: matmul:v4_blocks", "'playg:sum' in f32"],
    );
    refused(lab().args(["tune", "matmul:v0_naive"]), 2, &["got 'matmul:v0_naive' in f32"]);
    refused(lab().args(["tune", "nothing"]), 2, &["stage: expected playg"]);
    refused(lab().args(["tune", "matmul", "--dtype", "f8"]), 2, &["--dtype: expected one of"]);
    refused(
        lab().args(["tune", "matmul:v6_async", "--dtype", "bf16"]),
        2,
        &["dtype of matmul:v6_async: expected f32, got bf16"],
    );
    refused(lab().args(["tune", "matmul", "--shape", "M=0"]), 2, &["dimension M: expected 1 to"]);
    refused(
        lab().args(["tune", "matmul", "--shape", "R=1"]),
        2,
        &["--shape of matmul:v0_naive: expected G, M, N, K, got 'R'"],
    );
    refused(lab().args(["tune", "matmul", "--runs", "0"]), 2, &["--runs"]);
    refused(lab().args(["tune", "matmul", "--limit", "0"]), 2, &["--limit"]);
    let list = lab().args(["tune", "matmul:v5_warps", "--list"]).output().unwrap();
    let text = String::from_utf8(list.stdout).unwrap();
    assert!(text.contains("BM=128 BN=128 BK=8 WM=64 WN=32 TM=8 TN=8  (in use)"), "{text}");
}

#[test]
fn parts_of_a_suite() {
    refused(
        lab().args(["selftest", "matmul", "--source", "kernels/v9.cu"]),
        2,
        &["--source: expected kernels/v0_naive.cu, ", "got 'kernels/v9.cu'"],
    );
    refused(lab().args(["selftest", "matmul", "--check", "nothing"]), 2, &["--check", "'nothing'"]);
    refused(lab().args(["selftest", "--source", "kernels/v0_naive.cu"]), 2, &["STAGE"]);
    refused(lab().args(["selftest", "matmul:v0"]), 2, &["version of matmul: expected v0_naive"]);
    // One version, without what is about several; and a file of which the checks of others launch nothing.
    let one = &["matmul:v0_naive", "--check", "a_batch_has"][..];
    let file = &["matmul", "--source", "kernels/v0_naive.cu", "--check", "_is_right"][..];
    let output = lab().arg("selftest").args(one).arg("--json").output().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&said["passed"], &said["devices"][0]["checks"]), (&true.into(), &1.into()));
    refused(lab().arg("selftest").args(file), 2, &["--check"]);
}

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn a_part_of_a_suite_is_counted() {
    let output = lab()
        .args(["selftest", "vlstm_step", "--small", "--source", "kernels/v0_simple.cu", "--json"])
        .output()
        .unwrap();
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // Of four versions one: a quarter of the 96 problems, its 13 checks, and two of the stage.
    assert_eq!((&said["passed"], &said["devices"][0]["problems"]), (&true.into(), &24.into()));
    assert_eq!(said["devices"][0]["checks"], 15);
}

#[test]
fn without_a_toolkit_the_fix_is_named() {
    if Path::new("/usr/local/cuda").exists() {
        println!("a toolkit is installed where it is always looked for");
        return;
    }
    // No Python on the path, so no wheels either.
    let mut command = lab();
    command.env("PATH", "/nowhere").env_remove("CUDA_HOME").env_remove("CUDA_PATH");
    refused(
        command.arg("compile"),
        4,
        &["NVRTC with its headers was not found", "pip install nvidia-cuda-nvrtc"],
    );
    // What is embedded nowhere is compiled by now: without a path there is no compiler either.
    assert_eq!(lab().arg("doctor").output().unwrap().status.code(), Some(0));
    let mut command = lab();
    command.env("PATH", "/nowhere").arg("doctor");
    assert_eq!(command.output().unwrap().status.code(), Some(0), "the emulator suffices");
    if lab_device::nvrtc::Nvrtc::get().is_ok() {
        refused(lab().args(["compile", "--arch", "sm_10"]), 1, &["does not compile for sm_10"]);
    }
}

#[test]
fn files() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let run = |input: &str| {
        let mut lab = lab();
        lab.args(["run", "playg:saxpy", "--input", input, "--output", &at("out.safetensors")]);
        lab
    };
    let f32s =
        |shape: &[usize]| Tensor::rounded(DType::F32, shape, &vec![1.0; shape.iter().product()]);
    let x = f32s(&[8]);

    refused(&mut run(&at("missing")), 2, &["missing: No such file"]);
    refused(&mut run(&directory.path().display().to_string()), 2, &["Is a directory"]);
    std::fs::write(at("text"), "these are no tensors").unwrap();
    refused(&mut run(&at("text")), 2, &["text: expected a safetensors file"]);
    let whole =
        std::fs::read(file(directory.path(), &[("x", x.clone()), ("y", x.clone())])).unwrap();
    std::fs::write(at("cut"), &whole[..whole.len() - 5]).unwrap();
    refused(&mut run(&at("cut")), 2, &["cut: expected a safetensors file"]);

    let foreign = file(directory.path(), &[("weight", x.clone())]);
    refused(&mut run(&foreign), 2, &["tensor 'x': expected a tensor", "got a file with weight"]);
    let wrong = file(
        directory.path(),
        &[("x", Tensor::rounded(DType::I32, &[8], &[1.0; 8])), ("y", x.clone())],
    );
    refused(&mut run(&wrong), 2, &["tensor 'x': expected f32 or f64 or f16 or bf16, got i32"]);
    let mixed = file(
        directory.path(),
        &[("x", x.clone()), ("y", Tensor::rounded(DType::F16, &[8], &[1.0; 8]))],
    );
    refused(&mut run(&mixed), 2, &["tensor 'y': expected f32 as 'x', got f16"]);
    let sizes = file(directory.path(), &[("x", x.clone()), ("y", f32s(&[9]))]);
    refused(&mut run(&sizes), 2, &["tensor 'y': expected N=8 as 'x', got f32 [9]"]);
    let shapes = file(directory.path(), &[("x", x.clone()), ("y", f32s(&[2, 4]))]);
    refused(&mut run(&shapes), 2, &["tensor 'y': expected the shape of 'x', [8], got f32 [2, 4]"]);
    let inner = file(directory.path(), &[("A", f32s(&[2, 3])), ("B", f32s(&[4, 5]))]);
    let product = |input: &str| {
        let mut lab = lab();
        lab.args(["run", "matmul", "--input", input, "--output", &at("out.safetensors")]);
        lab
    };
    refused(&mut product(&inner), 2, &["tensor 'B': expected K=3 as 'A', got f32 [4, 5]"]);
    let batch = file(directory.path(), &[("A", f32s(&[2, 3, 4])), ("B", f32s(&[3, 4, 5]))]);
    refused(&mut product(&batch), 2, &["tensor 'B': expected G=2 as 'A', got f32 [3, 4, 5]"]);
    let split = file(directory.path(), &[("A", f32s(&[2, 3, 4])), ("B", f32s(&[2, 1, 4, 5]))]);
    refused(&mut product(&split), 2, &["tensor 'B': expected [2] before K and N"]);
    let attention = |k: &[usize], v: &[usize]| {
        let q = f32s(&[1, 2, 3, 4]);
        let input = file(directory.path(), &[("q", q), ("k", f32s(k)), ("v", f32s(v))]);
        let mut lab = lab();
        lab.args(["run", "qkv_v1", "--input", &input, "--output", &at("out.safetensors")]);
        lab
    };
    refused(
        &mut attention(&[1, 2, 3, 5], &[1, 2, 3, 4]),
        2,
        &["tensor 'k': expected DHQK=4 as 'q', got f32 [1, 2, 3, 5]"],
    );
    refused(
        &mut attention(&[1, 2, 3, 4], &[1, 2, 5, 4]),
        2,
        &["tensor 'v': expected S=3 as 'q', got f32 [1, 2, 5, 4]"],
    );
    refused(
        &mut attention(&[1, 2, 3, 4], &[2, 3, 4]),
        2,
        &["tensor 'v': expected shape [\"B\", \"NH\", \"S\", \"DHHV\"], got f32 [2, 3, 4]"],
    );
    let gate = f32s(&[1, 2, 3]);
    let halves = Tensor::rounded(DType::F16, &[1, 2, 3], &gate.values());
    let qkv = f32s(&[1, 2, 3, 16]);
    let mut gated: Vec<_> = ["q", "k", "v"].map(|name| (name, qkv.clone())).into();
    let forward = |tensors: &[(&str, Tensor)]| {
        let mut lab = lab();
        let input = file(directory.path(), tensors);
        lab.args(["run", "vlstm_fw_v1", "--input", &input, "--output", &at("out.safetensors")]);
        lab
    };
    refused(&mut forward(&gated), 2, &["tensor 'i': expected a tensor [\"B\", \"NH\", \"S\"]"]);
    gated.extend([("i", gate), ("f", halves)]);
    let said = "tensor 'f': expected f32 in runs of every type, got f16";
    refused(&mut forward(&gated), 2, &[said]);
    let step = |tensors: &[(&str, Tensor)], setting: &str| {
        let mut lab = lab();
        let input = file(directory.path(), tensors);
        lab.args(["run", "vlstm_step:v2_slices", "--input", &input, "--set", setting]);
        lab.args(["--output", &at("out.safetensors")]);
        lab
    };
    let bf16 =
        |shape: &[usize]| Tensor::rounded(DType::BF16, shape, &vec![1.0; shape.iter().product()]);
    let (key, gate) = ([1, 2, 16], f32s(&[1, 2]));
    let mut token: Vec<_> = ["q", "k", "v"].map(|name| (name, bf16(&key))).into();
    token.extend([("i", gate.clone()), ("f", gate.clone()), ("n0", f32s(&key)), ("m0", gate)]);
    let said = "tensor 'C0': expected a tensor [\"B\", \"NH\", \"DHQK\", \"DHHV\"]";
    refused(&mut step(&token, "state=auto"), 2, &[said]);
    token.push(("C0", bf16(&[1, 2, 16, 32])));
    let said = "tensor 'C0': expected DHHV=16 as 'v', got bf16 [1, 2, 16, 32]";
    refused(&mut step(&token, "state=auto"), 2, &[said]);
    token.last_mut().expect("C0").1 = bf16(&[1, 2, 16, 16]);
    let said = "tensor 'C0': expected f32, as --set state says, got bf16";
    refused(&mut step(&token, "state=f32"), 2, &[said]);
    let empty = file(directory.path(), &[("x", f32s(&[0])), ("y", f32s(&[0]))]);
    refused(&mut run(&empty), 2, &["tensor 'x'", "dimension N: expected 1 to", "got 0"]);
    let scalar = file(directory.path(), &[("x", f32s(&[]))]);
    refused(
        lab().args(["run", "playg:softmax", "--input", &scalar]),
        2,
        &["tensor 'x': expected shape", "got f32 []"],
    );
    assert!(!Path::new(&at("out.safetensors")).exists(), "a refused run writes nothing");

    let good = file(directory.path(), &[("x", x.clone()), ("y", x.clone())]);
    let to = |path: &str| {
        let mut lab = lab();
        lab.args(["run", "playg:saxpy", "--input", &good, "--output", path]);
        lab
    };
    refused(&mut to(&at("no/such/folder/out")), 2, &["no/such/folder/out", "No such file"]);
    refused(
        &mut to(&directory.path().display().to_string()),
        2,
        &["expected a file to write, got a directory"],
    );
    refused(&mut to("/proc/out.safetensors"), 2, &["/proc/out.safetensors"]);
    refused(lab().args(["dev", "bundle", "/proc/bundle"]), 2, &["/proc/bundle"]);
}

#[test]
fn a_users_tensors_go_through_and_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let input = file(
        directory.path(),
        &[
            ("x", Tensor::new(&[2, 1, 3], &[1f32, 2.0, 3.0, f32::NAN, 0.0, 0.0])),
            ("other", Tensor::new(&[1], &[1i32])),
        ],
    );
    let target = directory.path().join("out.safetensors");
    let output = lab()
        .args(["run", "playg:softmax", "--json", "--input", &input, "--output"])
        .arg(&target)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not used: other"));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["passed"], true);
    assert_eq!(said["shape"], "C=3,R=2");
    let out = &tensor::read(&target).unwrap()["out"];
    assert_eq!(out.shape, [2, 1, 3]);
    let p = out.values();
    assert!((p[2] - 0.665_240_96).abs() < 1e-6, "{p:?}");
    assert!(p[3..].iter().all(|v| v.is_nan()), "a NaN is computed with, not refused: {p:?}");
}

/// Its findings are what is expected of it, so that looking for them succeeds; its result is wrong
/// all the same, and a time of it would say nothing.
#[test]
fn what_is_wrong_on_purpose() {
    let said = |arguments: &[&str], code: i32| {
        let output = lab().args(arguments).output().unwrap();
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        text
    };
    let check = said(&["check", "qkv_v0"], 0);
    assert!(check.contains("initcheck, as expected: uninitialised: q_tile["), "{check}");
    assert!(check.contains(": 0 findings, and "), "{check}");
    let run = said(&["run", "qkv_v0"], 1);
    assert!(run.contains("WRONG") && run.contains("it is wrong on purpose: each block"), "{run}");
    said(&["run", "qkv_v0", "--set", "blocks=1"], 0);
    let bench = said(&["bench", "qkv_v0"], 1);
    assert!(bench.contains("qkv_v0:grid_tile is wrong on purpose and is not timed: "), "{bench}");
    let compare = said(&["compare", "qkv"], 0);
    assert!(compare.contains("wrong on purpose, and neither timed nor counted"), "{compare}");
    assert!(said(&["list", "qkv_v0"], 0).contains("Wrong"));
    // A line a stage, a line a bug.
    let (stages, bugs) = (said(&["list"], 0), said(&["bug"], 0));
    assert!(stages.lines().count() <= 40 && stages.contains("qkv_v0"), "{stages}");
    assert!(bugs.lines().count() <= 160 && bugs.contains("tile-overwritten"), "{bugs}");
    assert!(said(&["bug", "--stage", "matmul"], 0).contains("Now and then a few elements"));
}

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn one_json_object_on_stdout() {
    for arguments in [
        &["tour"] as &[&str],
        &["doctor"],
        &["devices"],
        &["list"],
        &["run", "playg:sum"],
        &["profile", "playg:sum"],
        &["selftest", "qkv_v1", "--quick"],
        &["compare", "sum"],
        &["compare", "qkv"],
        &["check", "qkv_v0"],
        &["bench", "qkv_v0"],
        &["compare", "matmul"],
        &["tune", "matmul", "--list"],
        &["tune", "matmul"],
        &["history", "--from", "../../benches/history"],
        &["dev", "mutate", "playg", "--list"],
        &["bug"],
        &["lstm", "train", "--data", "nothing", "--out", "nothing.safetensors"],
        &["lstm", "test", "nothing"],
        &["lstm", "generate", "nothing"],
        &["run", "nothing"],
        &["compare", "nothing"],
        &["bench"],
    ] {
        let (text, object) = said_as_json(arguments);
        if arguments == ["compare", "matmul"] {
            let said = "Left out, for they are not in f32 (--dtype ";
            assert!(object["notes"].to_string().contains(said), "{}", object["notes"]);
        }
        if arguments == ["tour"] {
            assert!(text.contains("(wrong, as expected)"), "{text}");
        }
    }
}

/// A bundle needs the object of every kernel.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn a_bundle_is_one_json_object_on_stdout() {
    let directory = tempfile::tempdir().unwrap();
    said_as_json(&["dev", "bundle", directory.path().to_str().unwrap()]);
}

/// What a command says with `--json`: an object, with an error where it fails.
fn said_as_json(arguments: &[&str]) -> (String, serde_json::Value) {
    let output = lab().arg("--json").args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let object: serde_json::Value = serde_json::from_str(&text).expect(&text);
    assert!(object.is_object(), "{arguments:?}");
    assert_eq!(object.get("error").is_some(), !output.status.success(), "{arguments:?}");
    (text, object)
}

#[test]
fn the_cache_may_be_damaged_or_out_of_reach() {
    let directory = tempfile::tempdir().unwrap();
    let run = |cache: &str| {
        let output = lab().env("LAB_CACHE", cache).args(["run", "playg:sum"]).output().unwrap();
        assert!(output.status.success(), "{cache}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run("/proc/no-cache-here");
    let cache = directory.path().display().to_string();
    run(&cache);
    let objects: Vec<_> = std::fs::read_dir(directory.path().join("emulator"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    assert!(!objects.is_empty());
    for object in &objects {
        std::fs::write(object, "damaged").unwrap();
    }
    run(&cache);
    assert!(objects.iter().all(|o| std::fs::read(o).unwrap().len() > 1000), "replaced");
    // Many at once, all writing the same files.
    std::fs::remove_dir_all(directory.path().join("emulator")).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| run(&cache));
        }
    });
}

/// One line, and with `--json` an object as well.
#[test]
fn a_command_line_that_is_none_is_refused_in_a_line() {
    let digits = "7".repeat(614);
    let train = ["lstm", "train", "--data", "sine", "--out", "m.safetensors"];
    for (words, said) in [
        (&["dance"][..], "unrecognized subcommand 'dance'"),
        (&["run"], "were not provided: <STAGE|FILE.cu>; see lab run --help"),
        (&["run", "playg:saxpy", "--frobnicate"], "unexpected argument '--frobnicate'"),
        (&["run", "playg:saxpy", "--seed", "\u{1b}[2J\n"], "'\\u{1b}[2J\\n'"),
        (&["run", "play\ng"], "got 'play\\ng'"),
        (
            &[&train[..], &["--warm-up", &digits]].concat(),
            "--warm-up: expected a smaller whole number, got",
        ),
    ] {
        let output = lab().arg("--json").args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with("lab: ") && text.contains(said), "'{said}' in: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.len() < 400, "{text}");
        let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(object["error"].as_str(), text.trim_end().strip_prefix("lab: "));
        assert_eq!(object["exit"], 2);
    }
    let threads = "RAYON_NUM_THREADS: expected at most";
    refused(lab().env("RAYON_NUM_THREADS", "100000").arg("list"), 2, &[threads, "got 100000"]);
}

#[test]
fn what_has_no_end_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo").display().to_string();
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (path, said) in [("/dev/zero", "a device"), (&fifo[..], "a FIFO")] {
        let said = format!("{path}: expected a file, got {said}");
        for words in [
            &["run", "playg:saxpy", "--input", path][..],
            &["lstm", "train", "--out", "m.safetensors", "--data", path],
            &["lstm", "test", path],
            &["mlp", "train", "--out", "m.safetensors", path],
            &["mlp", "predict", path, "a"],
            &["check", "k.cu", "--kernel", "k", "--grid", "1", "--block", "1", "--args", path],
        ] {
            let mut lab = lab();
            let lab = lab.current_dir(&directory).args(words);
            refused(lab.timeout(std::time::Duration::from_secs(60)), 2, &[&said]);
        }
    }
}

#[test]
fn a_full_disk_or_a_reader_that_has_gone_ends_no_training() {
    use std::process::Stdio;

    let directory = tempfile::tempdir().unwrap();
    let full = || Stdio::from(std::fs::File::create("/dev/full").unwrap());
    let gone = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    let run = |words: &[&str], out: Stdio, errors: Stdio| {
        let mut lab = std::process::Command::new(assert_cmd::cargo::cargo_bin("lab"));
        lab.env_remove("LAB_DEVICE").current_dir(&directory).args(["--device", "emulator"]);
        lab.args(words).stdout(out).stderr(errors).output().unwrap()
    };
    let train =
        ["lstm", "train", "--data", "sine", "--epochs", "2", "--hidden", "2", "--window", "3"];
    let train = [&train[..], &["--stride", "50", "--out", "m.safetensors"]].concat();
    let model = directory.path().join("m.safetensors");
    for (out, errors, code) in [
        (full(), Stdio::piped(), 2),
        (full(), full(), 2),
        (Stdio::piped(), full(), 0),
        (gone(), Stdio::piped(), 0),
        (gone(), gone(), 0),
    ] {
        let output = run(&train, out, errors);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(code == 0 || text.is_empty() || text.contains("lab: standard output: No space"));
        std::fs::remove_file(&model).expect("a model");
    }
    for words in [&["list"][..], &["list", "--json"], &["--help"], &["devices"]] {
        assert_eq!(run(words, full(), full()).status.code(), Some(2), "{words:?}");
        // Closed by whoever has called it.
        let mut closed = std::process::Command::new("sh");
        closed.args(["-c", "exec \"$@\" >&-", "sh"]).arg(assert_cmd::cargo::cargo_bin("lab"));
        let output = closed.args(words).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains("lab: standard output: it is closed"), "{words:?}: {text}");
    }
}

/// Sizes that no memory has room for, wherever there is a `--shape`.
#[test]
fn sizes_that_memory_has_no_room_for() {
    let huge = ["R=2147483647,C=2147483647", "R=100000,C=60000"];
    for shape in huge {
        for command in ["run", "check", "compare", "profile"] {
            let said = ["--shape: expected", "elements"];
            let name = if command == "compare" { "softmax" } else { "playg:softmax" };
            refused(lab().args([command, name, "--shape", shape]), 2, &said);
        }
    }
    // Little goes in, and much comes out.
    for command in ["run", "check", "compare", "profile"] {
        let words = [command, "matmul", "--shape", "M=2097120,N=2097120,K=8"];
        refused(lab().args(words), 2, &["--shape: expected", "elements"]);
    }
}

#[test]
fn names_that_are_not_utf_8() {
    use std::os::unix::ffi::OsStrExt as _;
    let here = tempfile::tempdir().unwrap();
    let text = here.path().join(std::ffi::OsStr::from_bytes(b"\xff.txt"));
    std::fs::write(&text, "the cat sat on the mat\n".repeat(20)).unwrap();
    let said = ["TEXT: expected a file whose name is UTF-8, got"];
    let out = here.path().join("model.safetensors");
    refused(lab().args(["mlp", "train"]).arg(&text).arg("--out").arg(&out), 2, &said);
    assert!(!out.exists());
    let kernel = here.path().join(std::ffi::OsStr::from_bytes(b"\xff.cu"));
    std::fs::write(&kernel, "__global__ void k() {}\n").unwrap();
    let said = ["FILE.cu: expected a file whose name is UTF-8, got"];
    let sizes = ["--kernel", "k", "--grid", "1", "--block", "1"];
    refused(lab().arg("debug").arg(&kernel).args(sizes), 2, &said);
}

/// No command, and no word of one, is anything but a line on stderr, and with `--json` an object.
#[test]
fn words_that_are_not_utf_8() {
    use std::os::unix::ffi::OsStrExt as _;
    let word = || std::ffi::OsStr::from_bytes(b"\xffz");
    for (words, place) in [
        (&["run"][..], 5),
        (&["check"], 5),
        (&["list"], 5),
        (&["exercise"], 5),
        (&["compile", "playg", "--arch"], 7),
        (&["run", "playg:saxpy", "--shape"], 7),
        (&["lm", "generate", "m.safetensors", "--prompt"], 8),
    ] {
        let output = lab().arg("--json").args(words).arg(word()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        let expected = format!("argument {place}: expected UTF-8, got '\\xffz'");
        assert!(text.starts_with(&format!("lab: {expected}")), "{words:?}: {text}");
        let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&object["exit"], object["error"].as_str()), (&2.into(), Some(&expected[..])));
    }
    // Words that may be any bytes, as those of paths, and commands.
    for words in [&["run", "playg:saxpy", "--input"][..], &["lstm", "test"], &["app"], &[]] {
        refused(lab().args(words).arg(word()), 2, &["lab: "]);
    }
    let mut lab = Command::cargo_bin("lab").unwrap();
    let said = ["LAB_DEVICE: expected UTF-8, got '\\xffz'"];
    refused(lab.env("LAB_DEVICE", word()).arg("list"), 2, &said);
}

#[test]
fn a_gpu_for_what_only_the_emulator_does() {
    for arguments in
        [&["app", "none.cu"][..], &["dev", "corpus", "none"], &["dev", "corpus"], &["dev", "trace"]]
    {
        let mut command = Command::cargo_bin("lab").unwrap();
        command.env_remove("LAB_DEVICE").args(arguments).args(["--device", "cuda:7"]);
        refused(&mut command, 2, &["--device: expected emulator, which is where", "got 'cuda:7'"]);
    }
}

/// A link stays, and what it leads to is written; so is a pipe, and a device.
#[test]
fn results_go_through_links_and_pipes() {
    let here = tempfile::tempdir().unwrap();
    let (link, file) = (here.path().join("link"), here.path().join("file.safetensors"));
    std::os::unix::fs::symlink("file.safetensors", &link).unwrap();
    let run = |output: &Path| {
        lab().args(["run", "playg:sum", "--output"]).arg(output).assert().success();
    };
    run(&link);
    assert!(link.symlink_metadata().unwrap().is_symlink() && file.metadata().unwrap().is_file());
    assert!(tensor::read(&link).unwrap().contains_key("out"));
    let pipe = here.path().join("pipe");
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: a path that ends with NUL.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let from = pipe.clone();
    let reader = std::thread::spawn(move || std::fs::read(from).unwrap());
    run(&pipe);
    assert_eq!(reader.join().unwrap(), std::fs::read(&file).unwrap());
    run(Path::new("/dev/null"));
    assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
    // A training writes files beside it.
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for words in [
        ["lstm", "train", "--data", "sine"],
        ["mlp", "train", text, "--seed=1"],
        ["lm", "train", text, "--seed=1"],
    ] {
        let output = lab().args(words).args(["--out", "/dev/null"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains("--out: expected a file, beside which others"), "{words:?}: {said}");
    }
}

#[test]
fn the_help_names_the_exit_codes() {
    let help = Command::cargo_bin("lab").unwrap().arg("--help").output().unwrap();
    let text = String::from_utf8_lossy(&help.stdout).replace('\n', " ");
    assert_eq!(help.status.code(), Some(0));
    for (code, meaning) in [
        (0, "fine"),
        (1, "a result is wrong"),
        (2, "bad usage"),
        (3, "the emulator's"),
        (4, "no such"),
    ] {
        assert!(text.contains(&format!("{code} {meaning}")), "{code}: {text}");
    }
}

/// A stage stands for the version that takes the sizes; of a version that does not, one is named that does.
#[test]
fn a_stage_stands_for_the_version_that_takes_the_sizes() {
    let shape = "B=1,NH=1,S=20,DHQK=256,DHHV=32";
    let run = |name: &str| {
        let mut command = lab();
        command.args(["run", name, "--dtype", "bf16", "--shape", shape]);
        command
    };
    let output = run("vlstm_fwbw_v4").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.starts_with("vlstm_fwbw_v4:v4_wide "),
        "{text}{output:?}"
    );
    let said = ["DHQK: expected a multiple of 16 from 16 to 128, got 256", "takes it"];
    refused(&mut run("vlstm_fwbw_v4:v1_together"), 2, &said);
    refused(&mut run("vlstm_fwbw_v4:v1_together"), 2, &["; vlstm_fwbw_v4:v4_wide takes it"]);
}

/// A family stands for one of its versions, in whichever stage that is; for all of them where all are checked.
#[test]
fn a_family_stands_for_the_version_that_takes_the_problem() {
    let run = |arguments: &[&str]| {
        let output = lab().arg("run").args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let version = |arguments: &[&str]| run(arguments).split(' ').next().unwrap().to_owned();
    assert_eq!(version(&["softmax", "--shape", "R=2,C=9"]), "playg:softmax_registers");
    let shape = ["--shape", "B=1,NH=1,S=20,DHQK=256,DHHV=32"];
    let wide = |dtype| version(&[&["vlstm_fwbw", "--dtype", dtype][..], &shape].concat());
    assert_eq!(wide("bf16"), "vlstm_fwbw_v4:v4_wide");
    assert!(wide("f32").starts_with("vlstm_fwbw_v1:"));
    let checked = lab().args(["check", "softmax", "--shape", "R=2,C=9"]).output().unwrap();
    let text = String::from_utf8(checked.stdout).unwrap();
    for version in ["playg:softmax ", "playg:softmax_online ", "playg:softmax_registers "] {
        assert!(text.contains(version), "{version} in: {text}");
    }
    // What a version's type refuses, another takes; what none takes, none does.
    let f32 = ["vlstm_fwbw_v3", "--dtype", "f32"];
    for command in ["run", "profile"] {
        let said = ["dtype of vlstm_fwbw_v3:v3_carried", "; vlstm_fwbw_v1:", " takes it"];
        refused(lab().arg(command).args(f32), 2, &said);
    }
    let none = lab().args(["run", "playg:softmax", "--dtype", "f64"]).output().unwrap();
    assert!(!String::from_utf8(none.stderr).unwrap().contains("takes it"));
}

/// Options that nothing would use, and values that say what was expected.
#[test]
fn what_has_no_effect_is_refused() {
    refused(lab().args(["dev", "history", "--corpus", "NONE"]), 2, &["--write"]);
    refused(lab().args(["dev", "corpus", "--source", "kernels/race.cu"]), 2, &["--fail-fast"]);
    for command in [&["list"][..], &["history"], &["exercise"], &["bug"]] {
        let mut lab = Command::cargo_bin("lab").unwrap();
        let said = ["device: expected auto, cuda, cuda:N or emulator, got 'rubbish'"];
        refused(lab.env_remove("LAB_DEVICE").args(command).args(["--device", "rubbish"]), 2, &said);
    }
    let train = ["lstm", "train", "--data", "sine", "--out", "none.safetensors"];
    for (option, value, said) in [
        (
            "--decay-factor",
            "0.5",
            "--decay-factor: expected --schedule step, which uses it, got cosine",
        ),
        ("--decay-every", "3", "--decay-every: expected --schedule step"),
        ("--momentum", "0.5", "--momentum: expected --optimizer sgd, which uses it, got adam"),
        ("--epochs", "x", "--epochs: expected a whole number that is not negative, got 'x'"),
        ("--epochs", "", "--epochs: expected a whole number that is not negative, got ''"),
        ("--epochs", "-3", "--epochs: expected a whole number that is not negative, got '-3'"),
    ] {
        refused(lab().args(train).args([option, value]), 2, &[said]);
    }
    use std::os::unix::ffi::OsStrExt as _;
    let threads = std::ffi::OsStr::from_bytes(b"\xff");
    let said = ["LAB_EMULATOR_THREADS: expected a number of threads from 1 to 256, got"];
    refused(lab().env("LAB_EMULATOR_THREADS", threads).args(["run", "playg:sum"]), 2, &said);
}

/// Commands that said something else than one object.
#[test]
fn one_json_object_of_what_fails_or_is_found() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("none.cu");
    let kernel = "__global__ void k(int* out) { out[threadIdx.x] = 1; }\n";
    std::fs::write(&file, kernel).unwrap();
    let object = |command: &mut Command, code: i32| -> serde_json::Value {
        let output = command.current_dir(&here).arg("--json").output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let found = object(lab().args(["dev", "corpus", "tile_without_barrier"]), 3);
    assert_eq!((&found["judgement"], &found["right"]), (&"Found".into(), &true.into()));
    assert_eq!(found["findings"][0]["check"], "racecheck");
    assert_eq!(object(lab().args(["app", "none.cu"]), 2)["exit"], 2);
    let order = object(lab().env("LAB_EMULATOR_ORDER", "sideways").arg("doctor"), 2);
    assert!(order["error"].as_str().unwrap().contains("got 'sideways'"), "{order}");
    let debug = || {
        let mut lab = lab();
        lab.args(["debug", "none.cu", "--kernel", "k", "--grid", "1", "--block", "4"]);
        lab.args(["--arg", "out=out:i32[4]"]);
        lab
    };
    let said = object(debug().args(["--batch", "--ex", "print 6 * 7"]), 0);
    assert!(said["gdb"].as_str().unwrap().contains("$1 = 42"), "{said}");
    assert_eq!(object(&mut debug(), 2)["exit"], 2);
    assert_eq!(object(lab().args(["dev", "corpus", "--maps"]), 2)["exit"], 2);
}

/// A name that a file has twice, for all that read one.
#[test]
fn a_tensor_that_a_file_has_twice_is_refused() {
    let here = tempfile::tempdir().unwrap();
    let x = r#""x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    let header = format!("{{{x},{x}}}");
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat();
    let path = here.path().join("twice.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let said = ["twice.safetensors: expected each tensor's name once, got 'x' twice"];
    refused(lab().args(["run", "playg:sum", "--input"]).arg(&path), 2, &said);
    let kernel = "__global__ void k(const float* x) {}\n";
    std::fs::write(here.path().join("k.cu"), kernel).unwrap();
    let mut check = lab();
    check.args(["check", "k.cu", "--kernel", "k", "--grid", "1", "--block", "1", "--arg"]);
    check.arg("x=in:f32[2]=@twice.safetensors[x]").current_dir(&here);
    refused(&mut check, 2, &["expected each tensor's name once, got 'x' twice in twice"]);
}

/// A process that dies while it writes, here of a limit, leaves nothing.
#[test]
fn a_write_that_is_killed_leaves_no_draft() {
    let here = tempfile::tempdir().unwrap();
    let run = ["run", "playg:copy", "--shape", "R=100,C=1000", "--device", "emulator"];
    // The kernel is compiled before: the limit is for what this command writes.
    lab().args(run).assert().success();
    let mut killed = Command::new("sh");
    killed.args(["-c", "ulimit -f 8 && exec \"$@\"", "sh"]).current_dir(&here);
    killed.arg(assert_cmd::cargo::cargo_bin("lab")).env_remove("LAB_DEVICE");
    let output = killed.args(run).args(["--output", "out.safetensors"]).output().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(libc::SIGXFSZ), "{output:?}");
    let left: Vec<_> = std::fs::read_dir(&here).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// What the README shows is what is printed: stages, versions and words, on a screen of 80 columns.
#[test]
fn the_tour_fits_a_screen_and_is_the_readmes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = lab().current_dir(&root).env("COLUMNS", "80").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    // With a target directory of one's own it names its file.
    let own = assert_cmd::cargo::cargo_bin("lab");
    let text = text.replace(&*own.to_string_lossy(), "cargo run --quiet --");
    assert!(text.lines().count() <= 32, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for stage in lab_registry::STAGES {
        assert!(text.contains(&format!("\n {} ", stage.name)), "{}: {text}", stage.name);
    }
    // The command that it ends with is one: an exercise's hint changes nothing.
    let command = text.lines().find_map(|l| l.strip_prefix("Try one yourself: ")).unwrap();
    let words = command.strip_prefix("cargo run --quiet -- ").unwrap();
    lab().current_dir(&root).args(words.split(' ')).arg("--hint").assert().success();

    // Of this machine: threads, seconds, and what was solved.
    let rows = |text: &str| -> Vec<String> {
        let is_stage = |name: &str| lab_registry::STAGES.iter().any(|s| s.name == name);
        let is_row = |line: &&str| {
            line.starts_with(' ') && line.split_whitespace().next().is_some_and(is_stage)
        };
        text.lines().filter(is_row).map(str::to_owned).collect()
    };
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let shown =
        readme.split("<!-- tour -->").nth(1).unwrap().split("<!-- /tour -->").next().unwrap();
    let (shown, all) = (rows(shown), rows(&text));
    assert!(shown.len() >= 4 && shown[0] == all[0] && shown.last() == all.last(), "{shown:?}");
    assert!(shown.iter().all(|row| all.contains(row)), "{shown:?} of {all:?}");
    let words = readme.split_whitespace().count();
    assert!(words <= 900, "README.md: {words} words");
    for (name, path, from, to) in [
        (
            "sentence.rs",
            "shared/models/lm/examples/sentence.rs",
            "// ANCHOR: model\n",
            "    // ANCHOR_END",
        ),
        ("first.py", "shared/python/examples/first.py", "", "\nh.square"),
    ] {
        let file = std::fs::read_to_string(root.join(path)).unwrap();
        let part = file.split_once(from).unwrap().1.split(to).next().unwrap();
        let part: Vec<&str> =
            part.trim_end().lines().map(|l| l.strip_prefix("    ").unwrap_or(l)).collect();
        let block = readme.split(&format!("<!-- as {name} -->")).nth(1).unwrap();
        let block: Vec<&str> = block.split("```").nth(1).unwrap().lines().skip(1).collect();
        assert_eq!(block, part, "{name}");
    }
}

/// What only maintainers need stands apart; by its old name it is refused, with the new one.
#[test]
fn what_maintainers_need_stands_apart() {
    for (words, now) in [
        (&["corpus", "--fail-fast"][..], "corpus: expected `lab dev corpus`"),
        (&["mutate", "playg", "--list"], "mutate: expected `lab dev mutate`"),
        (&["trace"], "trace: expected `lab dev trace`"),
        (&["bundle", "directory"], "bundle: expected `lab dev bundle`"),
        (&["history", "--write", "none"], "--write: expected `lab dev history --write`"),
        (&["compile", "--write", "none"], "--write: expected `lab dev compile --write`"),
        (&["compile", "--images", "none"], "--images: expected `lab dev compile --images`"),
        (&["exercise", "--all"], "--all: expected `lab dev exercise --all`"),
    ] {
        refused(lab().args(words), 2, &[now]);
    }
    let help = |words: &[&str]| {
        let output = lab().args(words).arg("--help").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let all = help(&[]);
    assert!(all.lines().count() <= 40, "{all}");
    // But for what names a variable with its value.
    let own = all.lines().filter(|line| !line.contains("LAB_DEVICE"));
    assert!(own.clone().all(|line| line.chars().count() <= 80), "{all}");
    for name in ["corpus", "mutate", "trace", "bundle"] {
        assert!(!all.contains(&format!("\n  {name} ")), "{name}: {all}");
        assert!(help(&["dev"]).contains(&format!("\n  {name} ")), "{name}");
        // Alone it lists them, too.
        let alone = lab().arg("dev").output().unwrap();
        let listed = String::from_utf8(alone.stderr).unwrap();
        assert!(listed.contains(&format!("\n  {name} ")), "{listed}");
        assert_eq!(alone.status.code(), Some(2), "{listed}");
    }
    for (command, option) in
        [("history", "--write"), ("compile", "--images"), ("exercise", "--all")]
    {
        assert!(!help(&[command]).contains(option), "{command}");
        assert!(help(&["dev", command]).contains(option), "{command}");
    }
}

/// Without a GPU `--repeat` tells what the record measured, and why it does not measure it again.
#[test]
fn a_record_that_cannot_be_repeated_is_shown() {
    // In the clone, where the scripts of its libraries are.
    let record = "benches/history/20261129T182509Z-nvidia-h200-97bbbe5a67ee.json";
    let mut lab = lab();
    let output = lab.current_dir("../..").args(["bench", "--repeat", record]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let [said, why] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    for shown in ["2026-11-29T18:25:09Z, NVIDIA H200", "v6_wgmma_back", "1949.2", "cudnn"] {
        assert!(said.contains(shown), "{said}");
    }
    assert!(why.contains("timing needs a GPU"), "{why}");
}

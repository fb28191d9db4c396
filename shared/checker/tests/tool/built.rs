//! A program as nvcc builds it, with its kernels as PTX in it: made here by the host's compiler, so that no nvcc is needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run;

fn sources() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "app", "programs", "built"].iter().collect()
}

fn compile(here: &Path, words: &[&str]) {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let output = Command::new(compiler).current_dir(here).args(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The program, linked as with a toolkit's `libcudart.so` of a version: which is not there when it runs.
fn build(here: &Path, version: u32, more: &[&str]) {
    let host = fs::read_to_string(sources().join("host.cpp")).unwrap();
    // Their names are all that the linker wants.
    let mut names: Vec<&str> = host
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("cuda") || word.starts_with("__cuda"))
        .collect();
    names.sort_unstable();
    names.dedup();
    let text: Vec<String> = names.iter().map(|name| format!("void {name}(void) {{}}")).collect();
    fs::write(here.join("names.c"), text.join("\n")).unwrap();
    let soname = format!("libcudart.so.{version}");
    fs::write(here.join("exports"), format!("{soname} {{ global: *; }};")).unwrap();
    let soname = format!("-Wl,-soname,{soname}");
    let library = ["-xc", "-shared", "-fPIC", &soname, "-Wl,--version-script=exports", "names.c"];
    compile(here, &[&library[..], &["-o", "stand_in.so"]].concat());
    let kernels = format!("-DKERNELS=\"{}\"", sources().join("kernels.ptx").display());
    let host = sources().join("host.cpp").display().to_string();
    let own = ["-std=c++17", &kernels, &host, "stand_in.so", "-o", "program"];
    compile(here, &[&own[..], more].concat());
    fs::remove_file(here.join("stand_in.so")).unwrap();
}

/// A line of kernels.cu, from 1.
fn line_of(text: &str) -> usize {
    let source = fs::read_to_string(sources().join("kernels.cu")).unwrap();
    source.lines().position(|line| line.contains(text)).unwrap() + 1
}

fn app(here: &Path, words: &str) -> (Option<i32>, String, String) {
    run(here, &[&["app", "./program"][..], &words.split_whitespace().collect::<Vec<_>>()].concat())
}

#[test]
fn a_program_that_nvcc_has_built_runs_as_it_is() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    build(here, 13, &[]);
    let (code, stdout, stderr) = app(here, "-- add");
    assert_eq!(code, Some(3), "{stderr}");
    assert_eq!(stdout, "cudaErrorLaunchFailure\n");
    assert!(stderr.contains("./program, as it is, on sm_90\n"), "{stderr}");
    let expected = format!(
        "add, launch 1, memcheck: out of bounds: argument_0[1000] (f32, 1000 elements), 0 bytes past the end of \
         argument_0, which has 4000 bytes\n  read of 4 bytes at kernels.cu:{}:5 by block (3,0,0), thread (232,0,0)",
        line_of("one too many")
    );
    let other = expected.replace("argument_0", "argument_1");
    assert!(stderr.contains(&expected) || stderr.contains(&other), "{stderr}\n{expected}");
    assert!(stderr.contains("1 launch, 1 finding; the program ended with 0"), "{stderr}");

    // Constants, variables with initial values, static and dynamic shared memory, a struct by value, pinned memory, printf.
    let (code, stdout, stderr) = app(here, "-- scaled");
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert_eq!(stdout, "before, of 256: 254\nof 256: 0\ncounted 517\n");
    assert!(stderr.contains("2 launches, 0 findings; the program ended with 0"), "{stderr}");

    let (code, stdout, stderr) = app(here, "-- registered");
    assert_eq!((code, stdout.as_str()), (Some(0), "of 128: 681\n"), "{stderr}");

    let (code, stdout, stderr) = app(here, "-- refused");
    assert_eq!((code, stdout.as_str()), (Some(0), "cudaErrorNotSupported\n"));
    assert!(stderr.contains("app: cudaIpcGetMemHandle is not supported\n"), "{stderr}");

    let (code, stdout, _) = app(here, "--json -- add");
    assert_eq!(code, Some(3));
    let told: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&told["launches"], &told["findings"][0]["kernel"]), (&1.into(), &"add".into()));
}

#[test]
fn however_a_built_program_ends_there_is_a_report() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    build(here, 12, &[]);
    let (code, _, stderr) = app(here, "");
    assert_eq!(code, Some(7), "{stderr}");
    let (code, _, stderr) = app(here, "-- fault");
    assert_eq!(code, Some(128 + 11), "{stderr}");
    assert!(stderr.contains("the program's host code was ended: signal: 11"), "{stderr}");
    let (code, _, stderr) = app(here, "--timeout 1 -- spin");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("program: expected an end within 1 s, got none"), "{stderr}");
    let (code, _, stderr) = app(here, "--memory 64MiB -- scaled");
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn what_is_no_program_with_ptx_is_refused_in_one_line() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    build(here, 13, &["-DENTRY=2"]);
    let (code, stdout, stderr) = app(here, "-- scaled");
    assert_eq!(code, Some(1), "{stdout}{stderr}");
    let expected = "device code: expected PTX, got machine code alone (sm_90); build it with nvcc -cudart shared -lineinfo";
    assert!(stderr.contains(expected), "{stderr}");
    // A GPU that the PTX is too new for.
    build(here, 13, &[]);
    let (_, _, stderr) = app(here, "--arch sm_80 -- scaled");
    let expected = "device code: expected PTX for sm_80 or older, got that for compute_90";
    assert!(stderr.contains(expected), "{stderr}");
    // With the library inside.
    fs::write(
        here.join("names.cpp"),
        "extern \"C\" {\n".to_owned() + &fs::read_to_string(here.join("names.c")).unwrap() + "\n}",
    )
    .unwrap();
    let kernels = format!("-DKERNELS=\"{}\"", sources().join("kernels.ptx").display());
    let host = sources().join("host.cpp").display().to_string();
    compile(here, &["-std=c++17", &kernels, &host, "names.cpp", "-o", "program"]);
    let (code, _, stderr) = app(here, "");
    assert_eq!(code, Some(2), "{stderr}");
    assert!(
        stderr.contains(
            "expected a program that finds libcudart.so when it starts, got one that has it inside"
        ),
        "{stderr}"
    );
    let (code, _, stderr) = run(here, &["app", "./program", "names.cpp"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(
        stderr.contains("expected files of source, or one program that is built, got 2 files"),
        "{stderr}"
    );
}

/// The same by nvcc itself, where it is installed.
#[test]
fn nvcc_is_a_front() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    let source = fs::read_to_string(sources().join("kernels.cu")).unwrap();
    let main = "\nint main() {\n    float* x;\n    cudaMalloc(&x, 4000);\n    cudaMemset(x, 0, 4000);\n    \
                add<<<4, 256>>>(x, x, x, 1000);\n    return cudaDeviceSynchronize() == cudaSuccess;\n}\n";
    fs::write(here.join("whole.cu"), source.clone() + main).unwrap();
    let (code, _, stderr) = run(here, &["app", "whole.cu", "--front", "nvcc"]);
    if code == Some(4) {
        assert!(stderr.contains("pip install nvidia-cuda-nvcc"), "{stderr}");
        eprintln!("skipped: {stderr}");
        return;
    }
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("whole.cu, built by nvcc "), "{stderr}");
    let place = format!("whole.cu:{}:5 by block (3,0,0)", line_of("one too many"));
    assert!(stderr.contains(&place), "{stderr}");
    let launch = "--front nvcc --kernel add --grid 4 --block 256 --arg in:float[1000] --arg in:float[1000] --arg \
                  out:float[1000] --arg 1000";
    let words: Vec<&str> =
        ["check", "whole.cu"].into_iter().chain(launch.split_whitespace()).collect();
    let (code, stdout, stderr) = run(here, &words);
    assert_eq!(code, Some(3), "{stdout}{stderr}");
    assert!(stdout.contains(&place), "{stdout}");
    let (code, stdout, stderr) = run(here, &["check", "whole.cu", "--front", "nvcc"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains(" check whole.cu --front nvcc --kernel add "), "{stdout}");
    fs::write(here.join("wrong.cu"), "__global__ void k() { unknown(); }\nint main() {}\n")
        .unwrap();
    let (code, _, stderr) = run(here, &["app", "wrong.cu", "--front", "auto"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("wrong.cu:1: error: identifier \"unknown\" is undefined"), "{stderr}");
}

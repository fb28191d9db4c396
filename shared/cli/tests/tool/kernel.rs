//! One kernel of anybody's file: what is found, what is compared, what is refused.

use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;

const SUM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../app/programs/sum.cu");

/// Kernels with what `lab check` has to cope with: a namespace, an overload, a struct, host code that does
/// not link, a name of the file's own for a type.
const KERNELS: &str = r"
#include <cstdio>
typedef float real;
struct Both { const real* x; float add; };
void elsewhere(int);
namespace own {
__global__ void add(Both both, real* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = both.x[i] + both.add;
}
}
template <int N> __global__ void tile(int* y) { y[threadIdx.x] = N; }
__global__ void twice(float* x) { x[threadIdx.x] *= 2; }
__global__ void twice(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }
struct Node { int edges; float weight; };
__global__ void weigh(const Node* nodes, float* y) {
    y[blockIdx.x] = nodes[blockIdx.x].edges * nodes[blockIdx.x].weight;
}
__global__ void quads(const float* x, float* y) {
    __shared__ float s[2][4];
    *(float4*)s[threadIdx.x] = *(const float4*)(x + 4 * threadIdx.x);
    __syncthreads();
    y[threadIdx.x] = s[1 - threadIdx.x][3];
}
__global__ void endless(int* y) { while (true) y[threadIdx.x] += 1; }
int main() { elsewhere(1); twice<<<1, 1>>>(nullptr); }
";

fn lab(directory: &Path, command: &str) -> Command {
    let mut lab = Command::cargo_bin("lab").unwrap();
    lab.env_remove("LAB_DEVICE").current_dir(directory).arg(command);
    lab
}

/// Exit code, stdout and stderr.
fn outcome(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

fn here() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("k.cu"), KERNELS).unwrap();
    std::fs::copy(SUM, directory.path().join("sum.cu")).unwrap();
    directory
}

/// `lab COMMAND WORDS`, where words stand apart by spaces.
fn run(directory: &Path, command: &str, words: &str) -> (i32, String, String) {
    outcome(lab(directory, command).args(words.split_whitespace()))
}

const LAUNCH: &str = "sum.cu --kernel sum_blocks --grid 8 --block 128 --shared 512";

#[test]
fn a_race_is_found_at_its_line_and_a_right_kernel_passes() {
    let here = here();
    let here = here.path();
    let arguments = "--arg in:f32[n] --arg out:f32[8] --arg 1000";
    let (code, stdout, stderr) = run(here, "check", &format!("{LAUNCH} {arguments}"));
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stdout.contains("sum_blocks<T = float> at sum.cu:9: grid 8, block 128, 512"),
        "{stdout}"
    );
    assert!(stdout.contains("0 findings"), "{stdout}");
    let sarif = "--sarif found.sarif --json";
    let wrong = format!("{LAUNCH} -D FORGETFUL {arguments} {sarif}");
    let (code, stdout, stderr) = run(here, "check", &wrong);
    assert_eq!(code, 3, "{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (&report["exit"], &report["findings"][0]["check"]),
        (&3.into(), &"racecheck".into())
    );
    assert!(report["findings"][0]["places"][0].as_str().unwrap().starts_with("sum.cu:15:"));
    let log: Value =
        serde_json::from_slice(&std::fs::read(here.join("found.sarif")).unwrap()).unwrap();
    let result = &log["runs"][0]["results"][0];
    assert_eq!((&log["version"], &result["ruleId"]), (&"2.1.0".into(), &"racecheck".into()));
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "sum.cu");
    assert_eq!(place["region"]["startLine"], 15);
    assert_sarif(&log, "log", "$");
    let (code, _, stderr) = run(here, "check", &format!("{LAUNCH} {arguments} --memory 1"));
    assert_eq!(code, 2, "{stderr}");
    // The launch has forgotten what the kernel uses.
    let forgotten = LAUNCH.replace(" --shared 512", "");
    let (code, stdout, stderr) = run(here, "check", &format!("{forgotten} {arguments}"));
    assert_eq!(code, 3, "{stderr}");
    assert!(stdout.contains("dynamic shared memory has 0 bytes in this launch"), "{stdout}");
    assert!(stdout.contains("sum.cu:12:") && stdout.contains("--shared"), "{stdout}");
    // 4 bytes each are more than there may be.
    let large = "--arg in:f32[100000000] --arg out:f32[8] --arg 1000 --memory 256MiB";
    let (code, _, stderr) = run(here, "check", &format!("{LAUNCH} {large}"));
    assert_eq!(code, 2, "{stderr}");
    assert!(
        stderr.contains("--arg x: expected at most 268435456 bytes, got 400000000"),
        "{stderr}"
    );
}

/// What the schema of SARIF 2.1.0 says of the objects that are written: those of its properties that are used,
/// with the kind of each, and `!` behind those that must be there.
const SARIF: [(&str, &str); 13] = [
    ("log", "$schema:uri version!:2.1.0 runs!:[run]"),
    ("run", "tool!:tool results:[result] columnKind:utf16CodeUnits|unicodeCodePoints"),
    ("tool", "driver!:component"),
    ("component", "name!:text version:text rules:[rule]"),
    ("rule", "id!:text shortDescription:message defaultConfiguration:configuration"),
    ("configuration", "level:none|note|warning|error"),
    (
        "result",
        "ruleId:text ruleIndex:number level:none|note|warning|error message!:message \
         locations:[location] relatedLocations:[location] properties:bag",
    ),
    ("message", "text!:text"),
    ("location", "physicalLocation:physical"),
    ("physical", "artifactLocation:artifact region:region"),
    ("artifact", "uri:uri"),
    ("region", "startLine:place startColumn:place"),
    ("bag", ""),
];

fn assert_sarif(value: &Value, kind: &str, at: &str) {
    if let Some(of) = kind.strip_prefix('[') {
        let of = of.trim_end_matches(']');
        let all = value.as_array().unwrap_or_else(|| panic!("{at}: {value}"));
        return all.iter().for_each(|one| assert_sarif(one, of, at));
    }
    let Some((_, properties)) = SARIF.iter().find(|(name, _)| *name == kind) else {
        let is_fine = match kind {
            "text" => value.as_str().is_some_and(|t| !t.is_empty()),
            "uri" => value.as_str().is_some_and(|t| !t.is_empty() && !t.contains([' ', '\\'])),
            "number" => value.as_i64().is_some_and(|n| n >= 0),
            "place" => value.as_i64().is_some_and(|n| n >= 1),
            one_of => value.as_str().is_some_and(|t| one_of.split('|').any(|o| o == t)),
        };
        return assert!(is_fine, "{at}: expected {kind}, got {value}");
    };
    let object = value.as_object().unwrap_or_else(|| panic!("{at}: {value}"));
    let known: Vec<(&str, &str)> =
        properties.split_whitespace().filter_map(|p| p.split_once(':')).collect();
    for (name, of) in &known {
        let (name, must) = (name.trim_end_matches('!'), name.ends_with('!'));
        match object.get(name) {
            Some(inner) => assert_sarif(inner, of, &format!("{at}.{name}")),
            None => assert!(!must, "{at}: expected {name}"),
        }
    }
    let is_known = |name: &String| known.iter().any(|(k, _)| k.trim_end_matches('!') == name);
    assert!(kind == "bag" || object.keys().all(is_known), "{at}: {object:?}");
}

#[test]
fn what_nobody_has_written_is_a_finding() {
    let here = here();
    let words = format!("{LAUNCH} --arg in:f32[n] --arg out:f32[10] --arg 1000");
    let (code, stdout, _) = run(here.path(), "check", &words);
    assert_eq!(code, 3, "{stdout}");
    let told =
        "initcheck: 2 of 10 elements of out 'sums' never got a value from the kernel at sum.cu:9";
    assert!(stdout.contains(told) && stdout.contains("the first: sums[8]"), "{stdout}");
}

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn files_templates_structs_and_overloads() {
    let here = here();
    let here = here.path();
    // A struct whose memory stands apart; what main calls is nowhere.
    let file = r#"kernel = "own::add"
        grid = "(n + 31) / 32"
        block = [32]
        [args]
        both = "Both{x, 0.5f}"
        y = "out:real[n]"
        n = 100
        [let]
        x = "in:real[n]=arange""#;
    std::fs::write(here.join("add.toml"), file).unwrap();
    let (code, _, stderr) = run(here, "check", "k.cu --args add.toml --output y.safetensors");
    assert_eq!(code, 0, "{stderr}");
    // The command line comes before the file.
    let more = "--arg n=4 --expect y=@y.safetensors[y]";
    let (code, _, stderr) = run(here, "run", &format!("k.cu --args add.toml {more}"));
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("--expect y: expected shape [4], got [100]"), "{stderr}");
    let (code, stdout, stderr) =
        run(here, "run", "k.cu --args add.toml --expect y=@y.safetensors[y]");
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("0.500000 1.500000 2.500000"), "{stdout}");
    let (code, stdout, _) =
        run(here, "check", "k.cu --kernel tile<3> --grid 1 --block 4 --arg out:int[4] --json");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &report["kernel"]), (0, &"tile<int N = 3>".into()));
    let (code, stdout, stderr) = run(
        here,
        "run",
        "k.cu --kernel twice --grid 1 --block 4 --arg inout:f32[4]=1 --arg 3 --output z.safetensors",
    );
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("2.000000 2.000000 2.000000 1.000000"), "{stdout}");
    // Each element as C++ has it; a grid that is a name alone.
    let words = "k.cu --kernel weigh --grid n --block 1 --arg nodes=in:Node[n]={3,q} \
                 --arg out:f32[n] --let n=4 --let q=1.5f";
    let (code, stdout, stderr) = run(here, "run", words);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("4.500000 4.500000 4.500000 4.500000"), "{stdout}");
    // Vectors in an array of floats, which a GPU happens to align.
    let words = "k.cu --kernel quads --grid 1 --block 2 --arg in:f32[8]=arange --arg out:f32[2]";
    for command in ["run", "check"] {
        let (code, stdout, stderr) = run(here, command, words);
        assert_eq!(code, 0, "{command}: {stdout} {stderr}");
        let is_table = stdout.contains("7.000000 3.000000");
        assert!(command == "check" || is_table, "{stdout}");
    }
    // What was written is what is read.
    let words = "k.cu --kernel twice --grid 1 --block 4 --arg inout:f32=@z.safetensors[x] \
                 --expect x=@z.safetensors[x]";
    let (code, stdout, stderr) = run(here, "check", words);
    assert_eq!(code, 1, "{stderr}");
    assert!(
        stdout.contains("x: WRONG, 4 of 4 elements; the worst, x[0]: expected 2, got 4"),
        "{stdout}"
    );
}

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn python_says_what_is_expected() {
    let here = here();
    let numpy = std::process::Command::new("python3").args(["-c", "import numpy"]).output();
    let words = format!("{LAUNCH} --arg in:f32[n] --arg out:f32[8] --arg 1024");
    let expect = |text: &str| {
        outcome(lab(here.path(), "check").args(words.split_whitespace()).args(["--expect", text]))
    };
    if !numpy.is_ok_and(|n| n.status.success()) {
        let (code, _, stderr) = expect("sums=1");
        assert_eq!(code, 2);
        assert!(stderr.contains("--expect sums: expected python3 with numpy"), "{stderr}");
        eprintln!("python3 with numpy is not here: no expression was evaluated");
        return;
    }
    let (code, stdout, stderr) = expect("sums=x.reshape(8, n // 8).sum(axis=1)");
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("sums: as expected, all 8"), "{stdout}");
    for (text, told) in [
        ("total=x.sum()", "--expect total: expected the only output, sums, got 'total'"),
        (
            "sums=x[:5]",
            "--expect sums: expected shape [8], or one that numpy broadcasts to it, got [5]",
        ),
    ] {
        let (code, _, stderr) = expect(text);
        assert_eq!((code, stderr.contains(told)), (2, true), "{stderr}");
    }
    let (code, _, stderr) = expect("sums=y");
    assert_eq!(code, 2);
    assert!(stderr.contains("NameError: name 'y' is not defined"), "{stderr}");
}

/// Parameters that a macro brings, of which one has the name of a word of Python.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn parameters_of_a_condition_and_names_of_python() {
    let here = tempfile::tempdir().unwrap();
    let text = "__global__ void scale(const float* in,\n#ifdef BY\nfloat by,\n#endif\nfloat* out) {
        out[threadIdx.x] = in[threadIdx.x]\n#ifdef BY\n* by\n#endif\n; }\n";
    std::fs::write(here.path().join("scale.cu"), text).unwrap();
    let run = |words: &str, expect: &str| {
        let words = format!("scale.cu --grid 1 --block 8 --arg in:f32[8] {words} --arg out:f32[8]");
        outcome(lab(here.path(), "run").args(words.split_whitespace()).args(["--expect", expect]))
    };
    let (code, stdout, stderr) = run("-D BY --arg by=3", "out=3 * in");
    if stderr.contains("expected python3 with numpy") {
        return; // as `python_says_what_is_expected` has it
    }
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("out: as expected, all 8"), "{stdout}");
    // A header of the file's own brings the macro.
    std::fs::write(here.path().join("by.h"), "#pragma once\n#define BY\n").unwrap();
    std::fs::write(here.path().join("scale.cu"), format!("#include \"by.h\"\n{text}")).unwrap();
    let (code, _, stderr) = run("--arg by=3", "out=3 * in");
    assert_eq!(code, 0, "{stderr}");
    // A kernel that no macro brings.
    let text = format!("{text}#ifdef NEVER\n__global__ void never() {{}}\n#endif\n");
    std::fs::write(here.path().join("scale.cu"), text).unwrap();
    let words = "scale.cu --kernel never --grid 1 --block 8";
    let (code, _, stderr) = self::run(here.path(), "check", words);
    let told = "--kernel: expected a kernel that is compiled, got never of line 12, which an #if";
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains(told) && stderr.trim().lines().count() == 1, "{stderr}");
    let run = |words: &str, expect: &str| run(&format!("--kernel scale {words}"), expect);
    let (code, _, stderr) = run("", "out=[x for x in in]");
    assert_eq!(code, 2);
    assert!(stderr.contains("with an _ behind: in as in_"), "{stderr}");
    assert_eq!(stderr.trim().lines().count(), 1, "{stderr}");
}

/// Each is one line that names the argument, what was expected and what came.
#[test]
fn what_is_refused_is_one_line() {
    let here = here();
    let launch = "--grid 8 --block 128";
    for (words, told) in [
        ("sum.cu --kernel foo {}", "--kernel: expected one of sum_blocks, got 'foo'"),
        (
            "k.cu {}",
            "--kernel: expected one of own::add, tile, twice, twice, weigh, quads, endless, got none",
        ),
        ("none.cu --kernel k {}", "none.cu: No such file"),
        (
            "sum.cu --kernel sum_blocks --block 4",
            "--grid: expected blocks, such as 4 or 4,2, got none",
        ),
        ("sum.cu --grid 1,2,3,4 --block 4", "--grid: expected 1 to 3 sizes, got '1,2,3,4'"),
        (
            "sum.cu --grid 1 --block 4 --shared=-1",
            "--shared: expected a number that is not negative, got -1",
        ),
        ("sum.cu {} --arg in:f32[4]", "--arg sums: expected a value of T* (const T* x"),
        ("sum.cu {} --arg m=4", "--arg m: expected one of x, sums, n"),
        (
            "sum.cu {} --arg x=float[n]",
            "--arg x: expected in:float[n], inout:float[n] or out:float[n], got 'float[n]'",
        ),
        ("sum.cu {} --arg x=1 --arg x=2", "--arg x: expected one value for x, got a second"),
        ("sum.cu {} --arg in:f32[4]=@x --arg 1", "--arg in:f32[4]=@x: expected random, random(LOW"),
        ("sum.cu {} --let 4", "--let 4: expected NAME=VALUE, got another"),
        ("sum.cu {} --args none.toml", "none.toml: No such file"),
        ("sum.cu {} --args sum.cu", "--args: expected a file .toml or .json, got sum.cu"),
        ("sum.cu {} --order x", "--order: expected forward, reverse"),
        ("sum.cu {} --rtol -1", "--rtol: expected a number from 0, got -1"),
        ("sum.cu {} --expect sums", "--expect: expected NAME=VALUE, got 'sums'"),
        ("sum.cu --shape R=4", "--shape: expected a STAGE, which takes it, got 'sum.cu'"),
        ("playg --kernel k", "--kernel: expected a FILE.cu, whose kernels take it, got 'playg'"),
        ("playg --expect k=1", "--expect: expected a FILE.cu, whose kernels take it, got 'playg'"),
        ("sum.cu {} --device cuda", "--device: expected emulator"),
    ] {
        let needs_launch = words.contains("--order") || words.contains("--let");
        let arguments = if needs_launch { "--arg 1 --arg 2 --arg 3" } else { "" };
        let words = words.replace("{}", &format!("{launch} {arguments}"));
        let words = if words.contains("--rtol -1") {
            words.replace("--rtol -1", "--rtol=-1")
        } else {
            words
        };
        let (code, stdout, stderr) = run(here.path(), "check", &words);
        assert_eq!((code, &stdout[..]), (2, ""), "{words}: {stderr}");
        assert!(stderr.contains(told) && stderr.lines().count() == 1, "{words}: {stderr}");
    }
    // What C++ has to say first.
    for (words, code, told) in [
        ("--arg in:f32[4] --arg out:f64[8] --arg 4", 2, "conflicting types for parameter 'T'"),
        (
            "--arg in:f32[q] --arg out:f32[8] --arg 4",
            2,
            "--arg x: expected C++ that compiles, got 'q'",
        ),
        (
            "--arg in:f32[4] --arg out:f32[8] --arg 4+",
            2,
            "--arg n: expected C++ that compiles, got an error: expected primary-expression",
        ),
        ("--arg in:f32[n] --arg out:f32[8] --arg -4", 2, "--arg x: expected a shape of 1 to"),
    ] {
        let (got, stdout, stderr) = run(here.path(), "check", &format!("{LAUNCH} {words}"));
        assert_eq!((got, &stdout[..]), (code, ""), "{words}: {stderr}");
        assert!(stderr.contains(told) && stderr.lines().count() == 1, "{words}: {stderr}");
    }
    let weigh = "k.cu --kernel weigh --grid 1 --block 1 --arg out:f32[1]";
    for (nodes, told) in [
        (
            "in:Node[4]=1",
            "--arg nodes: expected ={…}, =0 or =@FILE[TENSOR] with a type of the file's own",
        ),
        ("in:u64[4]=1", "--arg nodes: expected const Node*, got uint64_t*"),
    ] {
        let words = weigh.replace("--arg", &format!("--arg nodes={nodes} --arg"));
        let (code, _, stderr) = run(here.path(), "check", &words);
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(told) && stderr.lines().count() == 1, "{stderr}");
    }
    let words = "k.cu --kernel tile --grid 1 --block 4 --arg out:int[4]";
    let (code, _, stderr) = run(here.path(), "check", words);
    assert_eq!(code, 2);
    assert!(stderr.contains("--kernel: expected a value for N of tile<N>, got none"), "{stderr}");
    let words =
        "k.cu --kernel endless --grid 1 --block 1 --arg inout:int[1]=0 --timeout 0.2 --json";
    let (code, stdout, _) = run(here.path(), "run", words);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &report["exit"]), (1, &1.into()));
}

/// What the list prints can be copied.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn the_commands_of_the_list_run() {
    let here = here();
    for (file, command) in [("sum.cu", 0), ("k.cu", 0), ("k.cu", 1)] {
        let (code, stdout, stderr) = run(here.path(), "check", &format!("{file} --json"));
        assert_eq!(code, 0, "{stderr}");
        let list: Value = serde_json::from_str(&stdout).unwrap();
        let line = list["kernels"][command]["command"].as_str().unwrap();
        // As it was called, by its path.
        let (tool, arguments) = line.split_once(" check ").unwrap();
        assert!(std::path::Path::new(tool).is_file(), "{tool}");
        let (code, _, stderr) = run(here.path(), "check", &arguments.replace('\'', ""));
        assert!(matches!(code, 0 | 3), "{line}: {code} {stderr}");
    }
    let (code, stdout, _) = run(here.path(), "check", "k.cu");
    assert_eq!(code, 0);
    assert!(stdout.contains("k.cu:7: own::add(Both both, real* y, int n)"), "{stdout}");
    assert!(stdout.lines().all(|l| l.chars().count() <= 80), "{stdout}");
    assert!(stdout.contains("lab check k.cu --kernel own::add "), "{stdout}");
    assert!(stdout.contains("lab app k.cu"), "{stdout}");
    // The command that was asked for, and no program where there is no `main`.
    std::fs::write(here.path().join("l.cu"), "__global__ void k() {}  // no main()\n").unwrap();
    std::fs::write(here.path().join("none.cu"), "").unwrap();
    for command in ["run", "profile"] {
        let (code, stdout, _) = run(here.path(), command, "l.cu");
        assert!(stdout.contains(&format!("lab {command} l.cu --kernel k")), "{stdout}");
        assert!(code == 0 && !stdout.contains("lab app"), "{stdout}");
    }
    let (code, stdout, _) = run(here.path(), "check", "none.cu");
    assert_eq!((code, &stdout[..]), (0, "0 kernels in none.cu\n"));
}

/// A file that is saved again is checked again.
#[test]
fn each_save_is_checked() {
    use std::io::{BufRead, BufReader};
    let here = here();
    let file = here.path().join("w.cu");
    let kernel = |index: &str| format!("__global__ void k(int* y) {{ y[{index}] = 1; }}");
    std::fs::write(&file, kernel("threadIdx.x + 1")).unwrap();
    let mut lab = std::process::Command::new(env!("CARGO_BIN_EXE_lab"))
        .env_remove("LAB_DEVICE")
        .current_dir(here.path())
        .args(["check", "w.cu", "--grid", "1", "--block", "4", "--arg", "out:int[4]", "--watch"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(lab.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|l| l.contains("memcheck: ")), "the first check");
    assert!(lines.any(|l| l.starts_with("Waiting for the next save of w.cu")));
    std::fs::write(&file, kernel("threadIdx.x")).unwrap();
    assert!(lines.any(|l| l.ends_with(" 0 findings")), "the second check");
    lab.kill().unwrap();
    lab.wait().unwrap();
}

#[test]
fn a_formality_is_counted_and_does_not_count() {
    let here = tempfile::tempdir().unwrap();
    let text = "__global__ void k(int* x) { int old = *x, seen;
        do { seen = old; old = atomicCAS(x, seen, 2 * seen); } while (old != seen); }";
    std::fs::write(here.path().join("k.cu"), text).unwrap();
    let launch = "k.cu --kernel k --grid 2 --block 4 --arg inout:i32[1]=1";
    let (code, stdout, stderr) = run(here.path(), "profile", launch);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("formal, racecheck") && stdout.contains("k.cu:2"), "{stdout}");
    assert!(stdout.contains("0 findings, 1 by the letter alone"), "{stdout}");
    // The counts of the line.
    assert!(stdout.contains(" 2 │ do { seen = old;"), "{stdout}");
}

/// A GPU waits for no thread that has ended; to have gone past a barrier is another thing than to have returned before it.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn who_ends_behind_a_barrier_has_gone_past_it() {
    let here = tempfile::tempdir().unwrap();
    let text = "__global__ void past(int* y) {
    y[threadIdx.x] = 1;
    if (threadIdx.x < 32) __syncthreads();
    y[threadIdx.x] += 1;
}
__global__ void before(int* y, int n) {
    y[threadIdx.x] = 1;
    if (threadIdx.x >= n) return;
    __syncthreads();
    y[threadIdx.x] += 1;
}";
    std::fs::write(here.path().join("k.cu"), text).unwrap();
    for order in ["forward", "reverse", "random"] {
        let launch = format!("--grid 1 --block 64 --arg y=out:int[64] --order {order}");
        let (code, stdout, _) = run(here.path(), "check", &format!("k.cu --kernel past {launch}"));
        assert_eq!(code, 0, "{stdout}");
        assert!(stdout.contains("formal, synccheck: divergent barrier: "), "{stdout}");
        assert!(
            stdout.contains("32 threads (0,0,0)..(31,0,0): __syncthreads at k.cu:3:"),
            "{stdout}"
        );
        assert!(stdout.ends_with("0 findings, 1 by the letter alone\n"), "{stdout}");
        let words = format!("k.cu --kernel before {launch} --arg n=20");
        let (code, stdout, _) = run(here.path(), "check", &words);
        assert!(code == 0 && stdout.ends_with(": 0 findings\n"), "{stdout}");
    }
}

#[test]
fn a_profile_counts_by_line() {
    let here = here();
    let words = format!("{LAUNCH} --arg in:f32[n] --arg out:f32[8] --arg 1000");
    let (code, stdout, stderr) = run(here.path(), "profile", &words);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("   12 │ part[threadIdx.x] = i < n ? x[i] : T(0);"), "{stdout}");
    assert!(stdout.contains("global load          32 requests         125 sectors"), "{stdout}");
    let (code, stdout, _) = run(here.path(), "profile", &format!("{words} -D FORGETFUL --json"));
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &report["exit"]), (3, &3.into()));
    let (code, _, stderr) = run(here.path(), "profile", &format!("{words} --html x.html"));
    assert_eq!(code, 2);
    assert!(stderr.contains("--html: expected a STAGE, which takes it, got 'sum.cu'"), "{stderr}");
}

/// Host code that wants what is not here does not stand in the way of a kernel; the kernel itself must compile.
#[test]
fn other_code_that_does_not_compile_is_left_out() {
    let here = here();
    let file = "#include <nowhere.h>
        nowhere_t handle;
        __global__ void k(int* y) { y[threadIdx.x] = 1; }
        __global__ void l(nowhere_t* y) { y[threadIdx.x] = 1; }
        int main() { nowhere_call(handle); k<<<1, 1>>>(nullptr); }";
    std::fs::write(here.path().join("c.cu"), file).unwrap();
    let launch = "--grid 1 --block 4 --arg out:int[4]";
    let (code, stdout, stderr) = run(here.path(), "check", &format!("c.cu --kernel k {launch}"));
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("is left out: c.cu:1:10: error: nowhere.h"), "{stdout}");
    let (code, _, stderr) = run(here.path(), "check", &format!("c.cu --kernel l {launch}"));
    assert_eq!((code, stderr.lines().count()), (2, 1), "{stderr}");
    assert!(stderr.contains("c.cu:1:10") && stderr.contains("without that, c.cu:"), "{stderr}");
}

/// gdb stands at the thread that was asked for, and knows its local variables.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn gdb_opens_at_a_thread() {
    let here = here();
    let words = format!("{LAUNCH} --arg in:f32[n]=2 --arg out:f32[8] --arg 1000");
    let (code, _, stderr) = run(here.path(), "debug", &format!("{words} --thread 1,x"));
    assert_eq!(code, 2);
    assert!(
        stderr.contains("--thread: expected an index such as 3 or 3,0,0, got '1,x'"),
        "{stderr}"
    );
    let (code, _, stderr) = run(here.path(), "debug", "playg");
    assert_eq!(code, 2);
    assert!(stderr.contains("FILE.cu: expected a file of CUDA C++, got 'playg'"), "{stderr}");
    if std::process::Command::new("gdb").arg("--version").output().is_err() {
        eprintln!("gdb is not here (apt install gdb): nothing was debugged");
        return;
    }
    let mut debug = lab(here.path(), "debug");
    debug.args(words.split_whitespace()).args(["--thread", "3,0,0", "--blk", "1", "--batch"]);
    for command in
        ["next", "next", "print i", "lab-where", "lab-thread 5,0,0 1,0,0", "next 2", "print i"]
    {
        debug.args(["--ex", command]);
    }
    let (code, stdout, stderr) = outcome(&mut debug);
    // Not to trace a process; or not to set the registers of one, by a gdb that is older than the processor.
    let hindrances = ["ptrace: ", "Couldn't write extended state status"];
    if hindrances.iter().any(|said| stderr.contains(said) || stdout.contains(said)) {
        eprintln!("gdb may not trace a process here: nothing was debugged\n{stderr}");
        return;
    }
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("$1 = 131\nthread (3,0,0) of block (1,0,0)"), "{stdout}{stderr}");
    assert!(stdout.contains("$2 = 133"), "{stdout}{stderr}");
}

/// A static initialiser of the file that ends the process: the kernel was not launched, and that is said.
#[test]
fn host_code_that_ends_the_process_is_told() {
    let here = tempfile::tempdir().unwrap();
    let thrown = "throw std::runtime_error(\"early\")";
    for end in ["exit(0)", "_exit(0)", "quick_exit(0)", thrown] {
        let text = format!(
            "#include <cstdlib>\n#include <stdexcept>\n#include <unistd.h>\nstruct First {{ First() {{ {end}; }} }} first;\n\
             __global__ void k(int* x) {{ *x = 1; }}\n"
        );
        std::fs::write(here.path().join("k.cu"), text).unwrap();
        let words = "k.cu --kernel k --grid 1 --block 1 --arg out:i32[1]";
        let (code, _, said) = run(here.path(), "check", words);
        assert_eq!(code, 2, "{end}: {said}");
        // Once, and by what happened.
        assert_eq!(
            said.contains("expected the kernel to be launched"),
            end != thrown,
            "{end}: {said}"
        );
        assert_eq!(said.contains("a static initialiser throws"), end == thrown, "{end}: {said}");
        let (_, told, _) = run(here.path(), "check", &format!("{words} --json"));
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["exit"], 2, "{end}: {told}");
    }
}

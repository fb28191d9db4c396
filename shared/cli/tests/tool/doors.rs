//! The lab's own kernels by both doors of the emulator: as CUDA C++, and as the PTX that NVRTC makes of that. On the same
//! problem both leave the same bits and are clean. Kernels with `expf` are not among them: CUDA's is another function than
//! the host's.

use std::path::Path;

use assert_cmd::Command;
use lab_device::KernelSource;
use lab_device::nvrtc::Nvrtc;
use safetensors::SafeTensors;

/// A file of `playg`, an instantiation, and a launch of it with one output.
const LAUNCHES: [(&str, &str, &str); 3] = [
    (
        "saxpy",
        "saxpy<__half>",
        "--grid 3 --block 64 --arg in:f16[1003] --arg in:f16[1003] --arg out:f16[1003] --arg 1.5f --arg 1003",
    ),
    (
        "sum",
        "sum_tree<float, 256>",
        "--grid 4 --block 256 --arg in:f32[3000] --arg out:f32[4] --arg 3000",
    ),
    (
        "layernorm",
        "layernorm<float, 256, 1, 4>",
        "--grid 3 --block 256 --arg in:f32[3,704] --arg in:f32[704] --arg in:f32[704] --arg out:f32[3,704] \
         --arg 704 --arg 1e-5f",
    ),
];

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn both_doors_leave_the_same_bits() {
    let nvrtc = match Nvrtc::get() {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            assert!(std::env::var_os("LAB_REQUIRE_NVRTC").is_none(), "NVRTC was required: {error}");
            println!("skipped, no NVRTC here: {error}");
            return;
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let here = tempfile::tempdir().unwrap();
    for (file, kernel, launch) in LAUNCHES {
        let sources = lab_registry::stage("playg").unwrap().kernels;
        let source: &KernelSource = sources.iter().find(|s| s.name == file).unwrap();
        let ptx = nvrtc.unfused_ptx(source, &[kernel], "sm_90a").unwrap();
        std::fs::write(here.path().join("kernel.ptx"), &ptx.text).unwrap();
        let left = |name: &str, file: &Path, kernel: &str| {
            let output = here.path().join(name);
            let words = launch.split_whitespace();
            let done = Command::cargo_bin("lab")
                .unwrap()
                .current_dir(here.path())
                .args([
                    "check",
                    &file.display().to_string(),
                    "--kernel",
                    kernel,
                    "--arch",
                    "sm_90a",
                ])
                .args(words)
                .args(["-I", &root.join("shared/cuda").display().to_string()])
                .args(["--output", name])
                .output()
                .unwrap();
            let told = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
            assert!(done.status.success() && told.contains(": 0 findings"), "{kernel}: {told}");
            let bytes = std::fs::read(output).unwrap();
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            let [(_, tensor)] = &tensors.tensors()[..] else { panic!("one output of {kernel}") };
            tensor.data().to_vec()
        };
        let own = left("own.safetensors", &root.join(source.place), kernel);
        let other = left("ptx.safetensors", Path::new("kernel.ptx"), &ptx.symbols[kernel]);
        assert!(own == other, "{kernel}: the doors differ");
    }
}

/// Every problem of a stage, and every check of its accesses, on the PTX of its kernels.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn a_suite_passes_by_the_other_door() {
    if let Err(error) = Nvrtc::get() {
        assert!(std::env::var_os("LAB_REQUIRE_NVRTC").is_none(), "NVRTC was required: {error}");
        println!("skipped, no NVRTC here: {error}");
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let lab = || Command::cargo_bin("lab").unwrap();
    let made = lab().args(["dev", "doors", "playg", "--write"]).arg(here.path()).output().unwrap();
    let told = String::from_utf8_lossy(&[made.stdout, made.stderr].concat()).into_owned();
    assert!(made.status.success() && told.contains("104 instantiations"), "{told}");
    let suite = lab()
        .env("LAB_KERNEL_OBJECTS", here.path())
        .args(["selftest", "playg", "--device", "emulator", "--quick"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&[suite.stdout, suite.stderr].concat()).into_owned();
    assert!(suite.status.success() && told.contains(" passed, 0 failed"), "{told}");
}

/// What the planted bugs show by the PTX of their kernels in another way than as C++, and why.
const OTHERWISE: [(&str, &str); 5] = [
    // The wait for the grid is a loop of CUDA's header there, and waits for a block that need not begin.
    ("lone_grid_sync", "OnlyFormal"),
    // Both halves of the warp multiply the same numbers: the compiler makes one product of two.
    ("mma_apart", "Missed"),
    // Both name the line of the function that the planted line calls.
    ("tile_aligned_by_luck", "Elsewhere"),
    ("tile_misaligned", "Elsewhere"),
    // A compiler may read as constant what its thread writes later.
    ("ldg_in_place", "Missed"),
];

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn planted_bugs_are_found_by_the_other_door() {
    if let Err(error) = Nvrtc::get() {
        assert!(std::env::var_os("LAB_REQUIRE_NVRTC").is_none(), "NVRTC was required: {error}");
        println!("skipped, no NVRTC here: {error}");
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let lab = || Command::cargo_bin("lab").unwrap();
    let made = lab().args(["dev", "doors", "corpus", "--write"]).arg(here.path()).output().unwrap();
    let told = String::from_utf8_lossy(&[made.stdout, made.stderr].concat()).into_owned();
    assert!(made.status.success(), "{told}");
    let done = lab()
        .env("LAB_KERNEL_OBJECTS", here.path())
        .args(["--json", "dev", "corpus"])
        .output()
        .unwrap();
    let told: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let cases = ["cases", "formal"].into_iter().flat_map(|kind| told[kind].as_array().unwrap());
    let wrong: Vec<(&str, &str)> = cases
        .filter(|case| case["right"] != true)
        .map(|case| (case["name"].as_str().unwrap(), case["judgement"].as_str().unwrap()))
        .map(|(name, judgement)| (name, judgement.split('(').next().unwrap_or_default()))
        .collect();
    assert_eq!(wrong, OTHERWISE);
}

/// Versions whose grid meets: as PTX that wait is CUDA's header's, which has two barriers of a block in it.
const MEETING: [&str; 2] = ["playg:sum", "vlstm_fwbw_v0:grid_sync"];

/// What `lab dev doors --compare --record` has run. What differs does so for a reason that is known: CUDA's `expf` and its like are
/// other instructions than the host's, and the last bits of what is made of them are others.
#[test]
fn what_ran_by_both_doors_did_the_same() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let rows = read("benches/doors/emulator.json");
    let rows: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&rows).unwrap();
    let versions: Vec<String> = lab_registry::versions().map(|v| v.info().full_name()).collect();
    let mut same = 0;
    for (name, row) in &rows {
        assert!(versions.contains(name), "{name}: no version, the record has a row too many");
        assert!(row["refused"].is_null(), "{name}: {row}");
        let counts = row["counts"].as_object().unwrap();
        let has_same_counts = counts.values().all(|pair| pair[0] == pair[1]);
        assert!(has_same_counts || MEETING.contains(&&**name), "{name}: {counts:?}");
        let most = match row["dtype"].as_str().unwrap() {
            "bf16" => 8e-3,
            "f16" => 1e-3,
            _ => 1e-5,
        };
        let distance = row["distance"].as_f64().unwrap();
        assert!(distance <= most, "{name}: {distance}");
        same += usize::from(row["other_bits"] == 0);
    }
    let page = read("book/src/contribute.md");
    let told = format!("{} versions have run; {same} leave the same bits", rows.len());
    assert!(page.contains(&told), "contribute.md: expected '{told}'");
}

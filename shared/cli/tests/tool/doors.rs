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

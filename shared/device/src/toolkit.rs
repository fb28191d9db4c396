//! Where NVRTC, CUDA's headers and the disassembler are on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// NVRTC and its headers, found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolkit {
    /// `libnvrtc.so.*`.
    pub nvrtc: PathBuf,
    /// `libnvrtc-builtins.so.*`, to be loaded first: from a wheel, NVRTC does not find it itself.
    pub builtins: Option<PathBuf>,
    /// Directories with `cuda_fp16.h` and its company.
    pub includes: Vec<PathBuf>,
}

/// No toolkit here.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "NVRTC with its headers was not found (looked in {}); install the CUDA toolkit and set CUDA_HOME, or: \
     pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl",
    looked.join(", ")
)]
pub struct NotFound {
    /// Every directory that was looked into.
    pub looked: Vec<String>,
}

/// Looks in `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda`, then among the packages of the `python3`
/// on the path.
pub fn find() -> Result<Toolkit, NotFound> {
    let mut looked = Vec::new();
    for root in roots() {
        if let Some(toolkit) = at_root(&root) {
            return Ok(toolkit);
        }
        looked.push(root.display().to_string());
    }
    for package in python_packages() {
        if let Some(toolkit) = in_wheels(&package) {
            return Ok(toolkit);
        }
        looked.push(package.display().to_string());
    }
    if looked.iter().all(|l| !l.contains("python")) {
        looked.push("the nvidia packages of python3".into());
    }
    Err(NotFound { looked })
}

/// No disassembler here.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "nvdisasm was not found (looked in {}); install the CUDA toolkit and set CUDA_HOME, or: \
     pip install nvidia-cuda-nvdisasm",
    looked.join(", ")
)]
pub struct NoDisassembler {
    /// Every directory that was looked into.
    pub looked: Vec<String>,
}

/// `nvdisasm`, which prints the machine code of a compiled image. It is looked for where [`find`] looks, and on the path
/// before Python's packages.
///
/// # Errors
/// There is none here.
pub fn find_nvdisasm() -> Result<PathBuf, NoDisassembler> {
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = roots().map(|root| root.join("bin")).collect();
    let mut looked: Vec<String> = directories.iter().map(|d| d.display().to_string()).collect();
    looked.push("PATH".into());
    directories.extend(std::env::split_paths(&on_path));
    let packages = python_packages().into_iter().map(|package| package.join("cu13/bin"));
    let packages: Vec<PathBuf> = packages.collect();
    if packages.is_empty() {
        looked.push("the nvidia packages of python3".into())
    } else {
        looked.extend(packages.iter().map(|d| d.display().to_string()))
    }
    directories.extend(packages);
    let mut files = directories.iter().map(|directory| directory.join("nvdisasm"));
    files.find(|file| file.is_file()).ok_or(NoDisassembler { looked })
}

fn roots() -> impl Iterator<Item = PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    [set("CUDA_HOME"), set("CUDA_PATH"), Some("/usr/local/cuda".into())].into_iter().flatten()
}

/// Where CUDA's libraries may lie, those first that [`find`] prefers: directories of a toolkit,
/// then of the packages of the `python3` on the path. Not all need exist.
pub(crate) fn library_directories() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = roots().flat_map(|root| at_root_libraries(&root)).collect();
    for package in python_packages() {
        all.extend(["cu13/lib", "cublas/lib", "nccl/lib"].map(|part| package.join(part)));
    }
    all
}

fn at_root_libraries(root: &Path) -> [PathBuf; 3] {
    let target = format!("targets/{}-linux/lib", std::env::consts::ARCH);
    ["lib64", "lib", &target].map(|part| root.join(part))
}

fn at_root(root: &Path) -> Option<Toolkit> {
    let target = format!("targets/{}-linux", std::env::consts::ARCH);
    let includes = [root.join("include"), root.join(&target).join("include")];
    at_root_libraries(root).iter().find_map(|directory| assemble(directory, &includes))
}

/// The wheels put everything of a major version into `nvidia/cu13`; older ones have a directory a
/// component.
fn in_wheels(nvidia: &Path) -> Option<Toolkit> {
    let together = nvidia.join("cu13");
    assemble(&together.join("lib"), &[together.join("include")]).or_else(|| {
        let includes = ["cuda_runtime", "cuda_nvcc", "cuda_cccl"]
            .map(|part| nvidia.join(part).join("include"));
        assemble(&nvidia.join("cuda_nvrtc/lib"), &includes)
    })
}

fn assemble(libraries: &Path, includes: &[PathBuf]) -> Option<Toolkit> {
    // Since CUDA 13 the C++ standard library for the device has a directory of its own.
    let with_cccl = includes.iter().flat_map(|d| [d.clone(), d.join("cccl")]);
    let includes: Vec<PathBuf> = with_cccl.filter(|d| d.is_dir()).collect();
    if !includes.iter().any(|d| d.join("cuda_fp16.h").is_file()) {
        return None;
    }
    Some(Toolkit {
        nvrtc: newest_library(libraries, "libnvrtc.so")?,
        builtins: newest_library(libraries, "libnvrtc-builtins.so"),
        includes,
    })
}

/// The library of this name in a directory, of several versions the newest.
pub(crate) fn newest_library(directory: &Path, prefix: &str) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(directory)
        .ok()?
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| {
            p.file_name().is_some_and(|n| {
                let name = n.to_string_lossy();
                name.starts_with(prefix) && !name.contains(".alt.")
            })
        })
        .collect();
    found.sort();
    found.pop()
}

static KNOWN_PACKAGES: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Directories with the packages of a Python (`nvidia` of its site-packages) that take the place of those of the
/// `python3` on the path: for a program that runs in another Python. Only the first call counts.
pub fn take_python_packages(packages: Vec<PathBuf>) {
    let _ = KNOWN_PACKAGES.set(packages);
}

fn python_packages() -> Vec<PathBuf> {
    if let Some(known) = KNOWN_PACKAGES.get() {
        return known.clone();
    }
    let script = "import nvidia; print('\\n'.join(nvidia.__path__))";
    let Ok(output) = Command::new("python3").args(["-c", script]).output() else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect()
}

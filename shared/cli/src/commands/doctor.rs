//! `lab doctor`: what is here and what is missing, each with its fix.

use std::process::Command;

use lab_device::cublas;
use lab_device::nccl;
use lab_device::nvrtc::Nvrtc;
use lab_device::{Build, Device, Selector, toolkit};
use serde_json::json;

use crate::failure::Failure;
use crate::table::table;
use crate::{Common, own};

struct Line {
    what: &'static str,
    needed_for: &'static str,
    found: Result<String, String>,
    fix: &'static str,
}

pub(crate) fn run(common: &Common) -> Result<(), Failure> {
    // A setting that is none is a mistake of the caller's, and nothing that is missing here.
    lab_device::emulator::Options::from_env().map_err(|e| Failure::Usage(e.to_string()))?;
    let lines = examine();
    if common.json {
        let all = lines.iter().map(|l| {
            json!({
                "what": l.what, "needed_for": l.needed_for, "here": l.found.is_ok(),
                "found": l.found.as_ref().ok(), "problem": l.found.as_ref().err(),
                "fix": l.found.as_ref().err().map(|_| l.fix),
            })
        });
        let emulator = lines.iter().find(|l| l.what == "emulator");
        let runs = emulator.is_some_and(|l| l.found.is_ok());
        say!("{}", json!({ "checks": all.collect::<Vec<_>>(), "runs": runs }));
    } else {
        let mut rows = table(&["", "what", "needed for", "found"]);
        for line in &lines {
            let (mark, found) = match &line.found {
                Ok(found) => ("ok", found.clone()),
                Err(problem) => ("--", format!("{}\n→ {}", without_advice(problem), line.fix)),
            };
            rows.add_row([mark, line.what, line.needed_for, &found]);
        }
        say!("{rows}");
        if lines
            .iter()
            .any(|l| l.found.as_ref().is_err_and(|problem| without_advice(problem) != problem))
        {
            say!("{} doctor --json names all places that were looked at.", own::shell());
        }
        match Device::open(Selector::Auto) {
            Ok(device) => say!("Kernels run on: {}", device.name()),
            Err(error) => say!("Kernels cannot run: {error}"),
        }
    }
    // The emulator alone lets the lab run.
    let emulator = lines.iter().find(|l| l.what == "emulator");
    match emulator.and_then(|l| l.found.as_ref().err()) {
        Some(problem) => Err(Failure::Missing(format!("the emulator cannot run: {problem}"))),
        None => Ok(()),
    }
}

/// A problem without the places that were looked at, and without the advice, which the fix repeats.
fn without_advice(problem: &str) -> &str {
    problem.split(" (looked in ").next().unwrap_or(problem)
}

fn examine() -> Vec<Line> {
    let text = |e: lab_device::Error| e.to_string();
    let gpu = Device::cuda_count().map_err(text).and_then(|n| match n {
        0 => Err("the driver reports none".to_owned()),
        n => Device::open(Selector::Cuda(0))
            .map(|d| format!("{n} × {}, driver {}", d.facts().name, d.facts().driver))
            .map_err(text),
    });
    let nvrtc = Nvrtc::get().map_err(text).map(|n| {
        let (major, minor) = n.version();
        format!("{major}.{minor} at {}", n.toolkit().nvrtc.display())
    });
    let cache = match lab_device::emulator::cache_directory() {
        None => Err("neither LAB_CACHE nor HOME is set".to_owned()),
        Some(directory) => std::fs::create_dir_all(&directory)
            .and_then(|()| tempfile::tempfile_in(&directory))
            .map(|_| directory.display().to_string())
            .map_err(|e| format!("{}: {e}", directory.display())),
    };
    let toolkit = "install the CUDA toolkit";
    vec![
        Line {
            what: "emulator",
            needed_for: "running kernels without a GPU",
            found: try_emulator(),
            fix: "64-bit Linux on x86 or Arm is needed",
        },
        Line {
            what: "kernel objects",
            needed_for: "running kernels without a GPU",
            found: objects(),
            fix: "unset LAB_KERNEL_OBJECTS",
        },
        Line {
            what: "C++ compiler",
            needed_for: "building the lab, checking and breaking kernels",
            found: version_of("c++", "--version"),
            fix: "apt install g++",
        },
        Line {
            what: "GPU",
            needed_for: "running kernels on it",
            found: gpu,
            fix: "an NVIDIA GPU with its driver; everything else works without",
        },
        Line {
            what: "NVRTC",
            needed_for: "compiling kernels for a GPU",
            found: nvrtc,
            fix: "install the CUDA toolkit and set CUDA_HOME, or: pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl",
        },
        Line {
            what: "cuBLAS",
            needed_for: "showing it beside matmul's versions",
            found: cublas::locate().map(|p| p.display().to_string()).map_err(text),
            fix: "install the CUDA toolkit and set CUDA_HOME, or: pip install nvidia-cublas (of CUDA 12: nvidia-cublas-cu12); everything else works without",
        },
        Line {
            what: "NCCL",
            needed_for: "training on several GPUs",
            found: nccl::locate()
                .map(|(p, version)| format!("{version}, {}", p.display()))
                .map_err(text),
            fix: "pip install nvidia-nccl-cu12 (of CUDA 13: nvidia-nccl-cu13), or set LAB_NCCL to the file libnccl.so.2; everything else works without",
        },
        Line {
            what: "cache",
            needed_for: "compiling each kernel only once",
            found: cache,
            fix: "set LAB_CACHE to a directory that can be written; without one, kernels are compiled at every start",
        },
        Line {
            what: "nvdisasm",
            needed_for: "lab compile --sass",
            found: toolkit::find_nvdisasm()
                .map(|p| p.display().to_string())
                .map_err(|e| e.to_string()),
            fix: "install the CUDA toolkit and set CUDA_HOME, or: pip install nvidia-cuda-nvdisasm",
        },
        Line {
            what: "nvcc",
            needed_for: "building candle for CUDA",
            found: version_of("nvcc", "--version"),
            fix: toolkit,
        },
        Line {
            what: "ncu",
            needed_for: "hardware counters",
            found: version_of("ncu", "--version"),
            fix: "install Nsight Compute",
        },
        Line {
            what: "compute-sanitizer",
            needed_for: "checking kernels on a GPU",
            found: version_of("compute-sanitizer", "--version"),
            fix: toolkit,
        },
    ]
}

/// Those that are embedded, those that are compiled when they are first used, and those that stand in for them.
fn objects() -> Result<String, String> {
    let (mut replaced, mut embedded, mut kept, mut missing) = (Vec::new(), 0, 0, 0);
    for kernel in crate::kernels() {
        for (build, suffix) in [(Build::Plain, ""), (Build::Checked, ".checked")] {
            let path = kernel.replaced_by(suffix).map_err(|e| e.to_string())?;
            replaced.extend(path.map(|_| kernel.object_file(suffix)));
            match (kernel.kept_name(build), kernel.kept(build)) {
                (None, _) => embedded += 1,
                (_, Some(_)) => kept += 1,
                (_, None) => missing += 1,
            }
        }
    }
    let mut found = format!("{embedded} embedded");
    if kept > 0 {
        found += &format!(", {kept} compiled since");
    }
    if missing > 0 {
        found += &format!(", {missing} compiled when they are first used");
    }
    if !replaced.is_empty() {
        found += &format!("\n{} replaced: {}", replaced.len(), replaced.join(", "));
    }
    Ok(found)
}

/// Runs a kernel on the emulator.
fn try_emulator() -> Result<String, String> {
    let device = Device::emulator().map_err(|e| e.to_string())?;
    let version = crate::versions().next().expect("a version");
    let info = version.info();
    let problem = lab_harness::Problem::new(info.small(), info.dtypes[0]);
    let case = lab_harness::suite::check(version, &device, &problem);
    if case.passed() { Ok(device.name()) } else { Err(case.describe()) }
}

fn version_of(program: &str, flag: &str) -> Result<String, String> {
    let output =
        Command::new(program).arg(flag).output().map_err(|_| "not on the path".to_owned())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|l| l.contains(|c: char| c.is_ascii_digit())).unwrap_or(program);
    Ok(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::without_advice;

    #[test]
    fn a_problem_is_told_without_what_its_fix_repeats() {
        let problem = "cuBLAS: not found (looked in /a, /b); install the CUDA toolkit";
        assert_eq!(without_advice(problem), "cuBLAS: not found");
        assert_eq!(without_advice("not on the path"), "not on the path");
    }
}

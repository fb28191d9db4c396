//! What was measured where: the machine, and the commit.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use lab_device::nvrtc::Nvrtc;
use lab_device::{Arithmetic, DType, Device};
use lab_harness::timing::Times;
use lab_records::record::Machine;

use crate::failure::Failure;

/// Bytes read plus bytes written a second, in GB/s, by the driver's own copy of 1 GiB.
pub(crate) fn copy_bandwidth(device: &Device) -> Result<f64, Failure> {
    const BYTES: usize = 1 << 30;
    let from = device.buffer::<u8>(BYTES)?;
    let mut to = device.buffer::<u8>(BYTES)?;
    for _ in 0..3 {
        to.copy_from(&from)?;
    }
    let times = device.time(20, || to.copy_from(&from))?;
    Ok(2.0 * BYTES as f64 / Times::of(&times).median_us * 1e-3)
}

pub(crate) fn machine(device: &Device, copy_gbps: f64) -> Result<Machine, Failure> {
    let facts = device.facts();
    let (major, minor) = Nvrtc::get()?.version();
    Ok(Machine {
        gpu: facts.name.clone(),
        driver: facts.driver.clone(),
        nvrtc: format!("{major}.{minor}"),
        cpu: cpu_name(),
        cpu_threads: rayon::current_num_threads(),
        clock_mhz: facts.clock_khz / 1000,
        memory_clock_mhz: facts.memory_clock_khz / 1000,
        copy_gbps,
        peak_tflops: peaks(device),
        libraries: libraries(device),
    })
}

/// By type, where the GPU's rates are known.
fn peaks(device: &Device) -> BTreeMap<String, f64> {
    let of = |dtype: DType| {
        let units = Arithmetic::fastest_for(dtype)?;
        Some((dtype.name().to_owned(), device.facts().peak_tflops(units)?))
    };
    let tf32 = device.facts().peak_tflops(Arithmetic::Tf32).map(|peak| ("tf32".to_owned(), peak));
    let types = [DType::F16, DType::BF16, DType::F32, DType::F64];
    types.into_iter().filter_map(of).chain(tf32).collect()
}

fn libraries(device: &Device) -> Vec<String> {
    let peers = crate::STAGES.iter().flat_map(|s| s.peers);
    peers.filter_map(|p| p.version(device)).collect()
}

fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("model name"));
    line.and_then(|l| l.split(':').nth(1)).unwrap_or("unknown processor").trim().to_owned()
}

pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The commit that is measured: the bundle's, or the working tree's where nothing in it differs.
pub(crate) fn clean_commit() -> Result<String, Failure> {
    let refuse = |message: &str| Failure::Wrong(format!("--record: {message}"));
    if let Some(text) = beside_executable() {
        return match text.trim() {
            "dirty" => Err(refuse("this bundle was made from a tree with uncommitted changes")),
            commit => Ok(commit.to_owned()),
        };
    }
    state_of_tree().map_err(|message| refuse(&message))
}

/// The commit of the working tree, if nothing differs from it.
pub(crate) fn state_of_tree() -> Result<String, String> {
    let git = |arguments: &[&str]| -> Result<String, String> {
        let output =
            Command::new("git").args(arguments).output().map_err(|e| format!("git: {e}"))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(format!("git: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
    };
    if !git(&["status", "--porcelain"])?.is_empty() {
        return Err("expected a clean tree, got uncommitted changes".into());
    }
    git(&["rev-parse", "HEAD"])
}

/// What `lab dev bundle` wrote beside the tool.
fn beside_executable() -> Option<String> {
    let tool = std::env::current_exe().ok()?;
    std::fs::read_to_string(tool.parent().unwrap_or(Path::new(".")).join("commit")).ok()
}

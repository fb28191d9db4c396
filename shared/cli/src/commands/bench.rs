//! `lab bench`: the benchmark set on a GPU, and its records.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use lab_device::nvrtc::Nvrtc;
use lab_device::{DType, Device, DeviceKind, Launch};
use lab_harness::record::{FORMAT, Machine, Measurement, Run};
use lab_harness::{Comparison, Error, Options, Problem, Version, compare, device_checks, timing};
use serde_json::json;

use crate::commands::compare::time_on_host;
use crate::failure::Failure;
use crate::table::table;
use crate::{Common, versions};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A family or a stage; everything where none is named
    family: Option<String>,
    /// Writes a record; refused where the measured tree is not a clean commit
    #[arg(long)]
    record: bool,
    /// The directory for the record
    #[arg(long, default_value = "benches/history")]
    out: PathBuf,
    /// Runs of each
    #[arg(long, default_value_t = 100)]
    runs: usize,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let chosen = right_ones(choose(arguments.family.as_deref())?)?;
    let device = common.open()?;
    if device.kind() != DeviceKind::Cuda {
        let reason = Device::why_no_cuda()
            .map_or_else(|| "the emulator was asked for".into(), |e| e.to_string());
        return Err(Failure::Unavailable(format!(
            "timing needs a GPU (what the emulator takes says nothing about one): {reason}"
        )));
    }
    // Before anything is measured: an hour's work must not end in a refusal.
    let commit = if arguments.record { Some(clean_commit()?) } else { None };
    let copy_gbps = copy_bandwidth(&device)?;
    eprintln!("{}: a device-to-device copy moves {copy_gbps:.0} GB/s", device.name());
    let mut results = Vec::new();
    let add = |results: &mut Vec<Measurement>, m: Measurement| {
        eprintln!("{} {} {}: {:.1} µs", m.version, m.shape, m.dtype, m.median_us);
        results.push(m);
    };
    for version in chosen {
        for &dtype in version.info().dtypes {
            for m in measure(version, &device, dtype, arguments.runs.max(1), copy_gbps)? {
                add(&mut results, m);
            }
        }
    }
    if arguments.family.is_none() {
        for m in launch_overhead(&device)? {
            add(&mut results, m);
        }
    }
    let written = match commit {
        None => None,
        Some(commit) => {
            let run = Run {
                format: FORMAT,
                commit,
                date: now(),
                device: machine(&device, copy_gbps)?,
                results: results.clone(),
            };
            Some(run.write(&arguments.out)?)
        }
    };
    if common.json {
        println!(
            "{}",
            json!({ "device": device.name(), "copy_gbps": copy_gbps, "results": results, "record": written })
        );
        return Ok(());
    }
    let mut rows = table(&[
        "version",
        "shape",
        "type",
        ">median, µs",
        ">p10",
        ">p90",
        ">GB/s",
        ">TFLOP/s",
        ">% of copy",
        ">error",
    ]);
    for m in &results {
        rows.add_row([
            m.version.clone(),
            m.shape.clone(),
            m.dtype.clone(),
            format!("{:.1}", m.median_us),
            format!("{:.1}", m.p10_us),
            format!("{:.1}", m.p90_us),
            shown(m.gbps, |v| format!("{v:.0}")),
            shown(m.tflops, |v| format!("{v:.2}")),
            shown(m.roofline_percent, |v| format!("{v:.1}")),
            shown(m.relative_error, |v| format!("{v:.1e}")),
        ]);
    }
    println!("{rows}");
    if let Some(name) = written {
        println!("wrote {}", arguments.out.join(name).display());
    }
    Ok(())
}

fn shown(value: Option<f64>, format: impl Fn(f64) -> String) -> String {
    value.map_or(String::new(), format)
}

pub(crate) fn choose(family: Option<&str>) -> Result<Vec<&'static dyn Version>, Failure> {
    let Some(name) = family else { return Ok(versions().collect()) };
    let chosen: Vec<_> =
        versions().filter(|v| v.info().family == name || v.info().stage == name).collect();
    if chosen.is_empty() {
        let mut known: Vec<_> =
            versions().flat_map(|v| [v.info().stage, v.info().family]).collect();
        known.sort_unstable();
        known.dedup();
        return Err(Error::bad("family", known.join(", "), format!("'{name}'")).into());
    }
    Ok(chosen)
}

/// Those that may be timed: a time of a version that is wrong on purpose would say nothing. Where
/// no other is left, that is refused.
fn right_ones(mut chosen: Vec<&'static dyn Version>) -> Result<Vec<&'static dyn Version>, Failure> {
    let mut refused = Vec::new();
    chosen.retain(|version| {
        let mistake = version.expected(&Options::default()).mistake();
        let name = version.info().full_name();
        refused.extend(
            mistake.map(|m| format!("{name} is wrong on purpose and is not timed: {}", m.because)),
        );
        mistake.is_none()
    });
    if chosen.is_empty() {
        return Err(Failure::Refused(refused.join("\n")));
    }
    refused.iter().for_each(|line| eprintln!("{line}"));
    Ok(chosen)
}

/// Checks the result on the very problem, then times it.
fn measure(
    version: &dyn Version,
    device: &Device,
    dtype: DType,
    runs: usize,
    copy_gbps: f64,
) -> Result<Vec<Measurement>, Failure> {
    let info = version.info();
    let problem = Problem::new(info.timed(dtype), dtype);
    let inputs = version.inputs(&problem);
    let mut prepared = version.prepare(device, &inputs, &problem.options)?;
    prepared.launch()?;
    let outputs = prepared.outputs()?;
    let comparisons = compare(version, &inputs, &outputs, &problem.options, dtype);
    if let Some(c) = comparisons.iter().find(|c| !c.passed()) {
        return Err(Failure::Wrong(format!(
            "{} {} {dtype} is wrong and is not timed: '{}' is off by {:.2e}, bound {:.2e}",
            info.full_name(),
            problem.dims,
            c.name,
            c.relative_error,
            c.bound
        )));
    }
    let times = timing::time(device, prepared.as_mut(), runs)?;
    let cost = version.cost(&problem.dims, dtype);
    let measurement = |name: String, times: timing::Times, relative_error: f64| {
        let gbps = cost.bytes / times.median_us * 1e-3;
        Measurement {
            family: info.family.into(),
            version: name,
            shape: problem.dims.to_string(),
            dtype: dtype.name().into(),
            median_us: times.median_us,
            p10_us: times.p10_us,
            p90_us: times.p90_us,
            runs: times.runs,
            tflops: (cost.flops > 0.0).then(|| cost.flops / times.median_us * 1e-6),
            gbps: Some(gbps),
            roofline_percent: Some(100.0 * gbps / copy_gbps),
            relative_error: Some(relative_error),
        }
    };
    let error = comparisons.iter().map(|c: &Comparison| c.relative_error).fold(0.0, f64::max);
    let mut all = vec![measurement(info.full_name(), times, error)];
    if let Some((times, error)) = time_on_host(version, &inputs) {
        all.push(measurement("cpu".into(), times, error));
    }
    Ok(all)
}

/// What a launch costs: a thousand kernels that do next to nothing, one after the other on a
/// stream, and as one graph.
fn launch_overhead(device: &Device) -> Result<Vec<Measurement>, Failure> {
    const LAUNCHES: usize = 1000;
    let kernel = device.kernel(&device_checks::kernels::DEVICE, "fill<float>")?;
    let mut x = device.buffer::<f32>(32)?;
    let mut launches = || -> Result<(), lab_device::Error> {
        for _ in 0..LAUNCHES {
            kernel.launch(Launch::new(1, 32), &[x.arg_mut(), 0f32.into(), 32i32.into()])?;
        }
        Ok(())
    };
    launches()?;
    let stream = device.time(20, &mut launches)?;
    let mut graph = device.graph(&mut launches)?;
    graph.launch()?;
    let graph = device.time(20, || graph.launch())?;
    let each = |name: &str, times: &[Duration]| {
        let t = timing::Times::of(times);
        let one = |us: f64| us / LAUNCHES as f64;
        Measurement {
            family: "launch".into(),
            version: name.into(),
            shape: format!("launches={LAUNCHES}"),
            dtype: "f32".into(),
            median_us: one(t.median_us),
            p10_us: one(t.p10_us),
            p90_us: one(t.p90_us),
            runs: t.runs,
            tflops: None,
            gbps: None,
            roofline_percent: None,
            relative_error: None,
        }
    };
    Ok(vec![each("stream", &stream), each("graph", &graph)])
}

/// Bytes read plus bytes written a second, in GB/s, by the driver's own copy of 1 GiB.
pub(crate) fn copy_bandwidth(device: &Device) -> Result<f64, Failure> {
    const BYTES: usize = 1 << 30;
    let from = device.buffer::<u8>(BYTES)?;
    let mut to = device.buffer::<u8>(BYTES)?;
    for _ in 0..3 {
        to.copy_from(&from)?;
    }
    let times = device.time(20, || to.copy_from(&from))?;
    Ok(2.0 * BYTES as f64 / timing::Times::of(&times).median_us * 1e-3)
}

fn machine(device: &Device, copy_gbps: f64) -> Result<Machine, Failure> {
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
    })
}

fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("model name"));
    line.and_then(|l| l.split(':').nth(1)).unwrap_or("unknown processor").trim().to_owned()
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The commit that is measured: the bundle's, or the working tree's where nothing in it differs.
fn clean_commit() -> Result<String, Failure> {
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
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(format!("git: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    };
    if !git(&["status", "--porcelain"])?.is_empty() {
        return Err("expected a clean tree, got uncommitted changes".into());
    }
    git(&["rev-parse", "HEAD"])
}

/// What `lab bundle` wrote beside the tool.
fn beside_executable() -> Option<String> {
    let tool = std::env::current_exe().ok()?;
    std::fs::read_to_string(tool.parent().unwrap_or(Path::new(".")).join("commit")).ok()
}

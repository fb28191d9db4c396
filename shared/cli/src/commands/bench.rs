//! `lab bench`: the benchmark set on a GPU, and its records.

mod family;
mod machine;
mod scripts;

use std::path::PathBuf;

use clap::Args;
use lab_device::{Device, DeviceKind};
use lab_harness::launch_cost;
use lab_harness::record::{FORMAT, Measurement, Of, Run};
use lab_harness::{Dims, Error, Options, Version};
use serde_json::json;

use self::family::{Asked, Bench, by_family, told};
pub(crate) use self::machine::{clean_commit, copy_bandwidth, machine, now, state_of_tree};
use self::scripts::Scripts;
use crate::commands::against::Then;
use crate::failure::Failure;
use crate::table::table;
use crate::{Common, versions};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A family or a stage, or `launch`, what a launch costs; everything where none is named
    family: Option<String>,
    /// Only problems of these sizes, such as B=1,T=20; or, with all sizes named, a problem that is not of the set
    #[arg(long)]
    shape: Option<String>,
    /// Writes a record; refused where the measured tree is not a clean commit
    #[arg(long)]
    record: bool,
    /// The directory for the record
    #[arg(long, default_value = "benches/history")]
    out: PathBuf,
    /// Measures the libraries that are used from Python as well, by the scripts of this directory: each
    /// problem on the versions, then on them. LAB_PYTHON names another Python than python3
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "benches/peers")]
    peers: Option<PathBuf>,
    /// Says what moved beyond noise since the record of this commit, in the directory of --out
    #[arg(long, value_name = "REV")]
    against: Option<String>,
    /// Runs of each; of what is slow, as many as half a second allows, and three at least
    #[arg(long, default_value_t = 100)]
    runs: usize,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let chosen = match arguments.family.as_deref() {
        Some(launch_cost::FAMILY) => Vec::new(),
        family => right_ones(choose(family)?)?,
    };
    let asked = asked(arguments.shape.as_deref(), &chosen)?;
    let mut scripts = arguments.peers.as_deref().map(Scripts::new).transpose()?;
    let device = common.open()?;
    if device.kind() != DeviceKind::Cuda {
        let reason = Device::why_no_cuda()
            .map_or_else(|| "the emulator was asked for".into(), |e| e.to_string());
        return Err(Failure::Unavailable(format!(
            "timing needs a GPU (what the emulator takes says nothing about one): {reason}"
        )));
    }
    // Before anything is measured: an hour's work must not end in a refusal.
    let then = arguments
        .against
        .as_deref()
        .map(|revision| Then::read(&arguments.out, "--against", revision, Some(device.facts())));
    let then = then.transpose()?;
    let commit = if arguments.record { Some(clean_commit()?) } else { None };
    let copy_gbps = copy_bandwidth(&device)?;
    eprintln!("{}: a device-to-device copy moves {copy_gbps:.0} GB/s", device.name());
    let mut bench = Bench {
        device: &device,
        runs: arguments.runs.max(1),
        asked,
        copy_gbps,
        scripts: &mut scripts,
        lines: Vec::new(),
    };
    for versions in by_family(&chosen) {
        bench.measure(&versions)?;
    }
    let mut lines = bench.lines;
    // Measured problem by problem; told version by version.
    lines.sort_by_key(|l| l.place);
    let mut results: Vec<Measurement> = lines.into_iter().map(|l| l.result).collect();
    if arguments.family.as_deref().is_none_or(|family| family == launch_cost::FAMILY) {
        let overhead = launch_cost::measure(&device)?;
        overhead.iter().for_each(told);
        results.extend(overhead);
    }
    let written = match commit {
        None => None,
        Some(commit) => {
            let mut machine = machine(&device, copy_gbps)?;
            machine.libraries.extend(scripts.into_iter().flat_map(|s| s.libraries.clone()));
            let run = Run {
                format: FORMAT,
                commit,
                date: now(),
                device: machine,
                results: results.clone(),
            };
            Some(run.write(&arguments.out)?)
        }
    };
    if common.json {
        println!(
            "{}",
            json!({
                "device": device.name(), "copy_gbps": copy_gbps, "results": results,
                "record": written, "against": then.map(|then| then.json(&results)),
            })
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
        ">replayed, µs",
        ">GB/s",
        ">TFLOP/s",
        ">% of roofline",
        ">% of library",
        ">error",
        ">registers",
    ]);
    for m in &results {
        rows.add_row([
            match m.of {
                Of::Host => format!("{} (host time)", m.version),
                _ => match &m.computes {
                    Some(other) => format!("{} ({other})", m.version),
                    None => m.version.clone(),
                },
            },
            m.shape.clone(),
            m.dtype.clone(),
            format!("{:.1}", m.median_us),
            format!("{:.1}", m.p10_us),
            format!("{:.1}", m.p90_us),
            shown(m.replay_us, |v| format!("{v:.1}")),
            shown(m.gbps, |v| format!("{v:.0}")),
            shown(m.tflops, |v| format!("{v:.2}")),
            shown(m.roofline_percent, |v| format!("{v:.1}")),
            shown(m.library_percent(&results), |v| format!("{v:.1}")),
            shown(m.relative_error, |v| format!("{v:.1e}")),
            m.registers.map_or(String::new(), |n| n.to_string()),
        ]);
    }
    println!("{rows}");
    if let Some(then) = then {
        then.print(&results);
    }
    if let Some(name) = written {
        println!("wrote {}", arguments.out.join(name).display());
    }
    Ok(())
}

/// Of `--shape`: what at least one of the versions is timed on, or takes.
fn asked(shape: Option<&str>, chosen: &[&'static dyn Version]) -> Result<Asked, Failure> {
    let Some(text) = shape else { return Ok(Asked::Having(Dims::default())) };
    if let Some(asked) = Asked::of(Dims::parse(text)?, chosen) {
        return Ok(asked);
    }
    let of_version = |v: &&dyn Version| {
        v.info().dtypes.iter().flat_map(|t| v.bench_shapes(*t)).collect::<Vec<_>>()
    };
    let mut known: Vec<Dims> = chosen.iter().flat_map(of_version).collect();
    known.dedup();
    let known: Vec<String> = known.iter().map(Dims::to_string).collect();
    let expected = format!("sizes of one of {}", known.join(", or "));
    Err(Error::bad("shape", expected, format!("'{text}'")).into())
}

fn shown(value: Option<f64>, format: impl Fn(f64) -> String) -> String {
    value.map_or(String::new(), format)
}

pub(crate) fn choose(family: Option<&str>) -> Result<Vec<&'static dyn Version>, Failure> {
    let Some(name) = family else { return Ok(versions().collect()) };
    let chosen: Vec<_> =
        versions().filter(|v| v.info().family.name() == name || v.info().stage == name).collect();
    if chosen.is_empty() {
        let mut known: Vec<_> =
            versions().flat_map(|v| [v.info().stage, v.info().family.name()]).collect();
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

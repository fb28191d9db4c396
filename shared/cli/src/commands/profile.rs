//! `lab profile STAGE[:VERSION]`: what a run asks of the memory system, in total and by line.

use std::path::PathBuf;

use clap::Args;
use lab_device::emulator::{Counts, Operation, write_atomically};
use lab_device::{Device, Mode, Selector};
use lab_harness::{Dims, Error, Info, Options, compare};
use serde_json::{Value, json};

use crate::commands::run::{check_target, random_inputs};
use crate::failure::Failure;
use crate::profile::{self, Place, Report, ratio, unit};
use crate::{Common, named_one};

/// Said wherever the figures are shown.
const CAVEAT: &str = "A model, not a measurement: accesses counted on the CPU emulator; no caches, \
                      no times.";

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// STAGE[:VERSION], as `lab list` names them
    name: String,
    /// Sizes, such as R=4,C=100; what is left out is as in the small problem, rounded up to a power of two
    #[arg(long)]
    shape: Option<String>,
    /// Type of the inputs: f32, f16, bf16 or f64
    #[arg(long)]
    dtype: Option<String>,
    /// Seed of the inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// An option of the version; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Writes the kernel with its figures, and pictures of lanes, sectors and banks, as one page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let dtype = arguments.dtype.as_deref().and_then(|text| text.parse().ok());
    let version = named_one(&arguments.name, dtype, "")?.version;
    let info = version.info();
    if let Selector::Cuda(_) = common.selector()? {
        return Err(Failure::Usage(format!(
            "--device of profile: expected emulator, got '{}': the counters are the emulator's \
             model; a GPU's own are read by Nsight Compute: \
             `ncu --set full lab run {} --device {0}`",
            common.device,
            info.full_name(),
        )));
    }
    let options = Options::parse(&arguments.settings, info)?;
    if let Some(path) = &arguments.html {
        check_target(path)?;
    }
    let given = arguments.shape.as_deref().map(Dims::parse).transpose()?.unwrap_or_default();
    let shape = filled(&given, info);
    let inputs =
        random_inputs(version, &shape, arguments.dtype.as_deref(), arguments.seed, &options)?;
    let (dims, dtype) = info.problem_of(&inputs)?;
    let device = Device::emulator_in(Mode::Counted)?;
    let mut prepared = version.prepare(&device, &inputs, &options)?;
    device.take_profile(); // what setting up has launched
    prepared.launch()?;
    let profile = profile::settled(device.take_profile());
    let outputs = prepared.outputs()?;
    let report = Report {
        info,
        comparisons: compare(version, &inputs, &outputs, &options, dtype),
        cost: version.cost(&dims, dtype),
        dims,
        dtype,
        seed: arguments.seed,
        profile,
    };
    if let Some(path) = &arguments.html {
        write_atomically(path, profile::page(&report, CAVEAT).as_bytes()).map_err(|e| {
            Error::File { path: path.display().to_string(), message: e.to_string() }
        })?;
    }
    if common.json {
        println!("{}", as_json(&report, &device));
    } else {
        profile::print(&report, &device.name(), CAVEAT);
        if let Some(path) = &arguments.html {
            println!("wrote {}", path.display());
        }
    }
    match report.comparisons.iter().find(|c| !c.passed()) {
        None => Ok(()),
        Some(c) => Err(Failure::Wrong(format!(
            "{}: '{}' is off by {:.2e}, bound {:.2e} (worst at element {})",
            info.full_name(),
            c.name,
            c.relative_error,
            c.bound,
            c.worst_index
        ))),
    }
}

/// Whole warps and whole tiles make the better pictures; ragged edges are asked for by `--shape`.
fn filled(given: &Dims, info: &Info) -> Dims {
    let mut dims = given.clone();
    for dim in info.dims.iter().filter(|d| given.find(d.name).is_none()) {
        dims.set(dim.name, dim.small.next_power_of_two().min(dim.max));
    }
    dims
}

fn as_json(report: &Report<'_>, device: &Device) -> Value {
    let figures = |operation: Operation, c: &Counts| {
        json!({
            "operation": operation.name(), "unit": unit(operation), "requests": c.requests,
            "lanes": c.lanes, "bytes": c.bytes, "cost": c.cost, "ideal": c.ideal,
            "ratio": ratio(c), "degree": c.degree,
        })
    };
    let totals = report.totals().into_iter().map(|(operation, counts)| {
        let mut all = figures(operation, &counts);
        all["bytes_per_request"] = json!(counts.bytes as f64 / counts.requests as f64);
        all["nsight"] = json!(operation.nsight().map(|(r, c)| json!({ "requests": r, "cost": c })));
        all
    });
    let lines = report.profile.lines.iter().map(|line| {
        let place = Place::of(&line.place);
        let mut all = figures(line.operation, &line.counts);
        all["file"] = json!(place.file);
        all["line"] = json!(place.line);
        all["column"] = json!(place.column);
        all["source"] = json!(report.source_line(&place));
        all["worst"] = json!(report.worst(line));
        all["sample"] = json!(line.sample.as_ref().map(
            |s| json!({ "bytes": s.bytes, "lanes": s.lanes, "cost": s.cost, "ideal": s.ideal })
        ));
        all
    });
    json!({
        "version": report.info.full_name(), "device": device.name(), "note": CAVEAT,
        "shape": report.dims.to_string(), "dtype": report.dtype.name(), "seed": report.seed,
        "passed": report.passed(), "errors": report.comparisons,
        "declared": { "flops": report.cost.flops, "least_bytes": report.cost.bytes },
        "totals": totals.collect::<Vec<_>>(), "lines": lines.collect::<Vec<_>>(),
        "left_out": report.profile.left_out,
    })
}

//! `lab profile STAGE[:VERSION]`: what a run asks of the memory system, in total and by line.

use std::path::{Path, PathBuf};

use clap::Args;
use lab_checker::counted::CAVEAT;
use lab_device::emulator::write_atomically;
use lab_device::{Device, Mode, Selector};
use lab_harness::{Dims, Error, Info, Options, Version, compare, tensor};
use serde_json::{Value, json};

use crate::commands::run::{random_inputs, version_that_fits};
use crate::commands::{kernel, refuse_gpu};
use crate::failure::Failure;
use crate::profile::{self, Report};
use crate::{Common, named_for};
use lab_checker::check_target;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// STAGE[:VERSION] or a family, as `lab list` names them; or FILE.cu, anybody's
    #[arg(value_name = "STAGE|FILE.cu")]
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
    /// A safetensors file for the outputs
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    kernel: kernel::Arguments,
}

/// A kernel of a file, or the list of them.
fn of_file(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let file = Path::new(&arguments.name);
    let of_stage = [
        (arguments.shape.is_some(), "--shape"),
        (arguments.dtype.is_some(), "--dtype"),
        (!arguments.settings.is_empty(), "--set"),
        (arguments.html.is_some(), "--html"),
        (arguments.output.is_some(), "--output"),
    ];
    kernel::refuse_for_file(&arguments.name, &of_stage)?;
    refuse_gpu(common)?;
    if arguments.kernel.is_launch() {
        Ok(kernel::profile(common.json, file, &arguments.kernel, arguments.seed)?)
    } else {
        Ok(kernel::list(common.json, file, &arguments.kernel, "profile")?)
    }
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    if kernel::is_file(&arguments.name) {
        return of_file(common, arguments);
    }
    arguments.kernel.refuse_for_stage(&arguments.name)?;
    let dtype = arguments.dtype.as_deref().and_then(|text| text.parse().ok());
    let given = arguments.shape.as_deref().map(Dims::parse).transpose()?.unwrap_or_default();
    let fits = |version: &dyn Version| {
        let info = version.info();
        dtype.is_none_or(|d| info.dtypes.contains(&d))
            && info.complete(&filled(&given, info)).is_ok()
    };
    let version = named_for(&arguments.name, dtype, "", fits)?.version;
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
    for path in [&arguments.html, &arguments.output].into_iter().flatten() {
        check_target(path)?;
    }
    let shape = filled(&given, info);
    let other = (!fits(version)).then(|| version_that_fits(version, fits)).flatten();
    let inputs =
        random_inputs(version, &shape, arguments.dtype.as_deref(), arguments.seed, &options)
            .map_err(|refused| refused.naming(other))?;
    let (dims, dtype) = info.problem_of(&inputs)?;
    let device = Device::emulator_in(Mode::Counted)?;
    let mut prepared = version.prepare(&device, &inputs, &options)?;
    device.take_profile(); // what setting up has launched
    prepared.launch()?;
    let profile = profile::settled(device.take_profile());
    let outputs = prepared.outputs()?;
    if let Some(path) = &arguments.output {
        tensor::write(path, &outputs)?;
    }
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
        say!("{}", as_json(&report, &device));
    } else {
        profile::print(&report, &device.name(), CAVEAT);
        if let Some(path) = &arguments.html {
            say!("wrote {}", path.display());
        }
    }
    match report.comparisons.iter().find(|c| !c.passed()) {
        None => Ok(()),
        Some(c) => Err(Failure::Wrong(format!("{}: {}", info.full_name(), c.complaint()))),
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
    let counted = report.counted();
    json!({
        "version": report.info.full_name(), "device": device.name(), "note": CAVEAT,
        "shape": report.dims.to_string(), "dtype": report.dtype.name(), "seed": report.seed,
        "passed": report.passed(), "errors": report.comparisons,
        "declared": { "flops": report.cost.flops, "least_bytes": report.cost.bytes },
        "totals": counted.totals_json(), "lines": counted.lines_json(),
        "left_out": report.profile.left_out,
    })
}

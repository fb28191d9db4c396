//! `lab run STAGE[:VERSION]`.

use std::path::{Path, PathBuf};

use clap::Args;
use lab_device::DType;
use lab_device::emulator::host_memory;
use lab_harness::{
    Choice, Comparison, Dims, Error, Info, Options, Problem, Tensors, Version, compare, tensor,
};
use serde_json::json;

pub(crate) use lab_checker::check_target;

use crate::commands::kernel;
use crate::failure::Failure;
use crate::table::table;
use crate::{Common, named_for, named_one};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// STAGE[:VERSION] or a family, as `lab list` names them; or FILE.cu, anybody's
    #[arg(value_name = "STAGE|FILE.cu")]
    name: String,
    /// A safetensors file with the inputs
    #[arg(long)]
    input: Option<PathBuf>,
    /// A safetensors file for the outputs
    #[arg(long)]
    output: Option<PathBuf>,
    /// Sizes of random inputs, such as R=4,C=100
    #[arg(long, conflicts_with = "input")]
    shape: Option<String>,
    /// Type of random inputs: f32, f16, bf16 or f64
    #[arg(long, conflicts_with = "input")]
    dtype: Option<String>,
    /// Seed of random inputs
    #[arg(long, default_value_t = 0, conflicts_with = "input")]
    seed: u64,
    /// An option of the version; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Leaves out the comparison with the f64 reference
    #[arg(long)]
    no_check: bool,
    #[command(flatten)]
    kernel: kernel::Arguments,
    #[command(flatten)]
    expect: kernel::Expectations,
}

/// A kernel of a file, or the list of them.
fn of_file(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let file = Path::new(&arguments.name);
    let of_stage = [
        (arguments.input.is_some(), "--input"),
        (arguments.shape.is_some(), "--shape"),
        (arguments.dtype.is_some(), "--dtype"),
        (!arguments.settings.is_empty(), "--set"),
        (arguments.no_check, "--no-check"),
    ];
    kernel::refuse_for_file(&arguments.name, &of_stage)?;
    crate::commands::refuse_gpu(common)?;
    if !arguments.kernel.is_launch() {
        return Ok(kernel::list(common.json, file, &arguments.kernel, "run")?);
    }
    let targets = kernel::Targets { output: arguments.output.as_deref(), sarif: None };
    let Arguments { kernel, expect, seed, .. } = arguments;
    Ok(kernel::run(common.json, file, kernel, expect, &targets, *seed)?)
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    if kernel::is_file(&arguments.name) {
        return of_file(common, arguments);
    }
    arguments.kernel.refuse_for_stage(&arguments.name)?;
    arguments.expect.refuse_for_stage(&arguments.name)?;
    let given = arguments.input.as_deref().map(tensor::read).transpose()?;
    let of_file = given.as_ref().and_then(|tensors| tensors.values().next()).map(|t| t.dtype);
    let asked = arguments.dtype.as_deref().and_then(|text| text.parse().ok());
    let device = common.open()?;
    let arch = &device.facts().arch;
    let dims = arguments.shape.as_deref().map(Dims::parse).transpose()?.unwrap_or_default();
    let dtype = of_file.or(asked);
    let fits = |version: &dyn Version| {
        let info = version.info();
        dtype.is_none_or(|dtype| info.dtypes.contains(&dtype))
            && match &given {
                Some(tensors) => info.problem_of(tensors).is_ok(),
                None => info.complete(&dims).is_ok(),
            }
    };
    let Choice { version, better } = named_for(&arguments.name, dtype, arch, fits)?;
    let other = (!fits(version)).then(|| version_that_fits(version, fits)).flatten();
    if let Some((better, needs)) = better.filter(|_| !common.json) {
        note!("{} needs {needs}, this device is {arch}", better.info().full_name());
    }
    let info = version.info();
    let options = Options::parse(&arguments.settings, info)?;
    if let Some(path) = &arguments.output {
        check_target(path)?;
    }
    let inputs =
        inputs(version, given, arguments, &options).map_err(|refused| refused.naming(other))?;
    let (dims, dtype) = info.problem_of(&inputs)?;
    let outputs = lab_harness::run(version, &device, &inputs, &options)?;
    if let Some(path) = &arguments.output {
        tensor::write(path, &outputs)?;
    }
    let comparisons = if arguments.no_check {
        Vec::new()
    } else {
        compare(version, &inputs, &outputs, &options, dtype)
    };
    if common.json {
        let shapes: serde_json::Map<_, _> = outputs
            .iter()
            .map(|(n, t)| (n.clone(), json!({ "dtype": t.dtype.name(), "shape": t.shape })))
            .collect();
        say!(
            "{}",
            json!({
                "version": info.full_name(), "device": device.name(), "shape": dims.to_string(),
                "dtype": dtype.name(), "outputs": shapes, "errors": comparisons,
                "passed": comparisons.iter().all(Comparison::passed),
                "checked": !arguments.no_check,
            })
        );
    } else {
        print_result(version, &device.name(), &dims, dtype, &outputs, &comparisons);
        if let Some(path) = &arguments.output {
            say!("wrote {}", path.display());
        }
    }
    match comparisons.iter().find(|c| !c.passed()) {
        None => Ok(()),
        Some(c) => Err(Failure::Wrong(format!(
            "{}: {}{}",
            info.full_name(),
            c.complaint(),
            // A wrong result is wrong, whoever expects it: nobody should go on with it.
            on_purpose(version, &options)
        ))),
    }
}

/// Another version of the same family that takes a problem.
pub(crate) fn version_that_fits(
    version: &dyn Version,
    fits: impl Fn(&dyn Version) -> bool,
) -> Option<&'static dyn Version> {
    let family = version.info().family.name();
    let takes = |other: &&'static dyn Version| other.info().family.name() == family && fits(*other);
    crate::versions().filter(takes).last()
}

/// What there is to say where a version fails that must.
fn on_purpose(version: &dyn Version, options: &Options) -> String {
    let mistake = version.expected(options).mistake();
    mistake.map_or(String::new(), |m| format!("; it is wrong on purpose: {}", m.because))
}

fn inputs(
    version: &dyn Version,
    given: Option<Tensors>,
    arguments: &Arguments,
    options: &Options,
) -> Result<Tensors, Failure> {
    let info = version.info();
    if let Some(tensors) = given {
        let unused: Vec<_> =
            tensors.keys().filter(|n| !info.takes(n)).map(String::as_str).collect();
        info.problem_of(&tensors)?;
        if !unused.is_empty() {
            note!("not used: {}", unused.join(", "));
        }
        return Ok(tensors);
    }
    let given = arguments.shape.as_deref().map(Dims::parse).transpose()?.unwrap_or_default();
    random_inputs(version, &given, arguments.dtype.as_deref(), arguments.seed, options)
}

/// Random inputs of these sizes, in this type or else the version's first.
pub(crate) fn random_inputs(
    version: &dyn Version,
    given: &Dims,
    dtype: Option<&str>,
    seed: u64,
    options: &Options,
) -> Result<Tensors, Failure> {
    Ok(version.inputs(&problem(version, given, dtype, seed, options)?))
}

/// Refuses what names no version, or what that version does not take.
pub(crate) fn check_arguments(arguments: &Arguments) -> Result<(), Failure> {
    if kernel::is_file(&arguments.name) {
        return Ok(());
    }
    arguments.kernel.refuse_for_stage(&arguments.name)?;
    arguments.expect.refuse_for_stage(&arguments.name)?;
    let dtype = arguments.dtype.as_deref();
    let asked = dtype.and_then(|text| text.parse().ok());
    let version = named_one(&arguments.name, asked, "sm_90")?.version;
    let options = Options::parse(&arguments.settings, version.info())?;
    let given = arguments.shape.as_deref().map(Dims::parse).transpose()?.unwrap_or_default();
    problem(version, &given, dtype, arguments.seed, &options).map(|_| ())
}

fn problem(
    version: &dyn Version,
    given: &Dims,
    dtype: Option<&str>,
    seed: u64,
    options: &Options,
) -> Result<Problem, Failure> {
    let info = version.info();
    let dtype = match dtype {
        Some(text) => text
            .parse::<DType>()
            .map_err(|message| Failure::Usage(format!("--dtype: {message}")))?,
        None => info.dtypes[0],
    };
    info.check_dtype(dtype)?;
    let dims = info.complete(given)?;
    check_room(info, &dims, 1)?;
    Ok(Problem { dims, dtype, seed, options: options.clone() })
}

/// Refuses sizes whose tensors, and their f64 copies for the reference, have no room in memory, so many problems at once:
/// before they are made.
pub(crate) fn check_room(info: &Info, dims: &Dims, at_once: usize) -> Result<(), Error> {
    // Of small inputs large outputs may come. At least these bytes cross memory: inputs and outputs, once each.
    let dtype = info.dtypes[0];
    let crossing = info.family.cost(dims, dtype).bytes / dtype.size() as f64;
    let inputs = info.input_elements(dims);
    let elements = inputs.map(|n| n.max(crossing as usize)).filter(|&n| n <= 1 << 33);
    let Some(elements) = elements else {
        return Err(Error::bad("--shape", "at most 2^33 elements in all", dims));
    };
    let most = host_memory().0 / (16 * at_once.max(1) as u64);
    if elements as u64 > most {
        let expected = format!("sizes of at most {most} elements, for which memory is free");
        return Err(Error::bad("--shape", expected, dims));
    }
    Ok(())
}

fn print_result(
    version: &dyn Version,
    device: &str,
    dims: &Dims,
    dtype: DType,
    outputs: &Tensors,
    comparisons: &[Comparison],
) {
    say!("{} {dims} {dtype} on {device}", version.info().full_name());
    let mut rows =
        table(&["output", "first elements", ">error", ">bound", ">elements, % of allowed", ""]);
    for (name, tensor) in outputs {
        let values = tensor.values();
        let mut shown: Vec<String> = values.iter().take(4).map(|v| format!("{v:.6}")).collect();
        if values.len() > 4 {
            shown.push("…".into());
        }
        let c = comparisons.iter().find(|c| c.name == name);
        rows.add_row([
            format!("{name} {}", tensor.describe()),
            shown.join(" "),
            c.map_or("not checked".into(), |c| format!("{:.2e}", c.relative_error)),
            c.map_or(String::new(), |c| format!("{:.2e}", c.bound)),
            c.map_or(String::new(), |c| format!("{:.0}", 100.0 * c.element_share)),
            c.map_or("", |c| if c.passed() { "ok" } else { "WRONG" }).into(),
        ]);
    }
    say!("{rows}");
}

//! `lab compare FAMILY`: all versions on one problem.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use lab_device::emulator::{Counts, Operation, Profile};
use lab_device::{DType, Device, DeviceKind, Mode};
use lab_harness::{
    Comparison, Dims, Mistake, Options, Problem, Tensor, Tensors, Version, compare, suite, tensor,
    timing,
};
use serde_json::json;

use crate::Common;
use crate::commands::bench::{choose, copy_bandwidth};
use crate::failure::Failure;
use crate::plot::{self, Bar};
use crate::profile::{number, ratio};
use crate::table::{bytes, table};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A family or a stage
    family: String,
    /// Sizes, such as R=4,C=100; what a version does not know is left out
    #[arg(long)]
    shape: Option<String>,
    /// Type of the inputs
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// Seed of the inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Draws the comparison into this file
    #[arg(long)]
    svg: Option<PathBuf>,
}

struct Row {
    name: String,
    family: &'static str,
    parent: Option<&'static str>,
    dims: Dims,
    error: f64,
    bound: f64,
    passed: bool,
    bytes: f64,
    flops: f64,
    median_us: Option<f64>,
    counted: Option<Counted>,
    /// Of a version that is wrong on purpose: why.
    wrong: Option<&'static str>,
}

/// Over all lines, on the emulator.
#[derive(Clone, Copy)]
struct Counted {
    global: Counts,
    shared: Counts,
}

impl Counted {
    fn of(profile: &Profile) -> Self {
        let sum = |which: fn(Operation) -> bool| {
            let mut sum = Counts::default();
            let lines = profile.lines.iter().filter(|l| which(l.operation));
            lines.for_each(|l| sum.add(&l.counts));
            sum
        };
        Self { global: sum(Operation::global), shared: sum(Operation::shared) }
    }
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let dtype: DType =
        arguments.dtype.parse().map_err(|m| Failure::Usage(format!("--dtype: {m}")))?;
    let given = arguments.shape.as_deref().map(Dims::parse).transpose()?.unwrap_or_default();
    let chosen = choose(Some(&arguments.family))?;
    let able: Vec<_> = chosen.iter().filter(|v| v.info().dtypes.contains(&dtype)).collect();
    if able.is_empty() {
        chosen[0].info().check_dtype(dtype)?;
    }
    let mut device = common.open()?;
    if device.kind() == DeviceKind::Emulator {
        device = Device::emulator_in(Mode::from_env_or(Mode::Counted)?)?;
    }
    let gpu = device.kind() == DeviceKind::Cuda;
    let copy_gbps = if gpu { Some(copy_bandwidth(&device)?) } else { None };
    let bar = ProgressBar::new(able.len() as u64);
    let mut rows: Vec<Row> = Vec::new();
    for version in able {
        let dims = dims_for(*version, &given, dtype, gpu)?;
        let problem = Problem { seed: arguments.seed, ..Problem::new(dims, dtype) };
        rows.extend(measure(*version, &device, &problem)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if let Some(path) = &arguments.svg {
        plot::write(path, &chart(&arguments.family, &device, dtype, &rows, copy_gbps)?)?;
    }
    if common.json {
        let all = rows.iter().map(|r| {
            json!({ "version": r.name, "family": r.family, "parent": r.parent, "shape": r.dims.to_string(),
                    "dtype": dtype.name(), "relative_error": r.error, "bound": r.bound, "passed": r.passed,
                    "least_bytes": r.bytes, "flops": r.flops, "median_us": r.median_us,
                    "wrong_on_purpose": r.wrong,
                    "gbps": r.median_us.map(|t| r.bytes / t * 1e-3),
                    "global": r.counted.map(|c| in_json(&c.global)),
                    "shared": r.counted.map(|c| in_json(&c.shared)) })
        });
        let all: Vec<_> = all.collect();
        println!("{}", json!({ "device": device.name(), "copy_gbps": copy_gbps, "versions": all }));
    } else {
        print_rows(&device, dtype, &rows, copy_gbps);
        if let Some(path) = &arguments.svg {
            println!("wrote {}", path.display());
        }
    }
    match rows.iter().find(|r| !r.passed) {
        None => Ok(()),
        Some(r) => Err(Failure::Wrong(format!(
            "{} is wrong: error {:.2e}, bound {:.2e}",
            r.name, r.error, r.bound
        ))),
    }
}

fn in_json(c: &Counts) -> serde_json::Value {
    json!({ "requests": c.requests, "bytes": c.bytes, "cost": c.cost, "ideal": c.ideal,
            "ratio": ratio(c), "degree": c.degree })
}

/// The sizes that were given, of those that the version has; the rest as is timed on a GPU, and
/// small on the emulator.
fn dims_for(version: &dyn Version, given: &Dims, dtype: DType, gpu: bool) -> Result<Dims, Failure> {
    let info = version.info();
    let mut dims = if gpu { info.timed(dtype) } else { info.small() };
    for (name, size) in given.iter() {
        if dims.find(name).is_some() {
            dims.set(name, size);
        }
    }
    Ok(info.complete(&dims)?)
}

/// The version, and where there is one its counterpart on the host.
fn measure(
    version: &'static dyn Version,
    device: &Device,
    problem: &Problem,
) -> Result<Vec<Row>, Failure> {
    let info = version.info();
    if let Some(mistake) = version.expected(&problem.options).mistake() {
        return Ok(vec![wrong_on_purpose(version, device, problem, mistake)?]);
    }
    let inputs = version.inputs(problem);
    let mut prepared = version.prepare(device, &inputs, &problem.options)?;
    device.take_profile(); // what setting up has launched
    prepared.launch()?;
    let profile = device.take_profile();
    let outputs = prepared.outputs()?;
    let comparisons = compare(version, &inputs, &outputs, &problem.options, problem.dtype);
    let worst = comparisons
        .iter()
        .max_by(|a, b| a.relative_error.total_cmp(&b.relative_error))
        .expect("a version has outputs");
    let gpu = device.kind() == DeviceKind::Cuda;
    let passed = comparisons.iter().all(Comparison::passed);
    let times = match gpu && passed {
        true => Some(timing::time(device, prepared.as_mut(), 50)?),
        false => None,
    };
    let cost = version.cost(&problem.dims, problem.dtype);
    let row = Row {
        name: info.full_name(),
        family: info.family,
        parent: info.parent,
        dims: problem.dims.clone(),
        error: worst.relative_error,
        bound: worst.bound,
        passed,
        bytes: cost.bytes,
        flops: cost.flops,
        median_us: times.map(|t| t.median_us),
        counted: (device.mode() == Some(Mode::Counted)).then(|| Counted::of(&profile)),
        wrong: None,
    };
    let mut rows = vec![row];
    if gpu && let Some((times, error)) = time_on_host(version, &inputs) {
        rows.push(Row {
            name: "cpu".into(),
            dims: problem.dims.clone(),
            error,
            parent: None,
            median_us: Some(times.median_us),
            ..rows[0]
        });
    }
    Ok(rows)
}

/// How far off it is; neither timed nor counted, for it does not do the work. Without the
/// emulator's checks, which would end it before there is a result.
fn wrong_on_purpose(
    version: &'static dyn Version,
    device: &Device,
    problem: &Problem,
    mistake: &Mistake,
) -> Result<Row, Failure> {
    let info = version.info();
    let case = suite::check(version, &suite::without_checks(device)?, problem);
    let outputs = case.outcome.as_ref().map_err(|m| Failure::Wrong(m.clone()))?;
    let cost = version.cost(&problem.dims, problem.dtype);
    Ok(Row {
        name: info.full_name(),
        family: info.family,
        parent: info.parent,
        dims: problem.dims.clone(),
        error: outputs.iter().map(|c| c.relative_error).fold(0.0, f64::max),
        bound: outputs.iter().map(|c| c.bound).fold(0.0, f64::max),
        passed: case.passed(),
        bytes: cost.bytes,
        flops: cost.flops,
        median_us: None,
        counted: None,
        wrong: Some(mistake.because),
    })
}

/// The version's counterpart on the host's cores, timed by the host's clock, and its error.
pub(crate) fn time_on_host(
    version: &dyn Version,
    inputs: &Tensors,
) -> Option<(timing::Times, f64)> {
    let mut host = version.cpu(inputs)?;
    host.run();
    let times: Vec<Duration> = (0..10)
        .map(|_| {
            let start = Instant::now();
            host.run();
            start.elapsed()
        })
        .collect();
    let name = version.info().outputs.first()?.name;
    let outputs = tensor::tensors([(name, Tensor::new(&[host.out.len()], &host.out))]);
    let compared = compare(version, inputs, &outputs, &Options::default(), DType::F32);
    Some((timing::Times::of(&times), compared.first()?.relative_error))
}

fn print_rows(device: &Device, dtype: DType, rows: &[Row], copy_gbps: Option<f64>) {
    println!("{} on {}", dtype, device.name());
    let mut headings = vec!["version", "shape", ">error", ">bound", ">least traffic"];
    match copy_gbps {
        Some(_) => headings.extend([">median, µs", ">GB/s", ">% of copy", ">× parent"]),
        None => headings.extend([">flops / byte", ">sectors, × ideal", ">wavefronts, × ideal"]),
    }
    let mut shown = table(&headings);
    for r in rows {
        let mut cells = vec![
            r.name.clone(),
            r.dims.to_string(),
            format!("{:.1e}", r.error),
            format!("{:.1e}", r.bound),
            bytes(r.bytes),
        ];
        match (copy_gbps, r.median_us) {
            (Some(copy), Some(time)) => {
                let gbps = r.bytes / time * 1e-3;
                let parent = rows
                    .iter()
                    .find(|p| {
                        p.family == r.family
                            && r.parent.is_some_and(|n| p.name.ends_with(&format!(":{n}")))
                    })
                    .and_then(|p| p.median_us);
                cells.extend([
                    format!("{time:.1}"),
                    format!("{gbps:.0}"),
                    format!("{:.1}", 100.0 * gbps / copy),
                    parent.map_or(String::new(), |p| format!("{:.2}", p / time)),
                ]);
            }
            _ => {
                cells.push(match r.wrong {
                    Some(_) => "wrong".into(),
                    None => format!("{:.3}", r.flops / r.bytes),
                });
                cells.push(r.counted.map_or(String::new(), |c| share(&c.global)));
                cells.push(r.counted.map_or(String::new(), |c| share(&c.shared)));
            }
        }
        shown.add_row(cells);
    }
    println!("{shown}");
    for (name, because) in rows.iter().filter_map(|r| Some((&r.name, r.wrong?))) {
        println!("{name} is wrong on purpose, and neither timed nor counted: {because}.");
    }
    if copy_gbps.is_none() {
        println!(
            "No times: what the emulator takes says nothing about a GPU. Sectors (global memory) and \
             wavefronts (shared memory) are counted: a model, not a measurement; `lab profile` has them by line."
        );
    }
}

/// `8,192, 8.00×`
fn share(counts: &Counts) -> String {
    match ratio(counts) {
        Some(ratio) => format!("{}, {ratio:.2}×", number(counts.cost)),
        None => "none".into(),
    }
}

fn chart(
    family: &str,
    device: &Device,
    dtype: DType,
    rows: &[Row],
    copy_gbps: Option<f64>,
) -> Result<String, Failure> {
    let mut groups: Vec<&str> = rows.iter().map(|r| r.family).collect();
    groups.dedup();
    let group = |r: &Row| groups.iter().position(|g| *g == r.family).unwrap_or(0);
    let bars: Vec<Bar> = rows
        .iter()
        .filter_map(|r| {
            let (value, note) = match (copy_gbps, r.median_us) {
                (Some(_), Some(time)) => {
                    let gbps = r.bytes / time * 1e-3;
                    (gbps, format!("{gbps:.0} GB/s, {time:.0} µs"))
                }
                (None, _) => (r.error / r.bound.max(f64::MIN_POSITIVE), format!("{:.1e}", r.error)),
                _ => return None,
            };
            Some(Bar { label: r.name.clone(), value, note, group: group(r) })
        })
        .collect();
    let title = format!("{family}, {dtype}, {}", device.name());
    let full = copy_gbps.map_or((1.0, "error bound"), |gbps| (gbps, "plain copy"));
    Ok(plot::bars(&title, full, &bars)?)
}

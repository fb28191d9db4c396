//! `lab compare FAMILY`: all versions on one problem.

use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;
use lab_device::emulator::{Counts, Operation, Profile};
use lab_device::{Arithmetic, DType, Device, DeviceKind, Facts, Mode};
use lab_harness::Products;
use lab_harness::roofline::Roofline;
use lab_harness::{Comparison, Cost, Dims, Mistake, Posed, Problem, Version, suite};
use lab_history::works_in_chunks;
use lab_plots::Bar;
use lab_records::record::Of;
use serde_json::json;

use crate::Common;
use crate::commands::bench::{CHUNKS_ARE_NOT_COUNTED, choose, copy_bandwidth};
use crate::commands::measure::{self, Beside, Measured, Runs, time_counterpart};
use crate::commands::run::check_room;
use crate::failure::Failure;
use crate::profile::{number, ratio};
use crate::table::{bytes, list};

/// Runs of each, at most.
const RUNS: usize = 50;

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
    of: Of,
    family: &'static str,
    parent: Option<&'static str>,
    dims: Dims,
    error: f64,
    bound: f64,
    /// Of what an element may be off by, the share that the worst one takes.
    element_share: f64,
    /// Of a wrong result: what is wrong.
    complaint: String,
    passed: bool,
    bytes: f64,
    flops: f64,
    /// The units whose peak is its roofline.
    arithmetic: Option<Arithmetic>,
    median_us: Option<f64>,
    /// Registers and bytes of local memory a thread.
    usage: Option<(u32, u32)>,
    counted: Option<Counted>,
    /// Of a version that is wrong on purpose: why.
    wrong: Option<&'static str>,
}

/// What a GPU can do, whatever the units.
#[derive(Clone, Copy)]
struct Ceilings<'a> {
    facts: &'a Facts,
    copy_gbps: f64,
}

impl Ceilings<'_> {
    fn of(&self, arithmetic: Option<Arithmetic>) -> Roofline {
        Roofline::new(self.facts, arithmetic, self.copy_gbps)
    }
}

/// What is said beside the rows: what could not be measured here, and why.
type Notes = Vec<String>;

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
    let able: Vec<_> =
        chosen.iter().copied().filter(|v| v.info().dtypes.contains(&dtype)).collect();
    if able.is_empty() {
        chosen[0].info().check_dtype(dtype)?;
    }
    let mut device = common.open()?;
    if device.kind() == DeviceKind::Emulator {
        device = Device::emulator_in(Mode::from_env_or(Mode::Counted)?)?;
    }
    let gpu = device.kind() == DeviceKind::Cuda;
    let copy_gbps = if gpu { Some(copy_bandwidth(&device)?) } else { None };
    let (able, old): (Vec<&dyn Version>, Vec<_>) =
        able.into_iter().partition(|v| measure::too_old(*v, &device).is_none());
    let mut notes: Notes = old.iter().filter_map(|v| measure::too_old(*v, &device)).collect();
    notes.extend(left_out(&chosen, dtype));
    let bar = ProgressBar::new(able.len() as u64);
    let mut rows: Vec<Row> = Vec::new();
    let mut posed: Option<Posed> = None;
    for (index, &version) in able.iter().enumerate() {
        let info = version.info();
        let dims = dims_for(version, &given, dtype, gpu)?;
        // One reference for all versions of a family, which come one after the other.
        let same =
            rows.last().is_some_and(|r: &Row| r.family == info.family.name() && r.dims == dims);
        let current = match posed.take().filter(|_| same) {
            Some(posed) => posed,
            None => {
                let problem = Problem { seed: arguments.seed, ..Problem::new(dims, dtype) };
                let posed = Posed::affordable(version, problem);
                let family = info.family.name();
                notes.extend(
                    posed.heads().map(|heads| format!("{family}: judged on {heads}, each whole")),
                );
                posed
            }
        };
        rows.extend(measure_version(version, &device, &current)?);
        let next = able.get(index + 1).map(|v| v.info());
        if next.is_none_or(|n| (n.stage, n.family.name()) != (info.stage, info.family.name())) {
            // Held to what the first version is held to: a later one may trade digits for speed.
            let of_family = |v: &&dyn Version| v.info().family.name() == info.family.name();
            let first = able.iter().copied().find(of_family).unwrap_or(version);
            rows.extend(beside(first, &device, &current, &mut notes)?);
        }
        posed = Some(current);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let rooflines = copy_gbps.map(|copy_gbps| Ceilings { facts: device.facts(), copy_gbps });
    if let Some(path) = &arguments.svg {
        lab_plots::write(path, &chart(&arguments.family, &device, dtype, &rows, copy_gbps)?)?;
    }
    if common.json {
        let all = rows.iter().map(|r| {
            json!({ "version": r.name, "of": r.of, "family": r.family, "parent": r.parent,
                    "shape": r.dims.to_string(), "dtype": dtype.name(), "relative_error": r.error,
                    "bound": r.bound, "element_share": r.element_share, "passed": r.passed, "least_bytes": r.bytes, "flops": r.flops,
                    "median_us": r.median_us, "gbps": r.median_us.map(|t| r.bytes / t * 1e-3),
                    "tflops": r.median_us.map(|t| r.flops / t * 1e-6),
                    "roofline_percent": rooflines.and_then(|l| r.roofline_percent(l)),
                    "library_percent": r.library_percent(&rows),
                    "wrong_on_purpose": r.wrong,
                    "registers": r.usage.map(|u| u.0), "local_bytes": r.usage.map(|u| u.1),
                    "global": r.counted.map(|c| in_json(&c.global)),
                    "shared": r.counted.map(|c| in_json(&c.shared)) })
        });
        let all: Vec<_> = all.collect();
        say!(
            "{}",
            json!({ "device": device.name(), "copy_gbps": copy_gbps,
                    "peak_tflops": rooflines.and_then(|l| l.of(Arithmetic::fastest_for(dtype)).peak_tflops),
                    "versions": all, "notes": notes })
        );
    } else {
        match rooflines {
            Some(ceilings) => print_times(&device, dtype, &rows, ceilings),
            None => print_counts(&device, dtype, &rows),
        }
        notes.iter().for_each(|n| say!("{n}"));
        if let Some(path) = &arguments.svg {
            say!("wrote {}", path.display());
        }
    }
    match rows.iter().find(|r| !r.passed) {
        None => Ok(()),
        Some(r) => Err(Failure::Wrong(format!("{} is wrong: {}", r.name, r.complaint))),
    }
}

/// Says which versions do not take this type, and in which one most of them could be compared.
fn left_out(chosen: &[&'static dyn Version], dtype: DType) -> Option<String> {
    let takes = |v: &&&'static dyn Version, dtype| v.info().dtypes.contains(&dtype);
    let others: Vec<_> = chosen.iter().filter(|v| !takes(v, dtype)).collect();
    let types = others.iter().flat_map(|v| v.info().dtypes);
    let count = |other: DType| others.iter().filter(|v| v.info().dtypes.contains(&other)).count();
    let best = types.copied().rev().max_by_key(|&other| count(other))?;
    let names: Vec<String> = others.iter().map(|v| v.info().full_name()).collect();
    Some(format!("Left out, for they are not in {dtype} (--dtype {best}): {}", names.join(", ")))
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
    let dims = info.complete(&dims)?;
    if given.iter().next().is_some() {
        check_room(info, &dims, 1)?;
    }
    Ok(dims)
}

/// The version, and where there is one its counterpart on the host.
fn measure_version(
    version: &'static dyn Version,
    device: &Device,
    posed: &Posed,
) -> Result<Vec<Row>, Failure> {
    let (info, problem) = (version.info(), &posed.problem);
    if let Some(mistake) = version.expected(&problem.options).mistake() {
        return Ok(vec![wrong_on_purpose(version, device, posed, mistake)?]);
    }
    let gpu = device.kind() == DeviceKind::Cuda;
    let mut prepared = version.prepare(device, &posed.inputs, &problem.options)?;
    device.take_profile(); // what setting up has launched
    prepared.launch()?;
    let profile = device.take_profile();
    let runs = if gpu { RUNS } else { 0 };
    let m = measure::finish(
        version,
        device,
        posed,
        prepared.as_mut(),
        Runs { count: runs, replayed: true },
    )?;
    let counted = (device.mode() == Some(Mode::Counted)).then(|| Counted::of(&profile));
    let row = Row { counted, ..Row::of(version, posed, info.full_name(), Of::Version, &m) };
    let mut rows = vec![row];
    if gpu && let Some((times, comparison)) = time_counterpart(version, &posed.inputs) {
        rows.push(Row {
            name: "cpu".into(),
            of: Of::Host,
            error: comparison.relative_error,
            median_us: Some(times.median_us),
            parent: None,
            usage: None,
            ..Row::of(version, posed, String::new(), Of::Host, &m)
        });
    }
    Ok(rows)
}

/// How far off it is; neither timed nor counted, for it does not do the work. Without the
/// emulator's checks, which would end it before there is a result.
fn wrong_on_purpose(
    version: &'static dyn Version,
    device: &Device,
    posed: &Posed,
    mistake: &Mistake,
) -> Result<Row, Failure> {
    let (info, problem) = (version.info(), &posed.problem);
    let case = suite::check(version, &suite::without_checks(device)?, problem);
    let outputs = case.outcome.as_ref().map_err(|m| Failure::Wrong(m.clone()))?;
    let cost = version.cost(&problem.dims, problem.dtype);
    Ok(Row {
        name: info.full_name(),
        of: Of::Version,
        family: info.family.name(),
        parent: info.parent,
        dims: problem.dims.clone(),
        error: outputs.iter().map(|c| c.relative_error).fold(0.0, f64::max),
        bound: outputs.iter().map(|c| c.bound).fold(0.0, f64::max),
        element_share: outputs.iter().map(|c| c.element_share).fold(0.0, f64::max),
        complaint: outputs
            .iter()
            .find(|c| !c.passed())
            .map(Comparison::complaint)
            .unwrap_or_default(),
        passed: case.passed(),
        bytes: cost.bytes,
        flops: cost.flops,
        arithmetic: version.arithmetic(problem.dtype),
        median_us: None,
        usage: None,
        counted: None,
        wrong: Some(mistake.because),
    })
}

/// The peers of the family of which `version` is one.
fn beside(
    version: &'static dyn Version,
    device: &Device,
    posed: &Posed,
    notes: &mut Notes,
) -> Result<Vec<Row>, Failure> {
    let info = version.info();
    let stage = crate::stage(info.stage)?;
    let mut rows = Vec::new();
    for peer in stage.peers_of(info.family.name()) {
        let own = peer.info();
        let dtype = posed.problem.dtype;
        if !own.runs_beside(device) {
            continue;
        }
        if !own.dtypes.contains(&dtype) {
            notes.push(format!("{}: not in {dtype}", own.name));
            continue;
        }
        let rounds = Products::of(version.arithmetic(dtype), dtype);
        if own.products.is_some() && own.products != rounds {
            continue;
        }
        match measure::peer(peer, version, device, posed, RUNS)? {
            Beside::Not(reason) => notes.push(format!("{}: {reason}", own.name)),
            Beside::Ran(m, _) => {
                let name = own.name.to_owned();
                let row = Row::of(version, posed, name, measure::of(peer), &m);
                let units = own.products.map(Products::units);
                let arithmetic = units.or(Arithmetic::fastest_for(dtype));
                rows.push(Row { parent: None, arithmetic, ..row });
                notes.push(format!("{}: {}", own.name, own.what));
            }
        }
    }
    Ok(rows)
}

impl Row {
    fn of(
        version: &'static dyn Version,
        posed: &Posed,
        name: String,
        of: Of,
        m: &Measured,
    ) -> Self {
        let (info, problem) = (version.info(), &posed.problem);
        let cost = version.cost(&problem.dims, problem.dtype);
        Self {
            name,
            of,
            family: info.family.name(),
            parent: info.parent,
            dims: problem.dims.clone(),
            error: m.comparison.relative_error,
            bound: m.comparison.bound,
            element_share: m.comparison.element_share,
            complaint: m.comparison.complaint(),
            passed: m.passed(),
            bytes: cost.bytes,
            flops: cost.flops,
            arithmetic: match of {
                Of::Version => version.arithmetic(problem.dtype),
                _ => Arithmetic::fastest_for(problem.dtype),
            },
            median_us: m.times.map(|t| t.median_us),
            usage: m.usage,
            counted: None,
            wrong: None,
        }
    }

    fn cost(&self) -> Cost {
        Cost { flops: self.flops, bytes: self.bytes }
    }

    /// Of what runs on the GPU.
    fn roofline_percent(&self, ceilings: Ceilings<'_>) -> Option<f64> {
        let on_gpu = self.median_us.filter(|_| self.of != Of::Host);
        on_gpu.map(|us| ceilings.of(self.arithmetic).percent(&self.cost(), us))
    }

    /// The library's time over that of a version, in percent.
    fn library_percent(&self, rows: &[Self]) -> Option<f64> {
        let library = library_of(self, rows).filter(|_| self.of == Of::Version)?;
        Some(100.0 * library.median_us? / self.median_us?)
    }

    fn parent_ratio(&self, rows: &[Self]) -> Option<f64> {
        let name = format!(":{}", self.parent?);
        let parent = rows.iter().find(|p| p.family == self.family && p.name.ends_with(&name));
        Some(parent?.median_us? / self.median_us?)
    }
}

/// One that rounds as it does, if there is one.
fn library_of<'a>(row: &Row, rows: &'a [Row]) -> Option<&'a Row> {
    let is_library = |r: &&Row| r.of == Of::Library && r.family == row.family && r.dims == row.dims;
    let like = rows.iter().filter(is_library).find(|r| r.arithmetic == row.arithmetic);
    like.or_else(|| rows.iter().find(is_library))
}

/// Those of each problem, in the order in which these come.
fn by_problem<'a>(rows: &[&'a Row]) -> Vec<(&'a Dims, Vec<&'a Row>)> {
    let mut all: Vec<(&Dims, Vec<&Row>)> = Vec::new();
    for row in rows {
        match all.iter_mut().find(|(dims, _)| **dims == row.dims) {
            Some((_, own)) => own.push(row),
            None => all.push((&row.dims, vec![row])),
        }
    }
    all
}

fn print_mistakes(rows: &[Row]) {
    for (name, because) in rows.iter().filter_map(|r| Some((&r.name, r.wrong?))) {
        say!("{name} is wrong on purpose, and neither timed nor counted: {because}.");
    }
}

/// What a GPU took.
fn print_times(device: &Device, dtype: DType, rows: &[Row], ceilings: Ceilings<'_>) {
    say!("{dtype} on {}", device.name());
    let text = |value: Option<f64>, digits: usize| {
        value.map_or(String::new(), |v| format!("{v:.digits$}"))
    };
    let significant = |value: Option<f64>| match value {
        Some(v) if v < 10.0 => format!("{v:.2}"),
        other => text(other, 0),
    };
    for (dims, own) in by_problem(&rows.iter().collect::<Vec<_>>()) {
        say!("\n{dims}");
        let mut headings =
            vec!["version", ">error", ">µs", ">GB/s", ">TFLOP/s", ">roofline", ">× parent"];
        // One library has the column to itself; of several, each family's own is meant.
        let libraries: Vec<&&Row> = own.iter().filter(|r| r.of == Of::Library).collect();
        let of_library = match &libraries[..] {
            [] => None,
            [one] => Some(format!(">of {}", one.name)),
            _ => Some(">of library".into()),
        };
        headings.extend(of_library.as_deref());
        headings.extend([">registers", ">spilled"]);
        let mut shown = list(&headings);
        let is_counted = |r: &Row| !works_in_chunks(&r.name);
        let in_chunks = !own.iter().all(|r| is_counted(r));
        for r in own {
            let mut cells = vec![
                match r.of {
                    Of::Host => format!("{} (host time)", r.name),
                    _ => r.name.clone(),
                },
                format!("{:.1e}", r.error),
                r.median_us.map_or("wrong".into(), |t| format!("{t:.1}")),
                text(r.median_us.map(|t| r.bytes / t * 1e-3), 0),
                significant(
                    r.median_us
                        .filter(|_| is_counted(r) && r.flops > 0.0)
                        .map(|t| r.flops / t * 1e-6),
                ),
                r.roofline_percent(ceilings)
                    .filter(|_| is_counted(r))
                    .map_or(String::new(), |v| format!("{v:.0} %")),
                text(r.parent_ratio(rows), 2),
            ];
            if of_library.is_some() {
                cells.push(r.library_percent(rows).map_or(String::new(), |v| format!("{v:.0} %")));
            }
            cells.push(r.usage.map_or(String::new(), |u| u.0.to_string()));
            cells.push(r.usage.map_or(String::new(), |u| u.1.to_string()));
            shown.add_row(cells);
        }
        say!("{shown}");
        if in_chunks {
            say!("{CHUNKS_ARE_NOT_COUNTED}");
        }
    }
    print_mistakes(rows);
    let mut told: Vec<Option<Arithmetic>> = Vec::new();
    for row in rows.iter().filter(|r| r.of == Of::Version && !works_in_chunks(&r.name)) {
        if told.contains(&row.arithmetic) {
            continue;
        }
        told.push(row.arithmetic);
        let roofline = ceilings.of(row.arithmetic);
        let (us, bound) = roofline.least_us(&row.cost());
        let peak = match (row.arithmetic, roofline.peak_tflops) {
            (Some(units), Some(peak)) => format!("{units} do {peak:.1} TFLOP/s at most"),
            _ => "what its units do is not known here".into(),
        };
        say!(
            "Roofline of {}: a plain copy moves {:.0} GB/s, {peak}. {} takes {us:.1} µs at least, for its {bound}.",
            row.name,
            roofline.copy_gbps,
            row.dims
        );
    }
}

/// What the emulator counted. Host lines have times of the host, which are its own.
fn print_counts(device: &Device, dtype: DType, rows: &[Row]) {
    say!("{dtype} on {}", device.name());
    let versions: Vec<&Row> = rows.iter().filter(|r| r.of == Of::Version).collect();
    for (dims, own) in by_problem(&versions) {
        let least = own.iter().map(|r| r.bytes).fold(f64::INFINITY, f64::min);
        say!("\n{dims}: {} must cross device memory", bytes(least));
        let headings = ["version", ">error", ">bound", ">sectors, × ideal", ">wavefronts, × ideal"];
        let mut shown = list(&headings);
        for r in own {
            shown.add_row([
                r.name.clone(),
                format!("{:.1e}", r.error),
                format!("{:.1e}", r.bound),
                match r.wrong {
                    Some(_) => "wrong".into(),
                    None => r.counted.map_or(String::new(), |c| share(&c.global)),
                },
                r.counted.map_or(String::new(), |c| share(&c.shared)),
            ]);
        }
        say!("{shown}");
    }
    print_mistakes(rows);
    say!(
        "No times: what the emulator takes says nothing about a GPU. Sectors (32 bytes of global memory) and \
         wavefronts (passes over shared memory) are counted: a model, not a measurement; × ideal: of the fewest for these \
         requests. `lab profile` has them by line."
    );
    for r in rows.iter().filter(|r| r.of == Of::Host) {
        let Some(us) = r.median_us else { continue };
        say!(
            "The host itself, by its own clock: {} {}: {us:.1} µs, {:.2} GFLOP/s, error {:.1e}",
            r.name,
            r.dims,
            r.flops / us * 1e-3,
            r.error
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
            Some(Bar { label: r.name.clone(), value, note, guess: None, group: group(r) })
        })
        .collect();
    let title = format!("{family}, {dtype}, {}", device.name());
    let full = copy_gbps.map_or((1.0, "error bound"), |gbps| (gbps, "plain copy"));
    Ok(lab_plots::bars(&title, full, &bars)?)
}

//! `lab bench`: the benchmark set on a GPU, and its records.

mod scripts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use lab_device::nvrtc::Nvrtc;
use lab_device::{Arithmetic, DType, Device, DeviceKind, Launch};
use lab_harness::record::{FORMAT, Machine, Measurement, Of, Products, Run};
use lab_harness::roofline::Roofline;
use lab_harness::timing::Times;
use lab_harness::{
    Comparison, Cost, Dims, Error, Options, Posed, Problem, Stage, Version, device_checks,
};
use serde_json::json;

use self::scripts::{Scripts, Theirs};
use crate::commands::against::Then;
use crate::commands::compare::time_on_host;
use crate::commands::measure::{self, Beside, Measured};
use crate::failure::Failure;
use crate::table::table;
use crate::{Common, versions};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A family or a stage, or `launch`, what a launch costs; everything where none is named
    family: Option<String>,
    /// Only problems of these sizes, such as B=1,T=20
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

/// The family of what is of no stage.
const LAUNCH: &str = "launch";

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let chosen = match arguments.family.as_deref() {
        Some(LAUNCH) => Vec::new(),
        family => right_ones(choose(family)?)?,
    };
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
        .map(|revision| Then::read(&arguments.out, "--against", revision, Some(&device.name())));
    let then = then.transpose()?;
    let commit = if arguments.record { Some(clean_commit()?) } else { None };
    let only = arguments.shape.as_deref().map(Dims::parse).transpose()?.unwrap_or_default();
    let mut scripts = arguments.peers.as_deref().map(Scripts::new).transpose()?;
    let copy_gbps = copy_bandwidth(&device)?;
    eprintln!("{}: a device-to-device copy moves {copy_gbps:.0} GB/s", device.name());
    let mut bench = Bench {
        device: &device,
        runs: arguments.runs.max(1),
        only,
        copy_gbps,
        scripts: &mut scripts,
        lines: Vec::new(),
    };
    for (stage, versions) in by_family(&chosen) {
        bench.measure(stage, &versions)?;
    }
    let mut lines = bench.lines;
    if lines.is_empty() && !chosen.is_empty() {
        let got = arguments.shape.as_deref().unwrap_or("a GPU that runs none");
        return Err(
            Error::bad("shape", "sizes of a problem that is timed", format!("'{got}'")).into()
        );
    }
    // Measured problem by problem; told version by version.
    lines.sort_by_key(|l| l.place);
    let mut results: Vec<Measurement> = lines.into_iter().map(|l| l.result).collect();
    if arguments.family.as_deref().is_none_or(|family| family == LAUNCH) {
        let overhead = launch_overhead(&device)?;
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

fn told(m: &Measurement) {
    eprintln!("{} {} {}: {:.1} µs", m.version, m.shape, m.dtype, m.median_us);
}

/// A result, and where it stands: versions in their order, then what is shown beside them.
struct Line {
    place: (usize, usize),
    result: Measurement,
}

/// The versions of one family in one stage, each with its place among all that were chosen.
type Group = (&'static Stage, Vec<(usize, &'static dyn Version)>);

/// The versions of each family in each stage, in their order.
fn by_family(chosen: &[&'static dyn Version]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (place, &version) in chosen.iter().enumerate() {
        let info = version.info();
        let stage = crate::stage(info.stage).expect("a version names its own stage");
        let same = |g: &&mut Group| {
            let first = g.1[0].1.info();
            (first.stage, first.family) == (info.stage, info.family)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.1.push((place, version)),
            None => groups.push((stage, vec![(place, version)])),
        }
    }
    groups
}

/// What is measured, and how.
struct Bench<'a> {
    device: &'a Device,
    /// Of each version.
    runs: usize,
    /// Sizes that a problem must have.
    only: Dims,
    copy_gbps: f64,
    scripts: &'a mut Option<Scripts>,
    /// What has been measured.
    lines: Vec<Line>,
}

impl Bench<'_> {
    /// Every problem that a version of the family is timed on: its inputs and reference once, then
    /// each version, checked on that very problem before it is timed, then the peers, then those that the
    /// scripts measure.
    fn measure(
        &mut self,
        stage: &Stage,
        versions: &[(usize, &'static dyn Version)],
    ) -> Result<(), Failure> {
        let Self { device, runs, only, copy_gbps, scripts, lines } = self;
        let (device, runs, copy_gbps) = (*device, *runs, *copy_gbps);
        let family = versions[0].1.info().family;
        let (versions, old): (Vec<_>, Vec<_>) =
            versions.iter().copied().partition(|(_, v)| measure::too_old(*v, device).is_none());
        old.iter().filter_map(|(_, v)| measure::too_old(*v, device)).for_each(|m| eprintln!("{m}"));
        let mut problems: Vec<(DType, Dims)> = Vec::new();
        for (_, version) in &versions {
            for &dtype in version.info().dtypes {
                let shapes = version.bench_shapes(dtype).into_iter().map(|dims| (dtype, dims));
                let asked =
                    |p: &(DType, Dims)| only.iter().all(|(n, size)| p.1.find(n) == Some(size));
                let new: Vec<_> = shapes.filter(|p| asked(p) && !problems.contains(p)).collect();
                problems.extend(new);
            }
        }
        let last = versions.iter().map(|v| v.0).max().unwrap_or(0);
        // Said once, not for every problem.
        let mut missing: Vec<String> = Vec::new();
        for (dtype, dims) in problems {
            let has = |v: &dyn Version| {
                v.info().dtypes.contains(&dtype) && v.bench_shapes(dtype).contains(&dims)
            };
            let able: Vec<_> = versions.iter().copied().filter(|(_, v)| has(*v)).collect();
            let Some(&(_, first)) = able.first() else { continue };
            let posed = Posed::new(first, Problem::new(dims, dtype));
            let of_problem = Lines {
                family,
                problem: &posed.problem,
                cost: first.cost(&posed.problem.dims, dtype),
            };
            let roofline = |arithmetic| Roofline::new(device.facts(), arithmetic, copy_gbps);
            let of_peers = Arithmetic::fastest_for(dtype);
            let mut add = |place, name: String, of: Of, m: Measured, arithmetic| {
                let Some(line) = of_problem.line(name, of, &m, &roofline(arithmetic)) else {
                    return;
                };
                let result = Measurement { products: Products::of(arithmetic, dtype), ..line };
                told(&result);
                lines.push(Line { place, result });
            };
            for (place, version) in able {
                let (info, problem) = (version.info(), &posed.problem);
                let mut prepared = version.prepare(device, &posed.inputs, &problem.options)?;
                prepared.launch()?;
                let m = measure::finish(version, device, &posed, prepared.as_mut(), runs)?;
                drop(prepared);
                if !m.passed() {
                    let c = &m.comparison;
                    return Err(Failure::Wrong(format!(
                        "{} {} {dtype} is wrong and is not timed: '{}' is off by {:.2e}, bound {:.2e}",
                        info.full_name(),
                        problem.dims,
                        c.name,
                        c.relative_error,
                        c.bound
                    )));
                }
                let arithmetic = version.arithmetic(dtype);
                add((place, 0), info.full_name(), Of::Version, m, arithmetic);
                if let Some((times, error)) = time_on_host(version, &posed.inputs) {
                    let c = Comparison {
                        name: "",
                        worst: 0.0,
                        worst_index: 0,
                        bound: 0.0,
                        relative_error: error,
                    };
                    let m = Measured {
                        comparison: c,
                        times: Some(times),
                        replay_us: None,
                        usage: None,
                    };
                    add((place, 1), "cpu".into(), Of::Host, m, of_peers);
                }
            }
            for (index, peer) in stage.peers_of(family).enumerate() {
                let info = peer.info();
                if !info.dtypes.contains(&dtype) || !info.runs_beside(device) {
                    continue;
                }
                match measure::peer(peer, first, device, &posed, runs)? {
                    Beside::Ran(m) => {
                        let name = info.name.into();
                        add((last, 2 + index), name, measure::of(peer), m, of_peers);
                    }
                    Beside::Not(reason) => {
                        let line = format!("{}: {reason}", info.name);
                        if !missing.contains(&line) {
                            eprintln!("{line}");
                            missing.push(line);
                        }
                    }
                }
            }
            let Some(scripts) = scripts else { continue };
            let (dims, dtype) = (&posed.problem.dims, posed.problem.dtype);
            // What the versions had is free for them.
            device.synchronize()?;
            for (index, theirs) in scripts.ask(family, dims, dtype.name()).into_iter().enumerate() {
                let result = of_problem.line_of_script(theirs, &roofline(of_peers));
                told(&result);
                lines.push(Line { place: (last, 100 + index), result });
            }
        }
        Ok(())
    }
}

/// What all lines on a problem share.
struct Lines<'a> {
    family: &'a str,
    problem: &'a Problem,
    cost: Cost,
}

impl Lines<'_> {
    /// `None` of what was not timed.
    fn line(
        &self,
        version: String,
        of: Of,
        m: &Measured,
        roofline: &Roofline,
    ) -> Option<Measurement> {
        let line = Measurement {
            replay_us: m.replay_us,
            relative_error: Some(m.comparison.relative_error),
            registers: m.usage.map(|u| u.0),
            local_bytes: m.usage.map(|u| u.1),
            ..self.timed(version, of, m.times?)
        };
        Some(match of {
            Of::Host => line,
            _ => self.rated(line, roofline),
        })
    }

    fn line_of_script(&self, theirs: Theirs, roofline: &Roofline) -> Measurement {
        let line = Measurement {
            replay_us: theirs.replay_us,
            relative_error: theirs.relative_error,
            products: theirs.products,
            peak_bytes: theirs.peak_bytes,
            computes: theirs.computes,
            ..self.timed(theirs.version, Of::Library, theirs.times)
        };
        match line.computes {
            None => self.rated(line, roofline),
            Some(_) => Measurement { tflops: None, gbps: None, ..line },
        }
    }

    /// Of the problem, with the rates that come from its cost.
    fn timed(&self, version: String, of: Of, times: Times) -> Measurement {
        let (cost, us) = (&self.cost, times.median_us);
        Measurement {
            tflops: (cost.flops > 0.0).then(|| cost.flops / us * 1e-6),
            gbps: Some(cost.bytes / us * 1e-3),
            ..Measurement::timed(
                self.family,
                version,
                of,
                &self.problem.dims.to_string(),
                self.problem.dtype.name(),
                times,
            )
        }
    }

    fn rated(&self, line: Measurement, roofline: &Roofline) -> Measurement {
        let percent = roofline.percent(&self.cost, line.median_us);
        Measurement { roofline_percent: Some(percent), ..line }
    }
}

/// What a launch costs: a thousand kernels that do next to nothing, one after the other on a
/// stream, and as one graph. And what the barrier of a grid costs that keeps one launch going: a thousand
/// of those, with a block a multiprocessor.
fn launch_overhead(device: &Device) -> Result<Vec<Measurement>, Failure> {
    const TIMES: usize = 1000;
    let each = |version: &str, shape: String, times: &[Duration]| {
        let Times { median_us, p10_us, p90_us, runs } = Times::of(times);
        let one = |us: f64| us / TIMES as f64;
        let (median_us, p10_us, p90_us) = (one(median_us), one(p10_us), one(p90_us));
        let times = Times { median_us, p10_us, p90_us, runs };
        Measurement::timed(LAUNCH, version.into(), Of::Version, &shape, "f32", times)
    };
    let kernel = device.kernel(&device_checks::kernels::DEVICE, "fill<float>")?;
    let mut x = device.buffer::<f32>(32)?;
    let mut launches = || -> Result<(), lab_device::Error> {
        for _ in 0..TIMES {
            kernel.launch(Launch::new(1, 32), &[x.arg_mut(), 0f32.into(), 32i32.into()])?;
        }
        Ok(())
    };
    launches()?;
    let shape = || format!("launches={TIMES}");
    let stream = each("stream", shape(), &device.time(20, &mut launches)?);
    let mut graph = device.graph(&mut launches)?;
    graph.launch()?;
    let graph = each("graph", shape(), &device.time(20, || graph.launch())?);

    let kernel = device.kernel(&device_checks::kernels::DEVICE, "grid_syncs")?;
    let blocks = device.facts().multiprocessors;
    let mut x = device.upload(&vec![0i32; blocks as usize])?;
    let mut y = device.buffer::<i32>(blocks as usize)?;
    let launch = Launch::new(blocks, 256).cooperative();
    let mut syncs = || kernel.launch(launch, &[x.arg_mut(), y.arg_mut(), (TIMES as i32).into()]);
    syncs()?;
    let syncs =
        each("grid_sync", format!("blocks={blocks},syncs={TIMES}"), &device.time(20, &mut syncs)?);
    Ok(vec![stream, graph, syncs])
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

//! `lab bench`: the benchmark set on a GPU, and its records.

mod asked;
mod chosen;
mod dry_run;
mod family;
mod lines;
mod machine;
mod repeat;
mod scripts;
mod sizes;
mod turns;

use std::path::PathBuf;

use clap::Args;
use lab_device::{DType, Device, DeviceKind};
use lab_harness::{Dims, Error, Options, Version};
use lab_history::works_in_chunks;
use lab_records::launch_cost;
use lab_records::record::{FORMAT, Machine, Measurement, Of, Run};
use serde_json::json;

use self::asked::by_family;
use self::family::Bench;
use self::lines::print_measurement;
pub(crate) use self::machine::{clean_commit, copy_bandwidth, machine, now, state_of_tree};
use self::repeat::{Recorded, Repeat};
use self::scripts::Scripts;
use crate::commands::against::Then;
use crate::failure::Failure;
use crate::table::{Table, list};
use crate::{Common, versions, words};

/// Runs of each where nothing else is asked for.
const RUNS: usize = 100;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A family or a stage, or `launch`, what a launch costs; everything where none is named
    family: Option<String>,
    /// Only problems of these sizes, such as B=1,T=20; or, with all sizes named, a problem that is not of the set
    #[arg(long)]
    shape: Option<String>,
    /// The problem of --shape, whose sizes are all named, and again with this size doubled, and doubled again, up to this:
    /// S=131072
    #[arg(long, value_name = "NAME=SIZE", requires = "shape")]
    up_to: Option<String>,
    /// Only problems of this type, such as bf16
    #[arg(long)]
    dtype: Option<String>,
    /// Only versions of these names, such as v6_turns; may be repeated
    #[arg(long, value_name = "NAME", requires = "family")]
    version: Vec<String>,
    /// The problem that results are judged on, with all sizes named: for one of --shape whose reference would take the CPU
    /// minutes. Its lines then tell no error. Where heads are independent, as in attention and the vLSTM, some heads of a
    /// large problem are judged, each whole, and that is not needed but for sequences of 60,000 positions
    #[arg(long, value_name = "SHAPE", requires = "shape")]
    judged_on: Option<String>,
    /// Writes a record; refused where the measured tree is not a clean commit
    #[arg(long)]
    record: bool,
    /// The directory for the record
    #[arg(long, default_value = "benches/history")]
    out: PathBuf,
    /// Measures the libraries that are used from Python as well, by the scripts of this directory: each
    /// problem on the versions, then on them, or with --in-turns in turns. LAB_PYTHON names another Python than python3
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "benches/peers")]
    peers: Option<PathBuf>,
    /// Only libraries of these names of --peers, such as cudnn; may be repeated
    #[arg(long, value_name = "NAME", requires = "peers")]
    library: Vec<String>,
    /// Measures again what this record of `lab bench` measured, and says what moved beyond noise since, and which parts of the
    /// machine are others. Of a record that keeps no command each version on the problems that it has of it
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["family", "shape", "up_to", "dtype", "version", "judged_on", "peers", "library", "against", "runs", "in_turns", "launched"])]
    repeat: Option<PathBuf>,
    /// Says what moved beyond noise since the record of this commit, in the directory of --out
    #[arg(long, value_name = "REV")]
    against: Option<String>,
    /// Runs of each; of what is slow, as many as half a second allows, and three at least
    #[arg(long, default_value_t = RUNS)]
    runs: usize,
    /// Times versions and libraries in turns, a run of each, so that a clock that falls while the GPU is busy falls for all
    /// alike; those of --peers as well. Needs the memory of all at once
    #[arg(long)]
    in_turns: bool,
    /// Times launches with a cold cache alone, not replayed graphs, which take most of the time where a run is long
    #[arg(long, requires = "in_turns")]
    launched: bool,
    /// Says which problems, versions and libraries would be measured, and the command that a record would keep; needs no GPU
    #[arg(long, conflicts_with = "record")]
    dry_run: bool,
    /// All that is measured: quantiles, GB/s, the share of the library, registers
    #[arg(long)]
    wide: bool,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let repeat = arguments.repeat.as_deref().map(|path| Repeat::read(path, arguments));
    let repeat = repeat.transpose()?;
    let arguments = repeat.as_ref().map_or(arguments, |repeat| &repeat.arguments);
    let recorded = repeat.as_ref().and_then(|repeat| repeat.lines.as_ref());
    let chosen = match arguments.family.as_deref() {
        _ if recorded.is_some() => recorded.map_or_else(Vec::new, Recorded::versions),
        Some(launch_cost::FAMILY) => Vec::new(),
        family => right_ones(of_names(of_family(choose(family)?, family), &arguments.version)?)?,
    };
    let dtype = arguments.dtype.as_deref().map(|name| of_type(name, &chosen)).transpose()?;
    let sizes = sizes::asked(arguments.shape.as_deref(), arguments.up_to.as_deref(), &chosen)?;
    let judged_on = arguments.judged_on.as_deref().map(|shape| judged_on(shape, &chosen));
    let judged_on = judged_on.transpose()?;
    let scripts = arguments.peers.as_deref().map(|path| Scripts::new(path, &arguments.library));
    let mut scripts = scripts.transpose()?;
    if arguments.dry_run {
        dry_run::print(arguments, &chosen, &sizes, recorded, dtype, common.json);
        return Ok(());
    }
    let device = open_gpu(common).inspect_err(|_| {
        // Who cannot measure it again may at least read it.
        if let Some(repeat) = repeat.as_ref().filter(|_| !common.json) {
            repeat.print_recorded();
        }
    })?;
    // Before anything is measured: an hour's work must not end in a refusal.
    let then = arguments
        .against
        .as_deref()
        .map(|revision| Then::read(&arguments.out, "--against", revision, Some(device.facts())));
    let then = then.transpose()?.or_else(|| repeat.as_ref().map(Repeat::recorded));
    let commit = if arguments.record { Some(clean_commit()?) } else { None };
    let copy_gbps = copy_bandwidth(&device)?;
    note!("{}: a device-to-device copy moves {copy_gbps:.0} GB/s", device.name());
    let mut bench = Bench {
        device: &device,
        runs: arguments.runs.max(1),
        in_turns: arguments.in_turns,
        launched: arguments.launched,
        sizes: &sizes,
        recorded,
        dtype,
        judged_on: judged_on.as_ref(),
        copy_gbps,
        scripts: &mut scripts,
        lines: Vec::new(),
        missing: Vec::new(),
    };
    for versions in by_family(&chosen) {
        bench.measure(&versions)?;
    }
    let mut lines = bench.lines;
    // Measured problem by problem; told version by version.
    lines.sort_by_key(|l| l.place);
    let mut results: Vec<Measurement> = lines.into_iter().map(|l| l.result).collect();
    if arguments.measures_launch(recorded) {
        let overhead = launch_cost::measure(&device)?;
        overhead.iter().for_each(print_measurement);
        results.extend(overhead);
    }
    let is_unknown = |name: &&String| results.iter().all(|line| line.version != **name);
    for name in arguments.library.iter().filter(is_unknown) {
        note!("--library {name}: no library of this name was measured");
    }
    let differences = match &repeat {
        None => Vec::new(),
        Some(repeat) => repeat.differences(&machine(&device, copy_gbps)?),
    };
    let written = match commit {
        None => None,
        Some(commit) => {
            let machine = machine(&device, copy_gbps)?;
            // What is measured by a record's lines has no command that says so.
            let command = if recorded.is_some() { Vec::new() } else { arguments.command() };
            Some(arguments.write_record(commit, machine, command, scripts, &results)?)
        }
    };
    if common.json {
        say!(
            "{}",
            json!({
                "device": device.name(), "copy_gbps": copy_gbps, "results": results,
                "record": written, "against": then.map(|then| then.json(&results)),
                "machine_differs": differences,
            })
        );
        return Ok(());
    }
    print_results(&results, arguments.wide);
    if let Some(then) = then {
        differences.iter().for_each(|line| say!("{line}"));
        then.print(&results);
    }
    if let Some(name) = written {
        say!("wrote {}", arguments.out.join(name).display());
    }
    Ok(())
}

/// # Errors
/// The device is no GPU.
pub(crate) fn open_gpu(common: &Common) -> Result<Device, Failure> {
    let device = common.open()?;
    if device.kind() == DeviceKind::Cuda {
        return Ok(device);
    }
    let reason = Device::why_no_cuda()
        .map_or_else(|| "the emulator was asked for".into(), |e| e.to_string());
    Err(Failure::Unavailable(format!(
        "timing needs a GPU (what the emulator takes says nothing about one): {reason}"
    )))
}

impl Arguments {
    /// Whether what a launch costs is measured: where nothing is named, or it is, or the record that is measured again has it.
    fn measures_launch(&self, recorded: Option<&Recorded>) -> bool {
        let named = self.family.as_deref().is_none_or(|family| family == launch_cost::FAMILY);
        recorded.map_or(named, |lines| lines.has_launch)
    }

    /// Writes what was measured of a clean commit, and gives back the file's name.
    fn write_record(
        &self,
        commit: String,
        mut machine: Machine,
        command: Vec<String>,
        scripts: Option<Scripts>,
        results: &[Measurement],
    ) -> Result<String, Error> {
        let from_python = scripts.map_or(Vec::new(), |s| s.libraries);
        let peers_in_turns = self.in_turns && !from_python.is_empty();
        machine.libraries.extend(from_python);
        let run = Run {
            format: FORMAT,
            commit,
            date: now(),
            device: machine,
            in_turns: self.in_turns,
            peers_in_turns,
            command,
            results: results.to_vec(),
        };
        run.write(&self.out)
    }
}

/// Of `--dtype`: a type that at least one of the versions takes.
fn of_type(name: &str, chosen: &[&'static dyn Version]) -> Result<DType, Failure> {
    let dtype = name.parse().map_err(|m| Failure::Usage(format!("--dtype: {m}")))?;
    match chosen.first() {
        Some(first) if chosen.iter().all(|v| !v.info().dtypes.contains(&dtype)) => {
            first.info().check_dtype(dtype)?;
        }
        _ => {}
    }
    Ok(dtype)
}

/// Of `--judged-on`: what each of the versions takes.
fn judged_on(shape: &str, chosen: &[&'static dyn Version]) -> Result<Dims, Failure> {
    let sizes = Dims::parse(shape)?;
    for version in chosen {
        if version.info().complete(&sizes)? != sizes {
            let expected = format!("all sizes of {}", version.info().full_name());
            return Err(Error::bad("judged-on", expected, format!("'{shape}'")).into());
        }
    }
    Ok(sizes)
}

/// A list for each problem and type, in the order in which they come.
fn print_results(results: &[Measurement], wide: bool) {
    let mut problems: Vec<[&str; 3]> = Vec::new();
    let problem = |m| -> [&str; 3] {
        let m: &Measurement = m;
        [&m.family, &m.shape, &m.dtype]
    };
    for of in results.iter().map(problem) {
        if !problems.contains(&of) {
            problems.push(of);
        }
    }
    for of in problems {
        say!("\n{}", of.join(" "));
        let own: Vec<&Measurement> = results.iter().filter(|m| problem(m) == of).collect();
        if let Some(judged) = own.iter().find_map(|m| m.judged) {
            say!("judged on {} of {} heads, each whole", judged.heads, judged.of);
        }
        say!("{}", list_of(&own, results, wide));
        if own.iter().any(|m| works_in_chunks(&m.version)) {
            say!("{CHUNKS_ARE_NOT_COUNTED}");
        }
    }
}

/// Why some have no TFLOP/s.
pub(crate) const CHUNKS_ARE_NOT_COUNTED: &str = "TFLOP/s and roofline count all pairs of positions; what works in chunks needs fewer, and has none.";

fn list_of(own: &[&Measurement], all: &[Measurement], wide: bool) -> Table {
    type Value<'v> = Box<dyn Fn(&Measurement) -> String + 'v>;
    let counted =
        |m: &Measurement, value: Option<f64>| value.filter(|_| !works_in_chunks(&m.version));
    let mut columns: Vec<(&str, Value<'_>)> = vec![
        (">µs", Box::new(|m| format!("{:.1}", m.median_us))),
        (">in a graph", Box::new(|m| format_or_dash(m.replay_us, |v| format!("{v:.1}")))),
        (">TFLOP/s", Box::new(|m| format_or_dash(counted(m, m.tflops), |v| format!("{v:.1}")))),
        (
            ">roofline",
            Box::new(|m| format_or_dash(counted(m, m.roofline_percent), |v| format!("{v:.0} %"))),
        ),
        (">error", Box::new(|m| format_or_dash(m.relative_error, |v| format!("{v:.1e}")))),
    ];
    if wide {
        columns.extend::<[(&str, Value<'_>); 5]>([
            (">p10", Box::new(|m| format!("{:.1}", m.p10_us))),
            (">p90", Box::new(|m| format!("{:.1}", m.p90_us))),
            (">GB/s", Box::new(|m| format_or_dash(m.gbps, |v| format!("{v:.0}")))),
            (
                ">library",
                Box::new(|m| format_or_dash(m.library_percent(all), |v| format!("{v:.0} %"))),
            ),
            (">registers", Box::new(|m| m.registers.map_or(String::new(), |n| n.to_string()))),
        ]);
    }
    // What nobody has needs no column.
    columns.retain(|(_, value)| own.iter().any(|m| !value(m).is_empty()));
    let headings: Vec<&str> =
        std::iter::once("version").chain(columns.iter().map(|c| c.0)).collect();
    let mut rows = list(&headings);
    for m in own {
        let name = match m.of {
            Of::Host => format!("{} (host time)", m.version),
            _ => match &m.computes {
                Some(other) => format!("{} ({other})", m.version),
                None => m.version.clone(),
            },
        };
        rows.add_row(std::iter::once(name).chain(columns.iter().map(|(_, value)| value(m))));
    }
    rows
}

fn format_or_dash(value: Option<f64>, format: impl Fn(f64) -> String) -> String {
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
        let expected = words::known_names(&known, name, "lab list");
        return Err(Error::bad("family or stage", expected, format!("'{name}'")).into());
    }
    Ok(chosen)
}

/// Keeps the family's versions, where a stage and one of its families have the same name.
fn of_family(
    mut chosen: Vec<&'static dyn Version>,
    name: Option<&str>,
) -> Vec<&'static dyn Version> {
    let is_own = |v: &&dyn Version| Some(v.info().family.name()) == name;
    if chosen.iter().any(is_own) {
        chosen.retain(|v| is_own(v));
    }
    chosen
}

/// Those of these names, as `stage:name` or `name`; all where there are none.
fn of_names(
    all: Vec<&'static dyn Version>,
    names: &[String],
) -> Result<Vec<&'static dyn Version>, Failure> {
    if names.is_empty() {
        return Ok(all);
    }
    let is = |v: &&'static dyn Version, name: &String| {
        v.info().name == name || v.info().full_name() == *name
    };
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|v| is(v, name))) {
        let known: Vec<_> = all.iter().map(|v| v.info().full_name()).collect();
        let expected = format!("one of {}", known.join(", "));
        return Err(Error::bad("version", expected, format!("'{unknown}'")).into());
    }
    Ok(all.into_iter().filter(|v| names.iter().any(|name| is(v, name))).collect())
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
    refused.iter().for_each(|line| note!("{line}"));
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use lab_harness::timing::Times;

    use super::*;

    #[test]
    fn a_list_fits_eighty_columns_and_breaks_no_name() {
        let times = Times { median_us: 14054.3, p10_us: 1.0, p90_us: 2.0, runs: 3 };
        let timed = |version: &str, of| Measurement {
            replay_us: Some(13999.9),
            tflops: Some(1867.2),
            roofline_percent: Some(67.59),
            relative_error: Some(2.4e-3),
            ..Measurement::timed("vlstm_fwbw", version.into(), of, "B=1,S=2", "bf16", times)
        };
        let all = [timed("vlstm_fwbw_v3:v2_together", Of::Version), timed("xl_chunk", Of::Library)];
        let own: Vec<&Measurement> = all.iter().collect();
        let text = list_of(&own, &all, false).to_string();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.lines().all(|line| line.trim_end().chars().count() <= 80), "{text}");
        assert!(text.contains("vlstm_fwbw_v3:v2_together") && !text.contains("p10"), "{text}");
        let wide = list_of(&own, &all, true).to_string();
        assert!(wide.contains("p10") && !wide.contains("registers"), "{wide}");
    }
}

//! `lab dev crowd`: how long a version takes while other blocks hold some multiprocessors, and whether it ends at all.

use std::path::PathBuf;

use clap::Args;
use lab_device::{DType, Device};
use lab_harness::crowd::{CYCLES, Crowd};
use lab_harness::timing::Times;
use lab_harness::{Dims, Error, Problem, Version};
use serde::Serialize;

use crate::commands::bench::{open_gpu, state_of_tree};
use crate::commands::measure;
use crate::failure::Failure;
use crate::table::list;
use crate::{Common, named};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// STAGE or STAGE:VERSION, and behind an @ sizes, such as attention:v6_turns@S=4096
    #[arg(required = true)]
    versions: Vec<String>,
    /// Type of the inputs
    #[arg(long, default_value = "bf16")]
    dtype: String,
    /// Multiprocessors that are held
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    blocks: u32,
    /// Runs of each
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// After so many cycles a block that holds a multiprocessor goes unasked: a third of a second on an H200
    #[arg(long, default_value_t = CYCLES, value_parser = clap::value_parser!(i64).range(1..))]
    cycles: i64,
    /// Writes what was measured, as JSON
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What became of a version.
#[derive(Serialize)]
struct Line {
    version: String,
    shape: String,
    alone_us: f64,
    /// While multiprocessors are held.
    beside_us: f64,
    /// Whether it ended while they were held: else it has waited for them to be free.
    ends: bool,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let dtype: DType =
        arguments.dtype.parse().map_err(|m| Failure::Usage(format!("--dtype: {m}")))?;
    let asked = arguments.versions.iter().map(|text| problems(text, dtype));
    let asked = asked.collect::<Result<Vec<_>, _>>()?.concat();
    let device = open_gpu(common)?;
    let mut lines = Vec::new();
    for (version, dims) in asked {
        if let Some(reason) = measure::too_old(version, &device) {
            note!("{reason}");
            continue;
        }
        let line = measure_one(&device, version, Problem::new(dims, dtype), arguments)?;
        note!(
            "{} {}: {:.1} µs, {:.1} beside",
            line.version,
            line.shape,
            line.alone_us,
            line.beside_us
        );
        lines.push(line);
    }
    let all = serde_json::json!({
        "device": device.name(), "commit": state_of_tree().ok(), "dtype": dtype.name(), "blocks": arguments.blocks,
        "what": "lab dev crowd: median of runs, alone and while so many multiprocessors are held by other blocks",
        "rows": lines,
    });
    if let Some(path) = &arguments.out {
        let text = format!("{}\n", serde_json::to_string_pretty(&all).unwrap_or_default());
        lab_device::emulator::write_atomically(path, text.as_bytes())
            .map_err(|e| Failure::file(path, e))?;
    }
    if common.json {
        say!("{all}");
        return Ok(());
    }
    let mut rows =
        list(&["version", "shape", ">µs alone", ">µs beside", ">ratio", "ends beside them"]);
    for line in &lines {
        rows.add_row([
            line.version.clone(),
            line.shape.clone(),
            format!("{:.1}", line.alone_us),
            format!("{:.1}", line.beside_us),
            format!("{:.2}", line.beside_us / line.alone_us),
            String::from(if line.ends { "yes" } else { "no" }),
        ]);
    }
    say!("{rows}");
    Ok(())
}

/// The versions of `STAGE:VERSION@SIZES`, each with its sizes.
fn problems(text: &str, dtype: DType) -> Result<Vec<(&'static dyn Version, Dims)>, Failure> {
    let (name, shape) = text.split_once('@').unwrap_or((text, ""));
    let given = if shape.is_empty() { Dims::default() } else { Dims::parse(shape)? };
    let mut all = Vec::new();
    for version in named(name)? {
        version.info().check_dtype(dtype)?;
        let mut dims = version.info().timed(dtype);
        given.iter().for_each(|(name, size)| dims.set(name, size));
        all.push((version, version.info().complete(&dims)?));
    }
    Ok(all)
}

/// # Errors
/// A launch's; results that are others while multiprocessors are held.
fn measure_one(
    device: &Device,
    version: &dyn Version,
    problem: Problem,
    arguments: &Arguments,
) -> Result<Line, Failure> {
    let inputs = version.inputs(&problem);
    let mut prepared = version.prepare(device, &inputs, &problem.options)?;
    let mut launched = || -> Result<_, Error> {
        prepared.launch()?;
        prepared.outputs()
    };
    let (first, second) = (launched()?, launched()?);
    let runs = arguments.runs as usize;
    let alone = Times::of(&device.time(runs, || prepared.launch())?);
    let crowd = Crowd::begin(device, arguments.blocks, arguments.cycles)?;
    // They have all come by then.
    std::thread::sleep(std::time::Duration::from_millis(2));
    let beside = device.time(runs, || prepared.launch());
    let ends = crowd.end()?;
    let beside = Times::of(&beside?);
    let name = version.info().full_name();
    // What is updated in place is another number after each run.
    if first == second && prepared.outputs()? != first {
        let what = format!("{name} {}: other results while multiprocessors are held", problem.dims);
        return Err(Failure::Wrong(what));
    }
    Ok(Line {
        version: name,
        shape: problem.dims.to_string(),
        alone_us: alone.median_us,
        beside_us: beside.median_us,
        ends,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn typed(text: &str) -> Result<Arguments, clap::Error> {
        let words = ["crowd"].into_iter().chain(text.split_whitespace());
        Typed::try_parse_from(words).map(|typed| typed.arguments)
    }

    /// On the emulator each launch ends before the next begins: the blocks go unasked before the version runs.
    #[test]
    fn a_version_is_run_alone_and_beside_blocks_with_the_same_results() {
        let arguments = typed("playg:copy_packs@R=2,C=64 --blocks 2 --runs 1 --cycles 1000");
        let arguments = arguments.unwrap();
        let [(version, dims)] = &problems(&arguments.versions[0], DType::F32).unwrap()[..] else {
            panic!("one version, one problem");
        };
        let device = Device::emulator().unwrap();
        let problem = Problem::new(dims.clone(), DType::F32);
        let line = measure_one(&device, *version, problem, &arguments).unwrap();
        assert_eq!((&*line.version, &*line.shape), ("playg:copy_packs", "C=64,R=2"));
        assert!(line.alone_us > 0.0 && line.beside_us > 0.0 && !line.ends);
    }

    #[test]
    fn a_stage_is_all_its_versions_and_sizes_that_are_not_given_are_those_that_are_timed() {
        let of = |text| problems(text, DType::BF16).unwrap();
        let [(_, dims)] = &of("attention:v6_turns@S=4096")[..] else { panic!("one version") };
        assert!(dims.find("S") == Some(4096) && dims.find("D").is_some(), "{dims}");
        assert!(of("attention").len() > 3);
        for wrong in ["attention:none", "attention:v6_turns@S", "attention:v6_turns@X=1"] {
            assert!(problems(wrong, DType::BF16).is_err(), "{wrong}");
        }
        for wrong in ["", "playg --blocks 0", "playg --runs 0", "playg --cycles 0"] {
            assert!(typed(wrong).is_err(), "{wrong}");
        }
    }
}

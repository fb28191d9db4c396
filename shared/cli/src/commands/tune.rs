//! `lab tune STAGE[:VERSION]`: tile parameters, tried on the GPU at hand.

use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;
use lab_device::{DType, Device, DeviceKind};
use lab_harness::{Dims, Error, Posed, Problem, Tiling, Version, timing};
use lab_history::works_in_chunks;
use lab_records::tuned::{FORMAT, Trial, Tuned};
use rayon::prelude::*;
use serde_json::json;

use crate::commands::bench::{clean_commit, copy_bandwidth, machine, now};
use crate::commands::measure::{self, BUDGET};
use crate::commands::run::check_room;
use crate::failure::Failure;
use crate::table::table;
use crate::{Common, named};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// STAGE or STAGE:VERSION; of a stage, every version that has something to choose
    version: String,
    /// Sizes, such as M=4096,N=4096,K=4096; by default the problem that is timed
    #[arg(long)]
    shape: Option<String>,
    /// Type of the inputs
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// Runs of each at most
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Only the first so many tilings, the one in use among them
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Lists the tilings and tries none; needs no GPU
    #[arg(long)]
    list: bool,
    /// Writes the best of each version; refused where the measured tree is not a clean commit
    #[arg(long)]
    record: bool,
    /// The directory for the records
    #[arg(long, default_value = "benches/tuned")]
    out: PathBuf,
}

/// What became of a tiling.
enum Outcome {
    /// Right, and this fast; registers and bytes of local memory a thread.
    Timed { times: timing::Times, error: f64, usage: Option<(u32, u32)> },
    /// Not timed, and why.
    Not(String),
}

/// The tilings of a version, those that were timed first, the fastest before the others.
struct Tried {
    version: &'static dyn Version,
    dims: Dims,
    flops: f64,
    outcomes: Vec<(Tiling, Outcome)>,
    in_use: Tiling,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let dtype: DType =
        arguments.dtype.parse().map_err(|m| Failure::Usage(format!("--dtype: {m}")))?;
    let chosen = named(&arguments.version)?;
    let able: Vec<_> =
        chosen.iter().copied().filter(|v| v.info().dtypes.contains(&dtype)).collect();
    if able.is_empty() {
        chosen[0].info().check_dtype(dtype)?;
    }
    let limit = arguments.limit.map_or(usize::MAX, |n| n as usize);
    let given = arguments.shape.as_deref().map(Dims::parse).transpose()?.unwrap_or_default();
    let mut tunable: Vec<(&'static dyn Version, Vec<Tiling>)> = Vec::new();
    let mut problems = Vec::new();
    for version in able {
        let mut dims = version.info().timed(dtype);
        given.iter().for_each(|(name, size)| dims.set(name, size));
        let dims = version.info().complete(&dims)?;
        if given.iter().next().is_some() {
            check_room(version.info(), &dims, 1)?;
        }
        let tilings: Vec<_> = version.tilings(&dims, dtype).into_iter().take(limit).collect();
        if !tilings.is_empty() {
            tunable.push((version, tilings));
            problems.push(dims);
        }
    }
    if tunable.is_empty() {
        let some = |v: &&dyn Version, &d: &DType| !v.tilings(&v.info().timed(d), d).is_empty();
        let with: Vec<_> = crate::versions()
            .filter(|v| v.info().dtypes.iter().any(|d| some(v, d)))
            .map(|v| v.info().full_name())
            .collect();
        let got = format!("'{}' in {dtype}, which has none to choose", arguments.version);
        let expected = format!("one with tile parameters: {}", with.join(", "));
        return Err(Error::bad("version", expected, got).into());
    }
    if arguments.list {
        list(common, dtype, &tunable);
        return Ok(());
    }
    let device = common.open()?;
    if device.kind() != DeviceKind::Cuda {
        let reason = Device::why_no_cuda()
            .map_or_else(|| "the emulator was asked for".into(), |e| e.to_string());
        return Err(Failure::Unavailable(format!(
            "tuning needs a GPU: the emulator has only the tiles that it was built with, and what \
             it takes says nothing about a GPU ({reason}); --list shows what would be tried"
        )));
    }
    // Before anything is measured.
    let commit = if arguments.record { Some(clean_commit()?) } else { None };
    let mut all: Vec<Tried> = Vec::new();
    let mut posed: Option<Posed> = None;
    for ((version, tilings), dims) in tunable.into_iter().zip(problems) {
        if let Some(reason) = measure::too_old(version, &device) {
            note!("{reason}");
            continue;
        }
        let same = all.last().is_some_and(|t: &Tried| {
            (t.version.info().family.name(), &t.dims) == (version.info().family.name(), &dims)
        });
        let current = posed
            .take()
            .filter(|_| same)
            .unwrap_or_else(|| Posed::affordable(version, Problem::new(dims.clone(), dtype)));
        let tried = try_all(version, &device, &current, tilings, arguments.runs as usize)?;
        posed = Some(current);
        if !common.json {
            print_tried(&device, dtype, &tried);
        }
        all.push(tried);
    }
    let mut written = Vec::new();
    if let Some(commit) = commit {
        let machine = machine(&device, copy_bandwidth(&device)?)?;
        for tried in &all {
            let Some(record) = tried.record(&commit, &machine, dtype) else {
                note!("{}: none was timed, nothing is recorded", tried.version.info().full_name());
                continue;
            };
            let name = record.write(&arguments.out)?;
            if !common.json {
                say!("wrote {}", arguments.out.join(&name).display());
            }
            written.push(name);
        }
    }
    if common.json {
        let versions: Vec<_> = all.iter().map(Tried::as_json).collect();
        say!(
            "{}",
            json!({ "device": device.name(), "dtype": dtype.name(), "versions": versions, "records": written })
        );
    }
    match all.iter().find(|t| t.best().is_none()) {
        None => Ok(()),
        Some(t) => {
            Err(Failure::Wrong(format!("no tiling of {} was timed", t.version.info().full_name())))
        }
    }
}

fn list(common: &Common, dtype: DType, all: &[(&'static dyn Version, Vec<Tiling>)]) {
    if common.json {
        let versions = all.iter().map(|(version, tilings)| {
            let tilings: Vec<_> = tilings.iter().map(|t| Trial::new(t, None).tiling).collect();
            json!({ "version": version.info().full_name(), "tilings": tilings })
        });
        say!("{}", json!({ "dtype": dtype.name(), "versions": versions.collect::<Vec<_>>() }));
        return;
    }
    for (version, tilings) in all {
        say!("{} in {dtype}, {} tilings:", version.info().full_name(), tilings.len());
        for (index, tiling) in tilings.iter().enumerate() {
            say!("  {tiling}{}", if index == 0 { "  (in use)" } else { "" });
        }
    }
}

fn try_all(
    version: &'static dyn Version,
    device: &Device,
    posed: &Posed,
    tilings: Vec<Tiling>,
    runs: usize,
) -> Result<Tried, Failure> {
    let name = version.info().full_name();
    let dtype = posed.problem.dtype;
    compile(version, device, &tilings, dtype, &name);
    let bar = ProgressBar::new(tilings.len() as u64).with_message(name);
    let in_use = tilings[0].clone();
    let mut outcomes = Vec::new();
    for tiling in tilings {
        let outcome = try_one(version, device, posed, &tiling, runs)?;
        outcomes.push((tiling, outcome));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let time = |o: &Outcome| match o {
        Outcome::Timed { times, .. } => times.median_us,
        Outcome::Not(_) => f64::INFINITY,
    };
    outcomes.sort_by(|a, b| time(&a.1).total_cmp(&time(&b.1)));
    let dims = posed.problem.dims.clone();
    let flops = version.cost(&dims, dtype).flops;
    Ok(Tried { version, dims, flops, outcomes, in_use })
}

/// Compiles all tilings on all cores, by setting up a small problem; what does not compile says so
/// when its turn comes.
fn compile(version: &dyn Version, device: &Device, tilings: &[Tiling], dtype: DType, name: &str) {
    note!("{name}: {} tilings", tilings.len());
    let small = Problem::new(version.info().small(), dtype);
    let inputs = version.inputs(&small);
    tilings.par_iter().for_each(|tiling| {
        let _ = version.prepare_tiled(device, &inputs, &small.options, tiling);
    });
}

/// # Errors
/// Where the GPU itself can no longer be used: a kernel that left its memory takes its context with
/// it, and whatever came next would fail for that.
fn try_one(
    version: &'static dyn Version,
    device: &Device,
    posed: &Posed,
    tiling: &Tiling,
    runs: usize,
) -> Result<Outcome, Failure> {
    let attempt = || -> Result<Outcome, Error> {
        let options = &posed.problem.options;
        let mut prepared = version.prepare_tiled(device, &posed.inputs, options, tiling)?;
        prepared.launch()?;
        device.synchronize()?;
        let outputs = prepared.outputs()?;
        let comparisons = posed.compare(version, &outputs, posed.problem.dtype);
        if let Some(c) = comparisons.iter().find(|c| !c.passed()) {
            return Ok(Outcome::Not(format!("is wrong: {}", c.complaint())));
        }
        let error = comparisons.iter().map(|c| c.relative_error).fold(0.0, f64::max);
        let times = timing::time_within(device, prepared.as_mut(), runs, BUDGET)?;
        let usage = measure::usage(prepared.as_ref())?;
        Ok(Outcome::Timed { times, error, usage })
    };
    match attempt() {
        Ok(outcome) => Ok(outcome),
        Err(error) => {
            let reason = why_not(&error);
            if let Err(lost) = device.synchronize() {
                return Err(Failure::Wrong(format!(
                    "{tiling}: {reason}; the GPU cannot be used any more ({lost}): the tilings after \
                     it were not tried"
                )));
            }
            Ok(Outcome::Not(reason))
        }
    }
}

/// Why a tiling cannot be timed, in a line.
fn why_not(error: &Error) -> String {
    match error {
        Error::Device(lab_device::Error::Compile { log, .. }) => {
            format!("does not compile: {}", first_error(log))
        }
        Error::Device(e @ lab_device::Error::LaunchSize { .. }) => format!("does not launch: {e}"),
        Error::Device(e @ lab_device::Error::Driver { .. }) => format!("does not launch: {e}"),
        other => other.to_string(),
    }
}

/// The compiler's first complaint, without the place and the code around it: that of a
/// `static_assert`, or of the assembler where a tile is too large.
fn first_error(log: &str) -> String {
    let found = log.lines().find_map(|line| {
        let (_, said) = line.split_once("error").or_else(|| line.split_once("fatal"))?;
        // Not what stands behind a word that only begins so, as in "2 errors detected".
        let said = said.starts_with([' ', ':']).then(|| said.trim_start_matches([' ', ':']))?;
        (!said.is_empty()).then_some(said)
    });
    let said = found.unwrap_or_else(|| log.lines().find(|l| !l.trim().is_empty()).unwrap_or(""));
    let said = said.trim().trim_start_matches("static assertion failed with ");
    said.trim_matches('"').to_owned()
}

impl Tried {
    fn median(&self, tiling: &Tiling) -> Option<f64> {
        self.outcomes.iter().find(|o| o.0 == *tiling).and_then(|o| match &o.1 {
            Outcome::Timed { times, .. } => Some(times.median_us),
            Outcome::Not(_) => None,
        })
    }

    fn best(&self) -> Option<&Tiling> {
        let first = self.outcomes.first()?;
        matches!(first.1, Outcome::Timed { .. }).then_some(&first.0)
    }

    fn record(
        &self,
        commit: &str,
        machine: &lab_records::record::Machine,
        dtype: DType,
    ) -> Option<Tuned> {
        let best = self.best()?;
        let timed = self.outcomes.iter().filter(|o| matches!(o.1, Outcome::Timed { .. })).count();
        Some(Tuned {
            format: FORMAT,
            commit: commit.to_owned(),
            date: now(),
            device: machine.clone(),
            version: self.version.info().full_name(),
            dtype: dtype.name().to_owned(),
            shape: self.dims.to_string(),
            in_use: Trial::new(&self.in_use, self.median(&self.in_use)),
            best: Trial::new(best, self.median(best)),
            tried: self.outcomes.len(),
            timed,
        })
    }

    fn as_json(&self) -> serde_json::Value {
        let all = self.outcomes.iter().map(|(tiling, outcome)| {
            let trial = Trial::new(tiling, self.median(tiling));
            let mut entry = json!({ "tiling": trial.tiling, "median_us": trial.median_us,
                                    "in_use": *tiling == self.in_use });
            match outcome {
                Outcome::Timed { times, error, usage } => {
                    entry["p10_us"] = json!(times.p10_us);
                    entry["p90_us"] = json!(times.p90_us);
                    entry["tflops"] = json!(self.flops / times.median_us * 1e-6);
                    entry["relative_error"] = json!(error);
                    entry["registers"] = json!(usage.map(|u| u.0));
                    entry["local_bytes"] = json!(usage.map(|u| u.1));
                }
                Outcome::Not(reason) => entry["reason"] = json!(reason),
            }
            entry
        });
        json!({ "version": self.version.info().full_name(), "shape": self.dims.to_string(),
                "tilings": all.collect::<Vec<_>>() })
    }
}

fn print_tried(device: &Device, dtype: DType, tried: &Tried) {
    say!("{} {} {dtype} on {}", tried.version.info().full_name(), tried.dims, device.name());
    let mut rows = table(&[
        "tiling",
        ">median, µs",
        ">TFLOP/s",
        ">% of the one in use",
        ">error",
        ">registers",
        ">spilled, bytes",
    ]);
    let in_use = tried.median(&tried.in_use);
    let in_chunks = works_in_chunks(&tried.version.info().full_name());
    let counted = (!in_chunks).then_some(tried.flops);
    let mut not = Vec::new();
    for (tiling, outcome) in &tried.outcomes {
        let mark = if *tiling == tried.in_use { " (in use)" } else { "" };
        match outcome {
            Outcome::Not(reason) => not.push(format!("{tiling}{mark}: {reason}")),
            Outcome::Timed { times, error, usage } => {
                let us = times.median_us;
                rows.add_row([
                    format!("{tiling}{mark}"),
                    format!("{us:.1}"),
                    counted.map_or(String::new(), |flops| format!("{:.2}", flops / us * 1e-6)),
                    in_use.map_or(String::new(), |t| format!("{:.1}", 100.0 * t / us)),
                    format!("{error:.1e}"),
                    usage.map_or(String::new(), |u| u.0.to_string()),
                    usage.map_or(String::new(), |u| u.1.to_string()),
                ]);
            }
        }
    }
    say!("{rows}");
    not.iter().for_each(|line| say!("{line}"));
    say!("{} of {} tilings timed\n", tried.outcomes.len() - not.len(), tried.outcomes.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compilers_complaint_is_one_line() {
        let asserted = "kernels/v5.cu(20): error: static assertion failed with \"a warp has 32 lanes\"\n      static_assert(x);\n      ^\n\n1 error detected in the compilation of \"kernels/v5.cu\".\n";
        assert_eq!(first_error(asserted), "a warp has 32 lanes");
        let assembled = "ptxas info    : 0 bytes gmem\nptxas error   : Entry function '_Z1f' uses too much shared data (0x10000 bytes, 0xc000 max)\n";
        assert_eq!(
            first_error(assembled),
            "Entry function '_Z1f' uses too much shared data (0x10000 bytes, 0xc000 max)"
        );
        let aborted = "ptxas fatal   : (C7602) Insufficient registers (128) to compile\nptxas fatal   : Ptx assembly aborted due to errors\n";
        assert_eq!(first_error(aborted), "(C7602) Insufficient registers (128) to compile");
        assert_eq!(first_error("\nit needs sm_80\n"), "it needs sm_80");
        assert_eq!(first_error(""), "");
    }

    /// What NVRTC says of tiles that do not fit, where there is an NVRTC.
    #[test]
    fn tiles_that_do_not_fit_say_why() {
        let Ok(nvrtc) = lab_device::nvrtc::Nvrtc::get() else { return };
        let of = |name: &str| {
            let source = &matmul::kernels::V5_WARPS;
            let error = nvrtc.compile(source, &[name], "sm_80").unwrap_err();
            why_not(&error.into())
        };
        let said = of("matmul_warps<float, 128, 128, 8, 64, 64, 8, 8, 4>");
        assert_eq!(said, "does not compile: a warp has 32 lanes: WM WN must be 32 TM TN");
        let said = of("matmul_warps<float, 128, 128, 64, 64, 32, 8, 8, 4>");
        assert!(
            said.starts_with("does not compile: ") && said.contains("too much shared"),
            "{said}"
        );
    }
}

//! `lab` without a command: what is here, that it works, and what to try.

use std::time::Instant;

use clap::Args;
use lab_device::{Build, Device, DeviceKind, KernelSource, Selector, Told};
use lab_harness::suite::{self, Case};
use lab_harness::{Mistake, Problem, Stage, Version, timing};
use serde_json::{Value, json};

use crate::commands::exercise;
use crate::commands::selftest::worst_ratio;
use crate::failure::Failure;
use crate::table::{cut, list, terminal_width};
use crate::{Common, STAGES, own};

#[derive(Debug, Default, Args)]
pub(crate) struct Arguments {
    /// Every version in place of each stage's last, with its one change; on a GPU with its time
    #[arg(long)]
    all: bool,
}

/// A version, and what became of it on a small problem in each of its types.
struct Checked {
    version: &'static dyn Version,
    cases: Vec<Case>,
    /// On a GPU: median in µs, GB/s, the problem.
    time: Option<(timing::Times, f64, String)>,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let start = Instant::now();
    let device = common.open()?;
    let say = |line: String| {
        if !common.json {
            say!("{line}");
        }
    };
    say(format!("Device: {}", device.name()));
    if let (Selector::Auto, Some(reason)) = (common.selector()?, Device::why_no_cuda()) {
        say(format!("  ({reason})"));
    }
    let which = if arguments.all { "Each version" } else { "Each stage's last version" };
    say(format!("{which}, in all its types, is held against an f64 reference."));
    let is_timed = device.kind() == DeviceKind::Cuda && (arguments.all || common.json);
    let chosen = |stage: &'static Stage| {
        let versions = stage.versions;
        if arguments.all { versions } else { &versions[versions.len().saturating_sub(1)..] }
    };
    let of_version = |stage: &'static Stage, version: &'static dyn Version| {
        Some(version.sources()).filter(|own| !own.is_empty()).unwrap_or(stage.kernels.to_vec())
    };
    let sources: Vec<_> =
        STAGES.iter().flat_map(|s| chosen(s).iter().flat_map(|v| of_version(s, *v))).collect();
    tell_of_compiling(&sources);
    let told = Told::new();
    let check_all = |versions: &[&'static dyn Version]| -> Result<Vec<Checked>, Failure> {
        let check = |version: &&'static dyn Version| Some(check(*version, &device, is_timed));
        suite::each(&device, versions, check).into_iter().collect()
    };
    let mut stages: Vec<(&Stage, Vec<Checked>)> = Vec::new();
    if arguments.all {
        for stage in STAGES {
            let versions = check_all(stage.versions)?;
            say(format!("{}: {}", stage.name, stage.teaches));
            say(format!("{}\n", every_version(&versions, is_timed)));
            stages.push((*stage, versions));
        }
    } else {
        let last: Vec<_> = STAGES.iter().flat_map(|s| chosen(s).iter().copied()).collect();
        let mut checked = check_all(&last)?.into_iter();
        stages
            .extend(STAGES.iter().map(|s| (*s, checked.by_ref().take(chosen(s).len()).collect())));
    }
    drop(told);
    if !arguments.all {
        say(a_line_a_stage(&stages).to_string());
    }
    let all = || stages.iter().flat_map(|(_, versions)| versions);
    let failed: Vec<String> =
        all().flat_map(|v| v.cases.iter().filter(|c| !c.passed()).map(Case::describe)).collect();
    let seconds = start.elapsed().as_secs_f64();
    let next = exercise::next();
    if common.json {
        let next = next.as_ref().map(|(name, _)| name);
        let object = json!({ "device": device.name(), "kind": device.kind(),
                             "versions": all().map(Checked::as_json).collect::<Vec<_>>(),
                             "seconds": seconds, "passed": failed.is_empty(), "next": next });
        say!("{object}");
    }
    if !failed.is_empty() {
        return Err(Failure::Wrong(failed.join("\n")));
    }
    let wrong = match all().filter(|v| v.mistake().is_some()).count() {
        0 => String::new(),
        1 => "; 1 deliberately wrong version failed as expected".to_owned(),
        n => format!("; {n} deliberately wrong versions failed as expected"),
    };
    say(format!("All passed in {seconds:.1} s{wrong}."));
    let lab = own::shell();
    if !arguments.all {
        say(format!("Every version and its one change: {lab} tour --all"));
    }
    match next {
        Some((name, _)) => say(format!("Try one yourself: {lab} exercise {name}")),
        None => say(format!("Try one: {lab} run playg:softmax --shape R=4,C=1000")),
    }
    Ok(())
}

/// On stderr, that what comes next takes a while, where kernels are to be compiled for the emulator.
fn tell_of_compiling(sources: &[&'static KernelSource]) {
    let is_missing = |source: &&&KernelSource| {
        source.kept_name(Build::Plain).is_some() && source.kept(Build::Plain).is_none()
    };
    if sources.iter().filter(is_missing).count() > 5 {
        note!("Compiling kernels for the CPU, once: this takes about a minute.");
    }
}

fn width() -> usize {
    terminal_width().unwrap_or(100)
}

fn check(
    version: &'static dyn Version,
    device: &Device,
    is_timed: bool,
) -> Result<Checked, Failure> {
    let info = version.info();
    let of_type = |&dtype| suite::check(version, device, &Problem::new(info.small(), dtype));
    let mut checked =
        Checked { version, cases: info.dtypes.iter().map(of_type).collect(), time: None };
    if is_timed && checked.mistake().is_none() {
        let dtype = info.dtypes[0];
        let problem = Problem::new(info.timed(dtype), dtype);
        let inputs = version.inputs(&problem);
        let mut prepared = version.prepare(device, &inputs, &problem.options)?;
        let times = timing::time(device, prepared.as_mut(), 30)?;
        let gbps = version.cost(&problem.dims, dtype).bytes / times.median_us * 1e-3;
        checked.time = Some((times, gbps, format!("{} {dtype}", problem.dims)));
    }
    Ok(checked)
}

impl Checked {
    /// What it is wrong for, on purpose.
    fn mistake(&self) -> Option<&'static Mistake> {
        self.cases.iter().find_map(Case::wrong_on_purpose)
    }

    fn passed(&self) -> usize {
        self.cases.iter().filter(|c| c.passed()).count()
    }

    fn as_json(&self) -> Value {
        let info = self.version.info();
        let dtype = info.dtypes[0];
        let dims = info.timed(dtype);
        let cost = self.version.cost(&dims, dtype);
        let mut entry = json!({
            "version": info.full_name(), "family": info.family.name(), "change": info.change,
            "checked": self.cases.len(), "passed": self.passed(),
            "cases": self.cases.iter().map(Case::describe).collect::<Vec<_>>(),
            "least_bytes": cost.bytes, "flops": cost.flops, "shape": dims.to_string(),
            "wrong_on_purpose": self.mistake().map(|m| m.because),
        });
        if let Some((times, gbps, _)) = &self.time {
            entry["time"] = json!(times);
            entry["gbps"] = json!(gbps);
        }
        entry
    }
}

/// A part of the allowed error, in words.
fn in_words(share: f64) -> &'static str {
    match share {
        s if s <= 0.0 => "none",
        s if s < 0.1 => "under 10 %",
        s if s < 0.25 => "under 25 %",
        s if s < 0.5 => "under 50 %",
        s if s <= 1.0 => "within bound",
        _ => "too large",
    }
}

/// As many whole clauses of a text as so many columns hold, or else as many words.
fn shortened(text: &str, room: usize) -> String {
    const LEAST: usize = 12;
    let ends = text.match_indices([':', ';', ',']).map(|(at, _)| &text[..at]);
    let whole = std::iter::once(text).chain(ends).filter(|part| part.chars().count() <= room);
    match whole.max_by_key(|part| part.len()).filter(|part| part.len() >= LEAST) {
        Some(part) => part.to_owned(),
        None => {
            let (beginning, _) = cut(text, Some(room));
            // Whole words, where there is one.
            match beginning.strip_suffix('…').and_then(|words| words.rsplit_once(' ')) {
                Some((words, _)) => format!("{words}…"),
                None => beginning,
            }
        }
    }
}

/// Each stage by one line: its last version, its error as a part of what is allowed, and what the stage teaches.
fn a_line_a_stage(stages: &[(&Stage, Vec<Checked>)]) -> String {
    let rows: Vec<[String; 3]> = stages
        .iter()
        .map(|(stage, versions)| {
            let last = versions.last().map_or("", |v| v.version.info().name);
            let wrong = versions.iter().filter(|v| v.mistake().is_some()).count();
            let error = match wrong {
                0 => in_words(worst_ratio(versions.iter().flat_map(|v| &v.cases))),
                _ => "on purpose",
            };
            [stage.name.to_owned(), last.to_owned(), error.to_owned()]
        })
        .collect();
    let headings = ["stage", "version", "error / bound"];
    let longest = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    // Two columns stand between two cells, and one at each end.
    let taken: usize = (0..3).map(|column| longest(column) + 2).sum();
    let room = width().saturating_sub(taken + 2);
    let mut table = list(&["stage", "version", "error / bound", "what it teaches"]);
    for (row, (stage, _)) in rows.into_iter().zip(stages) {
        table.add_row(row.into_iter().chain([shortened(stage.teaches, room.max(15))]));
    }
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// The versions of a stage, a line each.
fn every_version(versions: &[Checked], is_timed: bool) -> String {
    let mut headings = vec!["version", ">right", "largest error"];
    if is_timed {
        headings.extend([">µs", ">GB/s", "of"]);
    }
    headings.push("the one change");
    let mut rows = list(&headings);
    for checked in versions {
        let info = checked.version.info();
        let mistake = checked.mistake();
        let mut row = vec![
            info.name.to_owned(),
            format!("{} of {}", checked.passed(), checked.cases.len()),
            match mistake {
                Some(_) => "wrong on purpose".into(),
                None => in_words(worst_ratio(checked.cases.iter())).into(),
            },
        ];
        match &checked.time {
            Some((times, gbps, of)) => {
                row.extend([format!("{:.1}", times.median_us), format!("{gbps:.0}"), of.clone()]);
            }
            None if is_timed => row.extend([(); 3].map(|()| String::new())),
            None => {}
        }
        row.push(match mistake {
            Some(m) => format!("{} (wrong: {})", info.change, m.because),
            None => info.change.to_owned(),
        });
        rows.add_row(row);
    }
    rows.to_string()
}

#[cfg(test)]
mod tests {
    use super::{in_words, shortened};

    #[test]
    fn errors_are_told_as_parts_of_what_is_allowed() {
        let parts = [0.0, 0.01, 0.1, 0.42, 0.5, 1.0, 1.1, f64::NAN];
        let words = parts.map(in_words);
        assert_eq!(words[..4], ["none", "under 10 %", "under 25 %", "under 50 %"]);
        assert_eq!(words[4..], ["within bound", "within bound", "too large", "too large"]);
    }

    #[test]
    fn a_text_begins_with_whole_clauses() {
        let text = "grids, warps and blocks: a vector, a row";
        assert_eq!(shortened(text, 40), text);
        assert_eq!(shortened(text, 39), "grids, warps and blocks: a vector");
        assert_eq!(shortened(text, 24), "grids, warps and blocks");
        assert_eq!(shortened(text, 15), "grids, warps…");
    }
}

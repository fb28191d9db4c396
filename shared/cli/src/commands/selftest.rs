//! `lab selftest`: the suites that `cargo test` runs, in one binary.

use std::sync::Mutex;
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lab_device::{Device, DeviceKind, Selector};
use lab_harness::suite::{self, Case};
use lab_harness::{Problem, Version, agreement, device_checks};
use rayon::prelude::*;
use serde_json::json;

use crate::Common;
use crate::failure::Failure;
use crate::table::table;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The problems of every version only, none of the longer checks
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let devices = match common.selector()? {
        Selector::Auto => suite::devices()?,
        Selector::Emulator => vec![suite::emulator()?],
        one => vec![Device::open(one)?],
    };
    let start = Instant::now();
    let mut reports = Vec::new();
    let (mut total, mut failed) = (0, Vec::new());
    for device in &devices {
        let cases = cases(device)?;
        let (count, mut wrong) = if arguments.quick { (0, Vec::new()) } else { checks(device) };
        total += cases.len() + count;
        failed.append(&mut wrong);
        failed.extend(cases.iter().filter(|c| !c.passed()).map(Case::describe));
        reports.push((device, cases, count));
    }
    if common.json {
        let devices = reports.iter().map(|(device, cases, checks)| {
            json!({ "device": device.name(), "kind": device.kind(), "problems": cases.len(), "checks": checks,
                    "failed": cases.iter().filter(|c| !c.passed()).map(Case::describe).collect::<Vec<_>>() })
        });
        println!(
            "{}",
            json!({ "devices": devices.collect::<Vec<_>>(), "passed": failed.is_empty() })
        );
    } else {
        for (device, cases, checks) in &reports {
            println!("{}", device.name());
            print_by_version(cases);
            println!("and {checks} checks of the device layer and the stages");
        }
        println!(
            "{} passed, {} failed in {:.1} s",
            total - failed.len(),
            failed.len(),
            start.elapsed().as_secs_f64()
        );
        if let (Selector::Auto, Some(reason)) = (common.selector()?, Device::why_no_cuda()) {
            println!("The emulator only: {reason}");
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Wrong(format!("{} of {total} failed:\n{}", failed.len(), failed.join("\n"))))
}

/// The checks of the device layer and of every stage: how many there are, and those that failed.
fn checks(device: &Device) -> (usize, Vec<String>) {
    let own = [("device layer", device_checks::CHECKS), ("agreement", agreement::CHECKS)];
    let all: Vec<_> =
        own.into_iter().chain(crate::STAGES.iter().map(|s| (s.name, s.checks))).collect();
    // Their panics are reported below.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let failed = all.iter().flat_map(|(owner, checks)| {
        let failures = suite::failures(checks, device).into_iter();
        failures.map(move |(name, message)| format!("{owner}: {name}: {message}"))
    });
    let failed = failed.collect();
    std::panic::set_hook(hook);
    (all.iter().map(|(_, checks)| checks.len()).sum(), failed)
}

/// Every problem of every version on a device: in parallel on the emulator, one after the other
/// on a GPU.
pub(crate) fn cases(device: &Device) -> Result<Vec<Case>, Failure> {
    let work: Vec<(&dyn Version, Problem)> = crate::versions()
        .flat_map(|v| suite::problems(v).into_iter().map(move |p| (v, p)))
        .collect();
    let bar = ProgressBar::new(work.len() as u64).with_message(device.name());
    bar.set_style(
        ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}").expect("a template"),
    );
    let one = |(version, problem): &(&dyn Version, Problem)| {
        let case = suite::check(*version, device, problem);
        bar.inc(1);
        case
    };
    let cases = match device.kind() {
        DeviceKind::Cuda => work.iter().map(one).collect(),
        DeviceKind::Emulator => {
            // Kept in order, whoever finishes first.
            let done = Mutex::new(Vec::new());
            work.par_iter().enumerate().for_each(|(index, item)| {
                let case = one(item);
                done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((index, case));
            });
            let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
            done.sort_by_key(|d| d.0);
            done.into_iter().map(|d| d.1).collect()
        }
    };
    bar.finish_and_clear();
    Ok(cases)
}

fn print_by_version(cases: &[Case]) {
    let mut rows = table(&["version", ">problems", ">passed", ">worst error / bound"]);
    let mut names: Vec<&str> = cases.iter().map(|c| c.version.as_str()).collect();
    names.dedup();
    for name in names {
        let own: Vec<&Case> = cases.iter().filter(|c| c.version == name).collect();
        rows.add_row([
            name.to_owned(),
            own.len().to_string(),
            own.iter().filter(|c| c.passed()).count().to_string(),
            format!("{:.0} %", 100.0 * worst_ratio(own.iter().copied())),
        ]);
    }
    println!("{rows}");
}

/// The largest share of its bound that an error takes.
pub(crate) fn worst_ratio<'a>(cases: impl Iterator<Item = &'a Case>) -> f64 {
    cases
        .flat_map(|c| c.outcome.as_deref().unwrap_or_default())
        .map(|c| c.relative_error / c.bound)
        .fold(0.0, f64::max)
}

//! `lab selftest`: the suites that `cargo test` runs, in one binary.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lab_device::{DType, Device, Selector};
use lab_harness::suite::{self, Case, Check, Suite, Tier, VersionCheck};
use lab_harness::{
    Comparison, Error, Problem, Stage, Version, agreement, binding_checks, composition_checks,
    device_checks, map_checks, overlap_checks,
};
use serde_json::json;

use crate::Common;
use crate::failure::Failure;
use crate::part::Part;
use crate::table::table;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// One stage, without the checks of the device layer; STAGE:VERSION, without those of several versions either; or a model with
    /// kernels of its own, such as lab-lstm; all where it is left out
    #[arg(value_name = "STAGE[:VERSION]")]
    stage: Option<String>,
    /// The problems of every version only, none of the longer checks
    #[arg(long)]
    quick: bool,
    /// A part of each version's problems, such as 1/2: always the same ones, at least one of each version
    #[arg(long, requires = "quick")]
    part: Option<Part>,
    /// Leaves out the checks of large problems
    #[arg(long)]
    small: bool,
    /// Stops at the first that fails
    #[arg(long)]
    fail_fast: bool,
    /// Only versions that launch from this kernel file, such as kernels/sum.cu; may be repeated
    #[arg(long, requires = "stage")]
    source: Vec<String>,
    /// Only checks whose names contain this, and no problems; may be repeated
    #[arg(long, conflicts_with = "quick")]
    check: Vec<String>,
}

impl Arguments {
    fn versions(&self) -> Result<Vec<&'static dyn Version>, Failure> {
        let Some(name) = &self.stage else { return Ok(crate::versions().collect()) };
        if crate::model(name).is_some() {
            let given = [(self.quick, "--quick"), (!self.source.is_empty(), "--source")];
            return match given.into_iter().find(|(is_given, _)| *is_given) {
                Some((_, option)) => {
                    Err(Error::bad(option, "a stage, which has versions", format!("'{name}'"))
                        .into())
                }
                None => Ok(Vec::new()),
            };
        }
        let (of_stage, version) = name.split_once(':').unwrap_or((name, ""));
        let stage = crate::stage(of_stage)?;
        for file in &self.source {
            if !stage.kernels.iter().any(|k| k.file == file) {
                let known: Vec<_> = stage.kernels.iter().map(|k| k.file).collect();
                return Err(Error::bad("--source", known.join(", "), format!("'{file}'")).into());
            }
        }
        let all = if version.is_empty() { stage.versions.to_vec() } else { crate::named(name)? };
        // A version that does not tell its files may launch from any.
        let wanted = |v: &&'static dyn Version| {
            let own = v.sources();
            let named = |file: &String| own.iter().any(|s| s.file == file);
            self.source.is_empty() || own.is_empty() || self.source.iter().any(named)
        };
        Ok(all.into_iter().filter(wanted).collect())
    }

    /// The checks beside the problems, each under its name: those of a version first, which are
    /// many and quick.
    ///
    /// # Errors
    /// None has the name that is asked for.
    fn checks(&self, versions: &[&'static dyn Version]) -> Result<Vec<(String, Work)>, Error> {
        let named = |name: &str| self.check.iter().any(|part| name.contains(part));
        let fits = |name: &str, tier: Tier| {
            !(self.small && tier == Tier::Large) && (self.check.is_empty() || named(name))
        };
        let is_touched = |check: &&Check| {
            let apart = |file: &String| check.apart_from.contains(&file.as_str());
            self.source.is_empty() || !self.source.iter().all(apart)
        };
        let wanted = |suite: &Suite| {
            self.stage.as_deref().is_none_or(|s| s == suite.stage || s == suite.name)
        };
        let mut all = Vec::new();
        for &version in versions {
            let info = version.info();
            let stage = crate::stage(info.stage).expect("a version names its own stage");
            let of_each = stage.checks_of(version).into_iter().filter(|c| fits(c.name, c.tier));
            all.extend(of_each.map(|c| (info.full_name(), Work::OfVersion(c, version))));
        }
        let own = [
            ("device layer", device_checks::CHECKS),
            ("bindings", binding_checks::CHECKS),
            ("composition", composition_checks::CHECKS),
            ("maps", map_checks::CHECKS),
            ("overlap", overlap_checks::CHECKS),
            ("agreement", agreement::CHECKS),
        ];
        let own = own.map(|(name, checks)| Suite::new(name, name, checks));
        let stages = crate::STAGES.iter();
        let stages = stages.map(|s| Suite::new(s.name, s.name, s.checks));
        let models = crate::MODELS.iter().map(|m| Suite::new(m.name, m.stage, m.checks));
        for part in own.into_iter().chain(stages).chain(models).filter(wanted) {
            let stage = crate::STAGES.iter().find(|stage| stage.name == part.name);
            let stage = stage.filter(|_| fits(suite::KERNELS_LOAD, Tier::Short));
            all.extend(stage.map(|&stage| (part.name.to_owned(), Work::Loading(stage))));
            let checks = part.checks.iter().filter(|c| fits(c.name, c.tier)).filter(is_touched);
            all.extend(checks.map(|&c| (part.name.to_owned(), Work::Whole(c))));
        }
        if all.is_empty() && !self.check.is_empty() {
            let expected = "a part of the name of a check";
            return Err(Error::bad("--check", expected, format!("'{}'", self.check.join("', '"))));
        }
        Ok(all)
    }
}

/// A check beside the problems.
enum Work {
    OfVersion(VersionCheck, &'static dyn Version),
    Whole(Check),
    /// [`suite::KERNELS_LOAD`].
    Loading(&'static Stage),
}

impl Work {
    fn failures(&self, device: &Device) -> Vec<(&'static str, String)> {
        match self {
            Self::OfVersion(check, version) => {
                suite::version_failures(std::slice::from_ref(check), *version, device)
            }
            Self::Loading(stage) => suite::loading_failures(stage, device),
            Self::Whole(check) => suite::failures(std::slice::from_ref(check), device),
        }
    }
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let versions = arguments.versions()?;
    let devices = match common.selector()? {
        Selector::Auto => suite::devices()?,
        Selector::Emulator => vec![suite::emulator()?],
        one => vec![Device::open(one)?],
    };
    let start = Instant::now();
    let mut reports = Vec::new();
    let (mut total, mut failed) = (0, Vec::new());
    let checks = if arguments.quick { vec![] } else { arguments.checks(&versions)? };
    let posed = if arguments.check.is_empty() { versions.as_slice() } else { &[] };
    let sources: Vec<_> = posed.iter().flat_map(|version| version.sources()).collect();
    for device in &devices {
        device.compile_missing(&sources)?;
        let cases = cases(posed, device, arguments);
        let stop = arguments.fail_fast && cases.iter().any(|c| !c.passed());
        let (count, mut wrong) =
            if stop { (0, Vec::new()) } else { failures(&checks, arguments.fail_fast, device) };
        total += cases.len() + count;
        failed.append(&mut wrong);
        failed.extend(cases.iter().filter(|c| !c.passed()).map(Case::describe));
        reports.push((device, cases, count));
    }
    if common.json {
        let devices = reports.iter().map(|(device, cases, checks)| {
            json!({ "device": device.name(), "kind": device.kind(), "problems": cases.len(), "checks": checks,
                    "failed": cases.iter().filter(|c| !c.passed()).map(Case::describe).collect::<Vec<_>>(),
                    "observed": largest_errors(cases) })
        });
        say!("{}", json!({ "devices": devices.collect::<Vec<_>>(), "passed": failed.is_empty() }));
    } else {
        for (device, cases, checks) in &reports {
            say!("{}", device.name());
            if !cases.is_empty() {
                print_by_version(cases);
            }
            match &arguments.stage {
                Some(stage) => say!("and {checks} checks of {stage}"),
                None => say!("and {checks} checks of the device layer and the stages"),
            }
        }
        say!(
            "{} passed, {} failed in {:.1} s",
            total - failed.len(),
            failed.len(),
            start.elapsed().as_secs_f64()
        );
        if let (Selector::Auto, Some(reason)) = (common.selector()?, Device::why_no_cuda()) {
            say!("The emulator only: {reason}");
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    // What would have come after the first is not counted either.
    let head = if arguments.fail_fast {
        format!("{} failed, and what comes later was not run", failed.len())
    } else {
        format!("{} of {total} failed", failed.len())
    };
    let message = format!("{head}:\n{}", failed.join("\n"));
    let unexpected = reports.iter().flat_map(|(_, cases, _)| cases).filter(|c| !c.passed());
    let mut found_by: Vec<_> = unexpected.flat_map(|c| &c.found_by).copied().collect();
    found_by.sort_unstable();
    found_by.dedup();
    if found_by.is_empty() {
        Err(Failure::Wrong(message))
    } else {
        Err(Failure::Found(format!("{message}\nfound by: {}", found_by.join(", "))))
    }
}

/// Runs the checks: how many there are, and those that failed.
fn failures(all: &[(String, Work)], fail_fast: bool, device: &Device) -> (usize, Vec<String>) {
    // Their panics are reported below.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let stop = AtomicBool::new(false);
    let one = |(owner, work): &(String, Work)| {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let failures = work.failures(device).into_iter();
        let said: Vec<String> =
            failures.map(|(name, message)| format!("{owner}: {name}: {message}")).collect();
        stop.fetch_or(fail_fast && !said.is_empty(), Ordering::Relaxed);
        Some(said)
    };
    let failed = suite::each(device, all, one).concat();
    std::panic::set_hook(hook);
    (all.len(), failed)
}

/// Every problem of the versions on a device: in parallel on the emulator, one after the other
/// on a GPU. With `--fail-fast` none is begun once one has failed.
fn cases(versions: &[&'static dyn Version], device: &Device, arguments: &Arguments) -> Vec<Case> {
    let problems = |v: &&'static dyn Version| Part::filter(arguments.part, suite::problems(*v));
    let work: Vec<(&dyn Version, Problem)> =
        versions.iter().flat_map(|v| problems(v).into_iter().map(move |p| (*v, p))).collect();
    let bar = ProgressBar::new(work.len() as u64).with_message(device.name());
    bar.set_style(
        ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}").expect("a template"),
    );
    let stop = AtomicBool::new(false);
    let one = |(version, problem): &(&dyn Version, Problem)| {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let case = suite::check(*version, device, problem);
        stop.fetch_or(arguments.fail_fast && !case.passed(), Ordering::Relaxed);
        bar.inc(1);
        Some(case)
    };
    let cases = suite::each(device, &work, one);
    bar.finish_and_clear();
    cases
}

/// Of each output of each version in each type, the largest errors of all problems beside their bounds.
fn largest_errors(cases: &[Case]) -> Vec<serde_json::Value> {
    let mut all: Vec<(&str, DType, Comparison)> = Vec::new();
    for case in cases.iter().filter(|c| c.expected.mistake().is_none()) {
        for c in case.outcome.as_deref().unwrap_or_default() {
            let own = |a: &&mut (&str, DType, Comparison)| {
                (a.0, a.1, a.2.name) == (&case.version, case.dtype, c.name)
            };
            match all.iter_mut().find(own) {
                Some((.., most)) => {
                    most.relative_error = most.relative_error.max(c.relative_error);
                    most.rounding = most.rounding.max(c.rounding);
                    most.element_share = most.element_share.max(c.element_share);
                }
                None => all.push((&case.version, case.dtype, c.clone())),
            }
        }
    }
    let line = |(version, dtype, c): (&str, DType, Comparison)| {
        json!({ "version": version, "output": c.name, "dtype": dtype.name(),
                "relative_error": c.relative_error, "bound": c.bound, "rounding": c.rounding,
                "rounding_bound": c.rounding_bound, "element_share": c.element_share })
    };
    all.into_iter().map(line).collect()
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
            if own.iter().any(|c| c.wrong_on_purpose().is_some()) {
                "wrong, as expected".into()
            } else {
                format!("{:.0} %", 100.0 * worst_ratio(own.iter().copied()))
            },
        ]);
    }
    say!("{rows}");
}

/// The largest share of its bound that an error takes.
pub(crate) fn worst_ratio<'a>(cases: impl Iterator<Item = &'a Case>) -> f64 {
    cases
        .flat_map(|c| c.outcome.as_deref().unwrap_or_default())
        .map(Comparison::share)
        .fold(0.0, f64::max)
}

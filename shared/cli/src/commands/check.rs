//! `lab check STAGE[:VERSION]`: every access of a kernel looked at, over a set of shapes.

use std::time::Instant;

use clap::Args;
use lab_device::emulator::Finding;
use lab_device::{DType, Device, Mode};
use lab_harness::{Dims, Error, Problem, Version, suite};
use rayon::prelude::*;
use serde_json::json;

use crate::failure::Failure;
use crate::table::table;
use crate::{Common, named};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// STAGE[:VERSION]; a stage alone stands for all its versions
    name: String,
    /// One shape, such as R=4,C=100, in place of those that the version's tests use
    #[arg(long)]
    shape: Option<String>,
    /// One type in place of all
    #[arg(long)]
    dtype: Option<String>,
}

/// What the checks say of one problem.
struct Outcome {
    version: String,
    problem: Problem,
    findings: Result<Vec<Finding>, String>,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    if common.selector()? != lab_device::Selector::Auto
        && common.selector()? != lab_device::Selector::Emulator
    {
        let message = "--device: expected emulator, which is where the checks are, got a GPU \
                       (compute-sanitizer checks there)";
        return Err(Failure::Usage(message.into()));
    }
    let start = Instant::now();
    let device = Device::emulator_in(Mode::Checked)?;
    let work = work(arguments)?;
    let outcomes: Vec<Outcome> = work
        .par_iter()
        .map(|(version, problem)| Outcome {
            version: version.info().full_name(),
            problem: problem.clone(),
            findings: findings(*version, &device, problem),
        })
        .collect();
    let found: usize = outcomes.iter().flat_map(|o| &o.findings).map(Vec::len).sum();
    if common.json {
        println!(
            "{}",
            json!({ "findings": found, "problems": outcomes.iter().map(as_json).collect::<Vec<_>>() })
        );
    } else {
        print(&outcomes);
        println!(
            "{} problems on {} in {:.1} s: {found} findings",
            outcomes.len(),
            device.name(),
            start.elapsed().as_secs_f64()
        );
    }
    if let Some(message) = outcomes.iter().find_map(|o| o.findings.as_ref().err()) {
        return Err(Failure::Usage(message.clone()));
    }
    match found {
        0 => Ok(()),
        n => Err(Failure::Finding(format!("{}: {n} findings", arguments.name))),
    }
}

fn work(arguments: &Arguments) -> Result<Vec<(&'static dyn Version, Problem)>, Failure> {
    let given = arguments.shape.as_deref().map(Dims::parse).transpose()?;
    let dtype: Option<DType> = match &arguments.dtype {
        Some(text) => Some(text.parse().map_err(|m| Failure::Usage(format!("--dtype: {m}")))?),
        None => None,
    };
    let mut work = Vec::new();
    for version in named(&arguments.name)? {
        let info = version.info();
        if let Some(dtype) = dtype {
            info.check_dtype(dtype)?;
        }
        let mut problems = suite::problems(version);
        if let Some(given) = &given {
            let dims = info.complete(given)?;
            let of = |&dtype: &DType| Problem::new(dims.clone(), dtype);
            problems = info.dtypes.iter().map(of).collect();
        }
        problems.retain(|p| dtype.is_none_or(|d| d == p.dtype));
        work.extend(problems.into_iter().map(|p| (version, p)));
    }
    Ok(work)
}

fn findings(
    version: &dyn Version,
    device: &Device,
    problem: &Problem,
) -> Result<Vec<Finding>, String> {
    let inputs = version.inputs(problem);
    match lab_harness::run(version, device, &inputs, &problem.options) {
        Ok(_) => Ok(Vec::new()),
        Err(Error::Device(error)) => match error.findings() {
            Some(findings) => Ok(findings.all.clone()),
            None => Err(error.to_string()),
        },
        Err(error) => Err(error.to_string()),
    }
}

fn print(outcomes: &[Outcome]) {
    let mut rows = table(&["version", ">problems", ">with findings"]);
    let mut names: Vec<&str> = outcomes.iter().map(|o| o.version.as_str()).collect();
    names.dedup();
    for name in names {
        let own = || outcomes.iter().filter(|o| o.version == name);
        let with = own().filter(|o| o.findings.as_ref().is_ok_and(|f| !f.is_empty())).count();
        rows.add_row([name.to_owned(), own().count().to_string(), with.to_string()]);
    }
    println!("{rows}");
    // The same finding at several shapes is one: its places tell.
    let mut told: Vec<Vec<String>> = Vec::new();
    for outcome in outcomes {
        for finding in outcome.findings.iter().flatten() {
            let places: Vec<String> = finding.places().map(str::to_owned).collect();
            if told.contains(&places) {
                continue;
            }
            let Outcome { version, problem, .. } = outcome;
            let check = finding.kind.check().name();
            println!("\n{version} {} {}, {check}: {finding}", problem.dims, problem.dtype);
            told.push(places);
        }
    }
}

fn as_json(outcome: &Outcome) -> serde_json::Value {
    let findings = outcome.findings.iter().flatten().map(finding_json).collect::<Vec<_>>();
    json!({ "version": outcome.version, "shape": outcome.problem.dims.to_string(),
            "dtype": outcome.problem.dtype.name(), "findings": findings,
            "error": outcome.findings.as_ref().err() })
}

/// A finding as JSON.
pub(crate) fn finding_json(finding: &Finding) -> serde_json::Value {
    let accesses = finding.accesses.iter().map(|a| {
        json!({ "what": a.what, "place": a.place, "within": a.within, "block": a.block, "thread": a.thread })
    });
    json!({ "check": finding.kind.check().name(), "kind": format!("{:?}", finding.kind),
            "message": finding.message, "accesses": accesses.collect::<Vec<_>>(),
            "places": finding.places().collect::<Vec<_>>(), "fix": finding.fix, "count": finding.count })
}

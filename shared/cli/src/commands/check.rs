//! `lab check STAGE[:VERSION]`: every access of a kernel looked at, over a set of shapes.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use lab_checker::finding_json;
use lab_device::emulator::Finding;
use lab_device::{DType, Device, Mode};
use lab_harness::{Dims, Error, Mistake, Problem, Version, suite};
use rayon::prelude::*;
use serde_json::json;

use crate::commands::run::check_room;
use crate::commands::{kernel, watch};
use crate::failure::Failure;
use crate::table::table;
use crate::words::counted;
use crate::{Common, named};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// STAGE[:VERSION] or a family, where a stage or a family stands for all its versions; or FILE.cu, anybody's
    #[arg(value_name = "STAGE|FILE.cu")]
    name: String,
    /// One shape, such as R=4,C=100, in place of those that the version's tests use; of a stage each version takes the sizes
    /// that it knows
    #[arg(long)]
    shape: Option<String>,
    /// One type in place of all; of a stage the versions that take it
    #[arg(long)]
    dtype: Option<String>,
    #[command(flatten)]
    kernel: kernel::Arguments,
    #[command(flatten)]
    expect: kernel::Expectations,
    /// Seed of random values, and of --order random
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Writes the outputs, by the names of their arguments
    #[arg(long, value_name = "FILE.safetensors")]
    output: Option<PathBuf>,
    /// Writes the findings in SARIF 2.1.0, which tools for code review read
    #[arg(long, value_name = "FILE.sarif")]
    sarif: Option<PathBuf>,
    /// Checks again at each save of FILE.cu, until Ctrl-C
    #[arg(long)]
    watch: bool,
}

/// What the checks say of one problem.
struct Outcome {
    version: String,
    problem: Problem,
    findings: Result<Vec<Finding>, Error>,
    /// The mistake that must be found, of a version that is wrong on purpose.
    mistake: Option<&'static Mistake>,
}

impl Outcome {
    fn is_expected(&self, finding: &Finding) -> bool {
        self.mistake.is_some_and(|m| m.explains(finding))
    }

    fn count_unexpected(&self) -> usize {
        self.findings.iter().flatten().filter(|f| !self.is_expected(f)).count()
    }

    /// Whether a mistake should have been found, and was not.
    fn is_missed(&self) -> bool {
        self.mistake.is_some() && !self.findings.iter().flatten().any(|f| self.is_expected(f))
    }
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    if common.selector()? != lab_device::Selector::Auto
        && common.selector()? != lab_device::Selector::Emulator
    {
        let message = "--device: expected emulator, which is where the checks are, got a GPU \
                       (compute-sanitizer checks there)";
        return Err(Failure::Usage(message.into()));
    }
    if kernel::is_file(&arguments.name) {
        return of_file(common, arguments);
    }
    arguments.kernel.refuse_for_stage(&arguments.name)?;
    arguments.expect.refuse_for_stage(&arguments.name)?;
    kernel::refuse_others_for_stage(
        &arguments.name,
        &[
            (arguments.output.is_some(), "--output"),
            (arguments.sarif.is_some(), "--sarif"),
            (arguments.watch, "--watch"),
        ],
    )?;
    let start = Instant::now();
    let device = Device::emulator_in(Mode::Checked)?;
    let work = work(arguments)?;
    let sources: Vec<_> = work.iter().flat_map(|(version, _)| version.sources()).collect();
    device.compile_missing(&sources)?;
    let outcomes: Vec<Outcome> = work
        .par_iter()
        .map(|(version, problem)| Outcome {
            version: version.info().full_name(),
            problem: problem.clone(),
            findings: findings(*version, &device, problem),
            mistake: version.expected(&problem.options).mistake(),
        })
        .collect();
    let all: usize = outcomes.iter().flat_map(|o| &o.findings).map(Vec::len).sum();
    let found: usize = outcomes.iter().map(Outcome::count_unexpected).sum();
    if common.json {
        say!(
            "{}",
            json!({ "findings": found, "expected": all - found, "problems": outcomes.iter().map(as_json).collect::<Vec<_>>() })
        );
    } else {
        print(&outcomes);
        say!(
            "{} on {} in {:.1} s: {}{}",
            counted(outcomes.len(), "problem"),
            device.name(),
            start.elapsed().as_secs_f64(),
            counted(found, "finding"),
            match all - found {
                0 => String::new(),
                n => format!(", and {n} that must be there"),
            }
        );
    }
    verdict(&arguments.name, &outcomes)
}

/// A kernel of a file, or the list of them.
fn of_file(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let file = Path::new(&arguments.name);
    let of_stage = [(arguments.shape.is_some(), "--shape"), (arguments.dtype.is_some(), "--dtype")];
    kernel::refuse_for_file(&arguments.name, &of_stage)?;
    if arguments.watch {
        return Ok(watch::repeat(file, common.json)?);
    }
    if !arguments.kernel.is_launch() {
        return Ok(kernel::list(common.json, file, &arguments.kernel, "check")?);
    }
    let targets =
        kernel::Targets { output: arguments.output.as_deref(), sarif: arguments.sarif.as_deref() };
    let Arguments { kernel, expect, seed, .. } = arguments;
    Ok(kernel::check(common.json, file, kernel, expect, &targets, *seed)?)
}

/// Found as it must be is fine, for then what the registry says of the version holds; anything else
/// that was found is not, and neither is a mistake that was not.
fn verdict(name: &str, outcomes: &[Outcome]) -> Result<(), Failure> {
    let (unwritten, failed): (Vec<_>, Vec<_>) = outcomes
        .iter()
        .filter_map(|o| o.findings.as_ref().err().map(|e| (o, e)))
        .partition(|(_, e)| matches!(e, Error::NeverWritten { .. }));
    if let Some((_, error)) = failed.first() {
        return Err(Failure::Usage(error.to_string()));
    }
    if let Some((Outcome { version, problem, .. }, error)) = unwritten.first() {
        let Problem { dims, dtype, .. } = problem;
        return Err(Failure::Finding(format!("{version} {dims} {dtype}: {error}")));
    }
    let found: usize = outcomes.iter().map(Outcome::count_unexpected).sum();
    if found > 0 {
        return Err(Failure::Finding(format!("{name}: {}", counted(found, "finding"))));
    }
    match outcomes.iter().find(|o| o.is_missed()) {
        None => Ok(()),
        Some(Outcome { version, problem, .. }) => Err(Failure::Wrong(format!(
            "{version} {} {}: expected the mistake that it is kept for, got no finding",
            problem.dims, problem.dtype
        ))),
    }
}

fn work(arguments: &Arguments) -> Result<Vec<(&'static dyn Version, Problem)>, Failure> {
    let given = arguments.shape.as_deref().map(Dims::parse).transpose()?;
    let dtype: Option<DType> = match &arguments.dtype {
        Some(text) => Some(text.parse().map_err(|m| Failure::Usage(format!("--dtype: {m}")))?),
        None => None,
    };
    let mut work = Vec::new();
    let mut versions = named(&arguments.name)?;
    // Of a stage those that take the type; where none does, the first says so.
    let takes = |v: &&'static dyn Version| dtype.is_none_or(|d| v.info().dtypes.contains(&d));
    if versions.iter().any(takes) {
        let others = versions.iter().filter(|v| !takes(v)).map(|v| v.info().full_name());
        let others: Vec<String> = others.collect();
        if let (Some(dtype), false) = (dtype, others.is_empty()) {
            note!("left out, not in {dtype}: {}", others.join(", "));
        }
        versions.retain(takes);
    }
    let knows =
        |version: &dyn Version, name: &str| version.info().dims.iter().any(|d| d.name == name);
    let is_known = |name: &str| versions.iter().any(|v| knows(*v, name));
    for &version in &versions {
        let info = version.info();
        if let Some(dtype) = dtype {
            info.check_dtype(dtype)?;
        }
        let mut problems = suite::problems(version);
        if let Some(given) = &given {
            // A size that no version has is a mistake.
            let mut own = Dims::default();
            let sizes = given.iter().filter(|(name, _)| knows(version, name) || !is_known(name));
            sizes.for_each(|(name, size)| own.set(name, size));
            let dims = info.complete(&own)?;
            check_room(info, &dims, rayon::current_num_threads())?;
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
) -> Result<Vec<Finding>, Error> {
    let inputs = version.inputs(problem);
    match lab_harness::run(version, device, &inputs, &problem.options) {
        Ok(_) => Ok(Vec::new()),
        Err(Error::Device(error)) => match error.findings() {
            Some(findings) => Ok(findings.all.clone()),
            None => Err(error.into()),
        },
        Err(error) => Err(error),
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
    say!("{rows}");
    let mut reasons: Vec<_> =
        outcomes.iter().filter_map(|o| Some((&o.version, o.mistake?.because))).collect();
    reasons.dedup();
    for (version, because) in reasons {
        say!("{version} is wrong on purpose: {because}.");
    }
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
            let expected = if outcome.is_expected(finding) { ", as expected" } else { "" };
            let head = format!("{version} {} {}, {check}{expected}", problem.dims, problem.dtype);
            say!("\n{head}: {finding}");
            told.push(places);
        }
    }
}

fn as_json(outcome: &Outcome) -> serde_json::Value {
    let findings = outcome.findings.iter().flatten().map(finding_json).collect::<Vec<_>>();
    json!({ "version": outcome.version, "shape": outcome.problem.dims.to_string(),
            "dtype": outcome.problem.dtype.name(), "findings": findings,
            "wrong_on_purpose": outcome.mistake.map(|m| m.because), "missed": outcome.is_missed(),
            "error": outcome.findings.as_ref().err().map(ToString::to_string) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The problems of `qkv_v0`, which must be found at fault, as they are.
    fn outcomes() -> Vec<Outcome> {
        let device = Device::emulator_in(Mode::Checked).unwrap();
        let version: &dyn Version = &qkv_v0::GRID_TILE;
        let problem = Problem::new(version.info().small(), DType::F32);
        let mistake = version.expected(&problem.options).mistake();
        let findings = findings(version, &device, &problem);
        vec![Outcome { version: "v".into(), problem, findings, mistake }]
    }

    fn code(outcomes: &[Outcome]) -> u8 {
        verdict("v", outcomes).err().map_or(0, |f| f.code())
    }

    #[test]
    fn only_the_expected_findings_are_fine() {
        let mut all = outcomes();
        assert_eq!(code(&all), 0);
        all[0].findings.as_mut().unwrap()[0].accesses[0].place = "x.cu:1:1".into();
        assert_eq!((code(&all), all[0].count_unexpected()), (3, 1));
        all[0].findings.as_mut().unwrap().clear();
        assert_eq!((code(&all), all[0].count_unexpected()), (1, 0));
        all[0].mistake = None;
        assert_eq!(code(&all), 0);
        let mut all = outcomes();
        all[0].mistake = None;
        assert_eq!(code(&all), 3);
        all[0].findings = Err(Error::bad("memory", "room", "none"));
        assert_eq!(code(&all), 2);
        let output = "O".to_owned();
        all[0].findings = Err(Error::NeverWritten { output, count: 4, of: 8, first: 4 });
        assert_eq!(code(&all), 3);
    }
}

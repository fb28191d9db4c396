//! `lab dev corpus [NAME]`: the planted bugs and right kernels that the emulator is held against.

use clap::Args;
use lab_corpus::{
    Case, Judgement, PRODUCTS, Verdict, asynchronous, cases, cases_beyond_sanitizer, counted,
    descriptors, emulator, formal, instructions, judge, kernels, lines, maps, run as run_case,
};
use lab_device::emulator::{Finding, Landing, Operation, Options};
use lab_device::{Device, DeviceKind, Mode, Selector};
use lab_harness::Error;
use rayon::prelude::*;
use serde_json::{Value, json};

use crate::Common;
use crate::commands::refuse_gpu_for;
use crate::failure::Failure;
use crate::table::table;
use crate::words;
use lab_checker::finding_json;
use lab_device::emulator::shown;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// One case; all of them where none is named
    name: Option<String>,
    /// The kernels with known traffic, and what the emulator counts of them
    #[arg(long, conflicts_with = "name")]
    counted: bool,
    /// All right kernels, one after the other, on the device; a line for each as it ends
    #[arg(long, conflicts_with_all = ["name", "counted"])]
    right: bool,
    /// Of the kernels that no other tool judges (kernels/formal.cu, kernels/beyond.cu), those that compute what is
    /// meant, in place of the others
    #[arg(long, requires = "right")]
    formal: bool,
    /// Products of wgmma by random matrix descriptors, on the device, to the bit
    #[arg(long, conflicts_with_all = ["name", "counted", "right"])]
    descriptors: bool,
    /// Copies of boxes by random tensor maps, on the device, byte by byte; on a GPU also whether its
    /// driver takes the maps that are legal, and no others
    #[arg(long, conflicts_with_all = ["name", "counted", "right", "descriptors"])]
    maps: bool,
    /// All cases, products and copies, each with copies that land late and then early, up to the first
    /// that is wrong: found otherwise than it must be, or with other numbers
    #[arg(long, conflicts_with_all = ["name", "counted", "right", "descriptors", "maps"])]
    fail_fast: bool,
    /// Only those of this kernel file, such as kernels/bulk.cu; may be repeated
    #[arg(long, requires = "fail_fast")]
    source: Vec<String>,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    if !arguments.right {
        refuse_gpu_for(common, "planted bugs are found")?;
    }
    if let Some(name) = &arguments.name {
        return show_case(common, name);
    }
    if arguments.fail_fast || arguments.right || arguments.descriptors || arguments.maps {
        // What these tell stands in lines, as each case ends.
        if common.json {
            let got = "--fail-fast, --right, --descriptors or --maps".into();
            let expected = "all cases, one or --counted".to_owned();
            return Err(Error::Bad { what: "--json".into(), expected, got }.into());
        }
        return by_lines(common, arguments);
    }
    if arguments.counted {
        return print_counted(common);
    }
    let device = emulator(options()?)?;
    device.compile_missing(kernels::KERNELS)?;
    let all: Vec<Case> =
        cases().into_iter().chain(formal()).chain(cases_beyond_sanitizer()).collect();
    // One goes round for ever: the others are judged while it is waited for.
    let judged: Result<Vec<_>, Failure> = (all.into_par_iter().with_max_len(1))
        .map(|case| {
            let (judgement, findings) = judge(&case, &device)?;
            Ok((case, judgement, findings))
        })
        .collect();
    let judged = judged?;
    let wrong = judged.iter().filter(|j| !j.1.right()).count();
    if common.json {
        let (plain, formal) = judged.split_at(cases().len());
        let all = |all: &[(Case, Judgement, Vec<Finding>)]| {
            all.iter().map(|(c, j, findings)| described(c, j, findings)).collect::<Vec<_>>()
        };
        say!("{}", json!({ "wrong": wrong, "cases": all(plain), "formal": all(formal) }));
    } else {
        let mut rows = table(&["case", "file", "what it is", "the emulator"]);
        for (case, judgement, _) in &judged {
            let what = match case.verdict {
                Verdict::Bug(kind) => format!("{kind:?} bug").to_lowercase(),
                Verdict::Formal { kind, .. } => format!("{kind:?}, formal").to_lowercase(),
                Verdict::Correct { .. } => "right".into(),
            };
            let said = match judgement {
                Judgement::Found | Judgement::Formal => "found".into(),
                Judgement::Clean => "nothing to say".into(),
                other => format!("{other:?}"),
            };
            rows.add_row([case.name.into(), case.source.name.into(), what, said]);
        }
        say!("{rows}");
        say!("{} of {} told rightly", judged.len() - wrong, judged.len());
    }
    match wrong {
        0 => Ok(()),
        n => Err(Failure::Wrong(format!("{n} verdicts are wrong"))),
    }
}

fn described(case: &Case, judgement: &Judgement, findings: &[Finding]) -> Value {
    json!({ "name": case.name, "file": case.source.file, "lines": lines(case),
            "bug": case.bug().map(|k| format!("{k:?}")), "hangs": case.hangs,
            "judgement": format!("{judgement:?}"), "right": judgement.right(),
            "findings": findings.iter().map(finding_json).collect::<Vec<_>>() })
}

/// What the environment says.
fn options() -> Result<Options, Failure> {
    Options::from_env().map_err(|e| Failure::Usage(e.to_string()))
}

fn by_lines(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    if arguments.fail_fast {
        return up_to_the_first(&arguments.source);
    }
    if arguments.descriptors {
        return run_descriptors(common);
    }
    if arguments.maps {
        return run_maps(common);
    }
    let device = common.open()?;
    let all = if arguments.formal {
        formal().into_iter().chain(cases_beyond_sanitizer()).collect()
    } else {
        cases()
    };
    hold_all(all.into_iter().filter(|c| c.bug().is_none()), &device)
}

/// Right ones first: most of what breaks a header shows in the first that runs.
fn up_to_the_first(files: &[String]) -> Result<(), Failure> {
    let known = || kernels::KERNELS.iter().map(|k| k.file);
    if let Some(file) = files.iter().find(|f| !known().any(|k| k == **f)) {
        let known = known().collect::<Vec<_>>().join(", ");
        let file = shown(file, 60);
        return Err(Failure::Usage(format!("--source: expected one of {known}, got '{file}'")));
    }
    let wanted = |file: &str| files.is_empty() || files.iter().any(|f| f == file);
    let all = cases()
        .into_iter()
        .chain(counted())
        .chain(instructions())
        .chain(formal())
        .chain(cases_beyond_sanitizer());
    let all = all.chain(descriptors());
    let mut all: Vec<Case> = all.filter(|c| wanted(c.source.file)).collect();
    all.sort_by_key(|c| c.bug().is_some());
    for copies in [Landing::Late, Landing::Early] {
        let device = emulator(Options { copies, ..options()? })?;
        all.iter().try_for_each(|case| hold_verdict(case, &device))?;
        if wanted(kernels::MAPS.file) {
            hold_maps(&device)?;
        }
    }
    say!("{} cases hold", all.len());
    Ok(())
}

fn hold_verdict(case: &Case, device: &Device) -> Result<(), Failure> {
    let wrong = |said: String| Failure::Wrong(format!("{}: {said}", case.name));
    let (judgement, findings) = judge(case, device).map_err(|e| wrong(e.to_string()))?;
    if judgement == Judgement::FalseAlarm {
        return Err(Failure::Finding(format!("{}: {}", case.name, findings[0])));
    }
    if judgement.right() { Ok(()) } else { Err(wrong(format!("{judgement:?}"))) }
}

fn hold_maps(device: &Device) -> Result<(), Failure> {
    for n in 0..maps::LOADS + maps::STORES {
        let differs = maps::copy(device, n as u64, n >= maps::LOADS);
        let wrong = |said: String| Err(Failure::Wrong(format!("box {n}: {said}")));
        match differs {
            Ok(None) => {}
            Ok(Some(differs)) => return wrong(format!("{differs:?}")),
            Err(error) if error.findings().is_some() => return Err(error.into()),
            Err(error) => return wrong(error.to_string()),
        }
    }
    Ok(())
}

/// Holds every product, and tells which instantiations differ.
fn run_descriptors(common: &Common) -> Result<(), Failure> {
    let device = common.open()?;
    let mut wrong = Vec::new();
    let mut products = 0;
    for case in descriptors() {
        let outputs = run_case(&case, &device)?;
        let same = case.holds(&outputs);
        products += PRODUCTS;
        say!("{}: {}", case.name, if same { "to the bit" } else { "differs" });
        if !same {
            wrong.push(case.name);
        }
    }
    say!("{products} products on {}", device.name());
    match wrong.len() {
        0 => Ok(()),
        n => Err(Failure::Wrong(format!("{n} kernels differ: {}", wrong.join(", ")))),
    }
}

/// Makes every copy, and tells which differ.
fn run_maps(common: &Common) -> Result<(), Failure> {
    let device = common.open()?;
    let mut wrong = 0;
    for n in 0..maps::LOADS + maps::STORES {
        if let Some(differs) = maps::copy(&device, n as u64, n >= maps::LOADS)? {
            say!("{differs:?}");
            wrong += 1;
        }
    }
    say!("{} boxes loaded and {} stored on {}", maps::LOADS, maps::STORES, device.name());
    if device.kind() == DeviceKind::Cuda {
        let differ = maps::verdicts(&device)?;
        differ.iter().for_each(|drawn| say!("{drawn:?}"));
        say!("{} maps drawn: {} verdicts differ", maps::DRAWN, differ.len());
        wrong += differ.len();
    }
    match wrong {
        0 => Ok(()),
        n => Err(Failure::Wrong(format!("{n} tensor maps differ"))),
    }
}

/// Runs a right case and compares; runs a bug and says nothing.
fn run_and_compare(case: &Case, device: &Device) -> Result<(), Failure> {
    let outputs = run_case(case, device)?;
    if case.holds(&outputs) {
        Ok(())
    } else {
        Err(Failure::Wrong(format!("{}: its outputs are wrong", case.name)))
    }
}

/// As [`hold`], and says what became of it: what is cut off keeps what came before.
fn hold_and_tell(case: &Case, device: &Device) -> Result<(), Failure> {
    run_and_compare(case, device)?;
    let said = match case.bug() {
        Some(_) => "it ended; a planted bug's outputs are not looked at",
        None => "computes what it must",
    };
    let line = format!("{}: {said}, on {}", case.name, device.name());
    say!("{line}");
    Ok(())
}

/// Goes on where outputs are wrong; what a device refuses ends it, for a GPU may then run nothing more.
fn hold_all(all: impl Iterator<Item = Case>, device: &Device) -> Result<(), Failure> {
    let mut wrong = Vec::new();
    for case in all {
        match hold_and_tell(&case, device) {
            Err(Failure::Wrong(said)) => {
                say!("{said}");
                wrong.push(case.name);
            }
            other => other?,
        }
    }
    match wrong.len() {
        0 => Ok(()),
        n => Err(Failure::Wrong(format!("{n} kernels differ: {}", wrong.join(", ")))),
    }
}

fn show_case(common: &Common, name: &str) -> Result<(), Failure> {
    let mut all: Vec<Case> = cases().into_iter().chain(counted()).chain(instructions()).collect();
    all.extend(formal().into_iter().chain(cases_beyond_sanitizer()));
    let Some(at) = all.iter().position(|c| c.name == name) else {
        let names: Vec<&str> = all.iter().map(|c| c.name).collect();
        let expected = if words::near(&names, name).is_empty() {
            "one that `lab dev corpus` lists".to_owned()
        } else {
            words::known_names(&names, name, "lab dev corpus")
        };
        let name = shown(name, 60);
        return Err(Failure::Usage(format!("case: expected {expected}, got '{name}'")));
    };
    let case = all.swap_remove(at);
    let device = match common.selector()? {
        Selector::Auto | Selector::Emulator => Device::emulator_in(Mode::Checked)?,
        gpu => Device::open(gpu)?,
    };
    if device.kind() == DeviceKind::Cuda {
        if common.json {
            run_and_compare(&case, &device)?;
            say!("{}", json!({ "name": name, "device": device.name(), "ended": true }));
            return Ok(());
        }
        return hold_and_tell(&case, &device);
    }
    let (judgement, findings) = judge(&case, &device)?;
    let say = |line: String| {
        if !common.json {
            say!("{line}");
        }
    };
    for finding in &findings {
        say(format!("{}: {finding}", finding.kind.check().name()));
    }
    let verdict = match (&judgement, findings.is_empty(), judgement.right()) {
        (Judgement::Formal, ..) => {
            say(format!("{name}: wrong by the letter alone, and found to be"));
            Ok(())
        }
        (_, true, true) => {
            say(format!("{name}: nothing to say, and right so"));
            Ok(())
        }
        (_, false, true) => Err(Failure::Found(format!("{name}: the planted bug was found"))),
        (_, _, false) => Err(Failure::Wrong(format!("{name}: {judgement:?}"))),
    };
    if common.json {
        say!("{}", described(&case, &judgement, &findings));
    }
    verdict
}

fn print_counted(common: &Common) -> Result<(), Failure> {
    let device = Device::emulator_in(Mode::Counted)?;
    let mut all = Vec::new();
    let mut rows = table(&["kernel", "operation", ">requests", ">sectors, wavefronts", ">ideal"]);
    let plain = counted().into_iter().map(|case| (case, false));
    for (case, bulk) in plain.chain(asynchronous().into_iter().map(|case| (case, true))) {
        run_and_compare(&case, &device)?;
        let profile = device.take_profile();
        // What else these do, the others do as well.
        for operation in Operation::ALL.into_iter().filter(|o| o.asynchronous() == bulk) {
            let total = profile.total(operation);
            let Some((requests, cost)) = operation.nsight() else { continue };
            if total.requests == 0 {
                continue;
            }
            let figures = [total.requests, total.cost, total.ideal].map(|n| n.to_string());
            let mut row = vec![case.name.to_owned(), operation.name().into()];
            row.extend(figures);
            rows.add_row(row);
            all.push(json!({ "kernel": case.name, "operation": operation.name(),
                             "requests": total.requests, "cost": total.cost, "ideal": total.ideal,
                             "nsight": { "requests": requests, "cost": cost } }));
        }
    }
    if common.json {
        say!("{}", json!({ "counted": all }))
    } else {
        say!("{rows}")
    }
    Ok(())
}

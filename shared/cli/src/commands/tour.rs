//! `lab` without a command: what is here, that it works, and how the versions compare.

use std::time::Instant;

use lab_device::{Device, DeviceKind, Selector};
use lab_harness::suite::{self, Case};
use lab_harness::{Problem, timing};
use serde_json::json;

use crate::commands::selftest::worst_ratio;
use crate::failure::Failure;
use crate::table::list;
use crate::{Common, STAGES};

pub(crate) fn run(common: &Common) -> Result<(), Failure> {
    let start = Instant::now();
    let device = common.open()?;
    let say = |line: String| {
        if !common.json {
            println!("{line}");
        }
    };
    say(format!("Device: {}", device.name()));
    if let (Selector::Auto, Some(reason)) = (common.selector()?, Device::why_no_cuda()) {
        say(format!("  (the emulator runs the same kernels on the CPU; {reason})"));
    }
    say("For each version: in how many types it is right, and its largest error in % of the allowed error".into());
    let mut failed = Vec::new();
    let mut on_purpose = 0;
    let mut report = Vec::new();
    for stage in STAGES {
        say(format!("\n{}: {}", stage.name, stage.teaches));
        let gpu = device.kind() == DeviceKind::Cuda;
        let mut headings = vec!["version", ">right", ">error"];
        if gpu {
            headings.extend([">µs", ">GB/s", "of"]);
        }
        headings.push("the one change");
        let mut rows = list(&headings);
        for version in stage.versions {
            let info = version.info();
            let cases: Vec<Case> = info
                .dtypes
                .iter()
                .map(|&d| suite::check(*version, &device, &Problem::new(info.small(), d)))
                .collect();
            let passed = cases.iter().filter(|c| c.passed()).count();
            failed.extend(cases.iter().filter(|c| !c.passed()).map(Case::describe));
            let dtype = info.dtypes[0];
            let dims = info.timed(dtype);
            let cost = version.cost(&dims, dtype);
            let mistake = cases.iter().find_map(Case::wrong_on_purpose);
            on_purpose += usize::from(mistake.is_some());
            let mut row = vec![
                info.name.to_owned(),
                format!("{passed} of {}", cases.len()),
                match mistake {
                    Some(_) => "wrong".into(),
                    None => format!("{:.0} %", 100.0 * worst_ratio(cases.iter())),
                },
            ];
            let change = match mistake {
                Some(m) => format!("{} (wrong on purpose: {})", info.change, m.because),
                None => info.change.to_owned(),
            };
            let mut entry = json!({
                "version": info.full_name(), "family": info.family.name(), "change": info.change,
                "checked": cases.len(), "passed": passed,
                "cases": cases.iter().map(Case::describe).collect::<Vec<_>>(),
                "least_bytes": cost.bytes, "flops": cost.flops, "shape": dims.to_string(),
                "wrong_on_purpose": mistake.map(|m| m.because),
            });
            if gpu && mistake.is_some() {
                row.extend([(); 3].map(|()| String::new()));
            } else if gpu {
                let problem = Problem::new(dims.clone(), dtype);
                let inputs = version.inputs(&problem);
                let mut prepared = version.prepare(&device, &inputs, &problem.options)?;
                let times = timing::time(&device, prepared.as_mut(), 30)?;
                let gbps = cost.bytes / times.median_us * 1e-3;
                let of = format!("{dims} {dtype}");
                row.extend([format!("{:.1}", times.median_us), format!("{gbps:.0}"), of]);
                entry["time"] = json!(times);
                entry["gbps"] = json!(gbps);
            }
            row.push(change);
            rows.add_row(row);
            report.push(entry);
        }
        say(rows.to_string());
    }
    let seconds = start.elapsed().as_secs_f64();
    if common.json {
        let object = json!({ "device": device.name(), "kind": device.kind(), "versions": report,
                             "seconds": seconds, "passed": failed.is_empty() });
        println!("{object}");
    }
    if !failed.is_empty() {
        return Err(Failure::Wrong(failed.join("\n")));
    }
    let wrong = match on_purpose {
        0 => String::new(),
        1 => "; 1 deliberately wrong version failed as expected".to_owned(),
        n => format!("; {n} deliberately wrong versions failed as expected"),
    };
    say(format!(
        "\nAll passed in {seconds:.1} s{wrong}. Every result was compared with an f64 reference."
    ));
    say("Next: `lab list` says what there is, `lab run playg:softmax --shape R=4,C=1000` runs one, \
         `mdbook serve book/` tells the story."
        .into());
    Ok(())
}

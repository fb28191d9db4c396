//! `lab` without a command: what is here, that it works, and how the versions compare.

use std::time::Instant;

use lab_device::{Device, DeviceKind, Selector};
use lab_harness::suite::{self, Case};
use lab_harness::{Options, Problem, timing};
use serde_json::json;

use crate::commands::selftest::worst_ratio;
use crate::failure::Failure;
use crate::table::{bytes, table};
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
    let mut failed = Vec::new();
    let mut on_purpose = 0;
    let mut report = Vec::new();
    for stage in STAGES {
        say(format!("\n{}: {}", stage.name, stage.teaches));
        let gpu = device.kind() == DeviceKind::Cuda;
        let mut headings =
            vec!["version", "the one change", ">checked", ">worst error / bound", ">least traffic"];
        if gpu {
            headings.extend([">time", ">GB/s"]);
        }
        let mut rows = table(&headings);
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
            let dtypes: Vec<_> = info.dtypes.iter().map(|d| d.name()).collect();
            let mistake = cases.iter().find_map(Case::wrong_on_purpose);
            on_purpose += usize::from(mistake.is_some());
            let mut row = vec![
                info.full_name(),
                info.change.to_owned(),
                format!("{passed} of {} ({})", cases.len(), dtypes.join(" ")),
                match mistake {
                    Some(m) => format!("wrong, as expected ({})", m.because),
                    None => format!("{:.0} %", 100.0 * worst_ratio(cases.iter())),
                },
                format!("{} for {dims}", bytes(cost.bytes)),
            ];
            let mut entry = json!({
                "version": info.full_name(), "family": info.family.name(), "change": info.change,
                "checked": cases.len(), "passed": passed,
                "cases": cases.iter().map(Case::describe).collect::<Vec<_>>(),
                "least_bytes": cost.bytes, "flops": cost.flops, "shape": dims.to_string(),
                "wrong_on_purpose": mistake.map(|m| m.because),
            });
            if gpu && version.expected(&Options::default()).mistake().is_none() {
                let problem = Problem::new(dims, dtype);
                let inputs = version.inputs(&problem);
                let mut prepared = version.prepare(&device, &inputs, &problem.options)?;
                let times = timing::time(&device, prepared.as_mut(), 30)?;
                let gbps = cost.bytes / times.median_us * 1e-3;
                row.extend([format!("{:.1} µs", times.median_us), format!("{gbps:.0}")]);
                entry["time"] = json!(times);
                entry["gbps"] = json!(gbps);
            }
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
    let but = match on_purpose {
        0 => String::new(),
        n => format!(" but for {n} that must be wrong and is"),
    };
    say(format!(
        "\nEverything is right{but}, in {seconds:.1} s. Every result was held against an f64 \
         reference."
    ));
    say("Next: `lab list` says what there is, `lab run playg:softmax --shape R=4,C=1000` runs one, \
         `mdbook serve book/` tells the story."
        .into());
    Ok(())
}

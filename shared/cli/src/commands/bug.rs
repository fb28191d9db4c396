//! `lab bug [NAME]`: the museum of mistakes.

use clap::Args;
use lab_mutate::{Bug, Bugs, Catch, Edit, How, Judge, Sources, Verdict};
use serde_json::json;

use crate::Common;
use crate::commands::mutate::{head, judge, sources};
use crate::failure::Failure;
use crate::table::table;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The bug to run, broken and then fixed; without one: the list
    name: Option<String>,
    /// Bugs of one stage only
    #[arg(long)]
    stage: Option<String>,
    /// Seconds that the suite may take
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let stages = match &arguments.stage {
        Some(name) => vec![crate::stage(name)?],
        None => crate::STAGES.to_vec(),
    };
    let mut museum = Vec::new();
    for stage in stages {
        let sources = sources(stage)?;
        let bugs = Bugs::read(&sources)?;
        museum.extend(bugs.entries.into_iter().map(|(b, e)| (stage, sources.clone(), b, e)));
    }
    let Some(name) = &arguments.name else {
        list(common, museum.iter().map(|(stage, _, bug, _)| (stage.name, bug)));
        return Ok(());
    };
    let Some((stage, sources, bug, edit)) = museum.iter().find(|m| m.2.name == *name) else {
        let known: Vec<_> = museum.iter().map(|m| m.2.name.as_str()).collect();
        let message = format!("bug: expected one of {}, got '{name}'", known.join(", "));
        return Err(Failure::Usage(message));
    };
    let judge = judge(stage, arguments.timeout, false, 1)?;
    show(common, &judge, sources, bug, edit)
}

fn list<'a>(common: &Common, bugs: impl Iterator<Item = (&'a str, &'a Bug)>) {
    if common.json {
        let all = bugs.map(|(stage, b)| {
            json!({ "stage": stage, "name": b.name, "file": b.file, "symptom": b.symptom,
                    "check": b.check.name(), "chapter": b.chapter })
        });
        println!("{}", json!({ "bugs": all.collect::<Vec<_>>() }));
        return;
    }
    let mut rows = table(&["bug", "stage", "symptom", "caught by", "chapter"]);
    for (stage, b) in bugs {
        rows.add_row([&b.name, stage, &b.symptom, b.check.name(), &b.chapter]);
    }
    println!("{rows}\nlab bug NAME runs one, broken and then fixed");
}

fn show(
    common: &Common,
    judge: &Judge,
    sources: &Sources,
    bug: &Bug,
    edit: &Edit,
) -> Result<(), Failure> {
    let (line, _) = edit.place(sources.text(&edit.file).unwrap_or_default());
    if !common.json {
        println!("{}: {}\n\n{}:{line}", bug.name, bug.symptom, edit.file);
        edit.original.lines().for_each(|l| println!("  - {l}"));
        edit.replacement.lines().for_each(|l| println!("  + {l}"));
    }
    let broken = judge.judge(sources, edit, None)?;
    let fixed = judge.run(None)?;
    let caught = is_caught(bug.check, &broken);
    let clean = fixed == Verdict::Survived;
    if common.json {
        println!(
            "{}",
            json!({ "name": bug.name, "symptom": bug.symptom, "file": edit.file, "line": line,
                    "original": edit.original, "replacement": edit.replacement,
                    "check": bug.check.name(), "broken": said(&broken), "caught": caught,
                    "fixed": said(&fixed), "clean": clean })
        );
    } else {
        println!("\nBroken: {}", said(&broken));
        println!("\nFixed: {}", said(&fixed));
    }
    match (caught, clean) {
        (true, true) => Ok(()),
        (false, _) => Err(Failure::Wrong(format!(
            "{}: expected to be caught by the check '{}', got: {}",
            bug.name,
            bug.check.name(),
            said(&broken)
        ))),
        (true, false) => {
            Err(Failure::Wrong(format!("{}: the fixed one fails, too: {}", bug.name, said(&fixed))))
        }
    }
}

/// Whether the check that must notice did. `lab selftest` names the sanitizer's checks in its last
/// line.
fn is_caught(check: Catch, verdict: &Verdict) -> bool {
    match (check.sanitizer(), verdict) {
        (None, Verdict::Caught(how, _)) => *how == How::Result,
        (Some(name), Verdict::Caught(How::Sanitizer, said)) => {
            let by = said.lines().rev().find_map(|l| l.strip_prefix("found by: "));
            by.is_some_and(|by| by.split(", ").any(|b| b == name))
        }
        _ => false,
    }
}

fn said(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Rejected(said) => format!("does not compile: {}", head(said)),
        Verdict::Caught(how, said) => format!("caught by {}: {}", how.name(), head(said)),
        Verdict::Survived => "every test passes".into(),
    }
}

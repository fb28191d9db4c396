//! `lab bug [NAME]`: the museum of mistakes.

use std::collections::BTreeMap;

use clap::Args;
use lab_harness::Stage;
use lab_mutate::{Bug, Bugs, Catch, Edit, How, Judge, Sources, Verdict};
use rayon::prelude::*;
use serde_json::json;

use crate::Common;
use crate::commands::mutate::{Suite, head, jobs, pool};
use crate::failure::Failure;
use crate::part::Part;
use crate::table::table;
use crate::{own, words};
use lab_device::emulator::shown;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The bug to run, broken and then fixed; without one: the list
    name: Option<String>,
    /// Runs every bug of the list
    #[arg(long, conflicts_with = "name")]
    all: bool,
    /// A part of each stage's, such as 1/4: always the same ones, at least one of each stage
    #[arg(long, requires = "all")]
    part: Option<Part>,
    /// Not fixed as well: where the suites have just passed
    #[arg(long, requires = "all")]
    broken: bool,
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
        let sources = Suite::Stage(stage).sources()?;
        let bugs = Bugs::read(&sources)?;
        let entries = Part::filter(arguments.part, bugs.entries);
        let exhibit = |(bug, edit)| Exhibit { stage, sources: sources.clone(), bug, edit };
        museum.extend(entries.into_iter().map(exhibit));
    }
    if arguments.all {
        return all(common, &museum, arguments);
    }
    let Some(name) = &arguments.name else {
        list(common, &museum, arguments.stage.is_some());
        return Ok(());
    };
    let Some(exhibit) = museum.iter().find(|m| m.bug.name == *name) else {
        let known: Vec<_> = museum.iter().map(|m| m.bug.name.as_str()).collect();
        let expected = words::known_names(&known, name, "lab bug");
        let message = format!("bug: expected {expected}, got '{}'", shown(name, 60));
        return Err(Failure::Usage(message));
    };
    let judge = judge(exhibit.stage, arguments.timeout, 1)?;
    exhibit.introduce(common);
    let broken = exhibit.run_broken(&judge)?;
    let shown = exhibit.show(common, broken, true, || Ok(judge.run(None, &[])?))?;
    if common.json {
        say!("{}", shown.as_json());
    }
    shown.check_verdicts()
}

/// A bug, and the stage that it is planted in.
struct Exhibit {
    stage: &'static Stage,
    sources: Sources,
    bug: Bug,
    edit: Edit,
}

/// A bug, and what became of the stage with it and without it.
struct Shown<'a> {
    exhibit: &'a Exhibit,
    line: usize,
    broken: Verdict,
    fixed: Verdict,
}

/// With the symptoms, or a line each.
fn list(common: &Common, museum: &[Exhibit], symptoms: bool) {
    if common.json {
        let all = museum.iter().map(|Exhibit { stage, bug: b, .. }| {
            json!({ "stage": stage.name, "name": b.name, "file": b.file, "symptom": b.symptom,
                    "check": b.check.name(), "chapter": b.chapter })
        });
        say!("{}", json!({ "bugs": all.collect::<Vec<_>>() }));
        return;
    }
    let lab = own::shell();
    if symptoms {
        let mut rows = table(&["bug", "symptom", "caught by", "chapter"]);
        for Exhibit { bug: b, .. } in museum {
            rows.add_row([&b.name, &b.symptom, b.check.name(), &b.chapter]);
        }
        say!("{rows}");
    } else {
        let mut rows = table(&["bug", "stage", "caught by"]);
        for Exhibit { stage, bug: b, .. } in museum {
            rows.add_row([&b.name, stage.name, b.check.name()]);
        }
        say!("{rows}\n{lab} bug --stage playg tells what the bugs of a stage look like");
    }
    say!("{lab} bug NAME runs one, broken and then fixed; bug --all runs every one");
}

/// Of a bug it runs the versions that its file reaches.
fn judge(stage: &'static Stage, seconds: u64, workers: usize) -> Result<Judge, Failure> {
    let suite = Suite::Stage(stage);
    let limits = suite.trusted(stage.kernels.iter().map(|k| k.file), seconds);
    Ok(Judge { limits, ..suite.judge(seconds, false, workers)? })
}

/// Each bug broken. Fixed, all bugs of a stage are the same: the stage as it is, which runs once, before
/// them. As many at a time as there are cores, told in their order.
fn all<'a>(common: &Common, museum: &'a [Exhibit], arguments: &Arguments) -> Result<(), Failure> {
    let workers = jobs(None);
    let pool = pool(workers)?;
    let mut judges = Vec::new();
    let mut runs: Vec<(usize, Option<&'a Exhibit>)> = Vec::new();
    for of_stage in museum.chunk_by(|a, b| a.stage.name == b.stage.name) {
        let number = judges.len();
        judges.push(judge(of_stage[0].stage, arguments.timeout, workers)?);
        runs.extend(std::iter::once(None).chain(of_stage.iter().map(Some)).map(|e| (number, e)));
    }
    let run = |(number, exhibit): (usize, Option<&Exhibit>)| match exhibit {
        Some(exhibit) => exhibit.run_broken(&judges[number]),
        None if arguments.broken => Ok(Verdict::Survived),
        None => Ok(judges[number].run(None, &[])?),
    };
    let mut shown: Vec<Shown<'a>> = Vec::new();
    let mut as_it_is = Verdict::Survived;
    let tell_one = |(_, exhibit): (usize, Option<&'a Exhibit>), verdict: Verdict| {
        let Some(exhibit) = exhibit else {
            as_it_is = verdict;
            return Ok(());
        };
        if !common.json && !shown.is_empty() {
            say!("\n");
        }
        exhibit.introduce(common);
        let fixed = || Ok(as_it_is.clone());
        shown.push(exhibit.show(common, verdict, !arguments.broken, fixed)?);
        Ok(())
    };
    in_order(&pool, &runs, run, tell_one)?;
    if common.json {
        let all: Vec<_> = shown.iter().map(Shown::as_json).collect();
        say!("{}", json!({ "bugs": all }));
    } else {
        let held = shown.iter().filter(|s| s.check_verdicts().is_ok()).count();
        let fixed = if arguments.broken { "" } else { ", and clean when fixed" };
        say!("\n{held} of {} bugs caught by the check that must{fixed}", shown.len());
    }
    shown.iter().try_for_each(Shown::check_verdicts)
}

/// `work` of each item on the pool, and `then` of each and its result, in their order, on this thread: as
/// soon as all before it are done.
fn in_order<T: Copy + Sync + Send, R: Send>(
    pool: &rayon::ThreadPool,
    items: &[T],
    work: impl Fn(T) -> Result<R, Failure> + Sync + Send,
    mut then: impl FnMut(T, R) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (done, results) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // In turn, where halves of the whole would leave the first of the second half waiting.
            let each = items.iter().enumerate().par_bridge();
            let send = |(i, item): (usize, &T)| done.send((i, work(*item))).ok();
            pool.install(|| each.try_for_each(send));
        });
        let mut early = BTreeMap::new();
        for item in items.iter().enumerate() {
            let result = loop {
                if let Some(result) = early.remove(&item.0) {
                    break result;
                }
                let (i, result) = results.recv().expect("a result for each");
                early.insert(i, result);
            };
            then(*item.1, result?)?;
        }
        Ok(())
    })
}

/// Prints what is for people.
fn tell(common: &Common, what: String) {
    if !common.json {
        say!("{what}");
    }
}

impl Exhibit {
    /// Where it is planted, and what it changes.
    fn introduce(&self, common: &Common) {
        let Self { bug, edit, .. } = self;
        tell(
            common,
            format!(
                "{}: {}\n\n{}:{}, where + is the bug:",
                bug.name,
                bug.symptom,
                edit.file,
                self.line()
            ),
        );
        edit.original.lines().for_each(|l| tell(common, format!("  - {l}")));
        edit.replacement.lines().for_each(|l| tell(common, format!("  + {l}")));
    }

    fn line(&self) -> usize {
        self.edit.place(self.sources.text(&self.edit.file).unwrap_or_default()).0
    }

    fn run_broken(&self, judge: &Judge) -> Result<Verdict, Failure> {
        Ok(judge.judge(&self.sources, &self.edit, None)?)
    }

    /// Tells what became of it broken, runs it fixed, and tells that.
    fn show(
        &self,
        common: &Common,
        broken: Verdict,
        tells_fixed: bool,
        fixed: impl FnOnce() -> Result<Verdict, Failure>,
    ) -> Result<Shown<'_>, Failure> {
        tell(common, format!("\nBroken: {}", verdict_in_words(&broken)));
        let fixed = fixed()?;
        if tells_fixed {
            tell(common, format!("\nFixed: {}", verdict_in_words(&fixed)));
        }
        Ok(Shown { exhibit: self, line: self.line(), broken, fixed })
    }
}

impl Shown<'_> {
    fn caught(&self) -> bool {
        is_caught(self.exhibit.bug.check, &self.broken)
    }

    fn clean(&self) -> bool {
        self.fixed == Verdict::Survived
    }

    fn as_json(&self) -> serde_json::Value {
        let Exhibit { bug, edit, .. } = &self.exhibit;
        json!({ "name": bug.name, "symptom": bug.symptom, "file": edit.file, "line": self.line,
                "original": edit.original, "replacement": edit.replacement,
                "check": bug.check.name(), "broken": verdict_in_words(&self.broken), "caught": self.caught(),
                "fixed": verdict_in_words(&self.fixed), "clean": self.clean() })
    }

    /// Whether the broken one was caught as it must be, and the fixed one is clean.
    fn check_verdicts(&self) -> Result<(), Failure> {
        let bug = &self.exhibit.bug;
        match (self.caught(), self.clean()) {
            (true, true) => Ok(()),
            (false, _) => Err(Failure::Wrong(format!(
                "{}: expected to be caught by the check '{}', got: {}",
                bug.name,
                bug.check.name(),
                verdict_in_words(&self.broken)
            ))),
            (true, false) => Err(Failure::Wrong(format!(
                "{}: the fixed one fails, too: {}",
                bug.name,
                verdict_in_words(&self.fixed)
            ))),
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

fn verdict_in_words(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Rejected(said) => format!("does not compile: {}", head(said)),
        Verdict::Caught(how, said) => format!("caught by {}: {}", how.name(), head(said)),
        Verdict::Survived => "every test passes".into(),
        Verdict::SameCode => "no change of its code".into(),
    }
}

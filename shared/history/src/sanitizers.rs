//! The corpus under compute-sanitizer, beside the emulator.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lab_corpus::Kind;
use lab_corpus::records::{Nearness, Plain, Said, Sanitized, Sanitizers, TOOLS};

const BLIND: &str = "\
What the tools do not claim to see: racecheck looks at shared memory only, initcheck at global
memory only, and none of them models fences between blocks.\n";

const FILES: &str = "\
The same by file; *alone* is the GPU without a tool, on which a bug may end as if nothing was wrong, be
reported by the driver, or hang.\n";

const HOST: &str = "\
initcheck also complains where the host copies what nobody has written. Such an error names no
kernel: it is counted here, and accuses none.\n";

const LEGEND: &str = "\
*line*: a report, error or warning, names a planted line. *elsewhere*: it names the kernel or
another line of the file. *error*: an error is counted, and no kernel named. *hung*: the kernel did
not end, and was killed. —: not a word.\n";

pub(crate) fn page(record: &Sanitizers) -> String {
    let (bugs, right): (Vec<_>, Vec<_>) = record.cases.iter().partition(|c| c.bug.is_some());
    let mut text = format!(
        "{}. {} bugs, {} right kernels.{}\n\n",
        record.origin(),
        bugs.len(),
        right.len(),
        added(record)
    );
    text += &summary(&bugs);
    writeln!(text, "\n{FILES}").expect("writing to a string");
    text += &by_file(&bugs, &right);
    writeln!(text, "\n{BLIND}").expect("writing to a string");
    text += &alarms(record, &right);
    writeln!(text, "\n{HOST}\nEach bug:\n").expect("writing to a string");
    text += &table(&bugs);
    writeln!(text, "\n{LEGEND}").expect("writing to a string");
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// What later runs, by the same versions of everything, have added.
fn added(record: &Sanitizers) -> String {
    let mut by_commit: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for case in &record.cases {
        if let Some(commit) = &case.commit {
            by_commit.entry(commit).or_default().push(&case.name);
        }
    }
    let mut text = String::new();
    for (commit, names) in by_commit {
        let short = commit.get(..12).unwrap_or(commit);
        let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        write!(text, " Added at commit `{short}`: {names}.").expect("writing to a string");
    }
    text
}

fn summary(bugs: &[&Sanitized]) -> String {
    let mut text = String::from(
        "| kind | bugs | emulator: a planted line | compute-sanitizer, its four tools together: a planted line | \
         elsewhere, or an error that names no kernel | nothing | of these, hung |\n\
         |---|--:|--:|--:|--:|--:|--:|\n",
    );
    let mut row = |name: &str, kind: Option<Kind>| {
        let own = || bugs.iter().filter(|b| kind.is_none() || b.bug == kind);
        let near = |which: &[Nearness]| own().filter(|b| which.contains(&nearest(b))).count();
        let hung = own().filter(|b| nearest(b) == Nearness::Nothing && hung(b)).count();
        let emulator = own().filter(|b| b.emulator_named_the_line()).count();
        writeln!(
            text,
            "| {name} | {} | {emulator} | {} | {} | {} | {hung} |",
            own().count(),
            near(&[Nearness::Line]),
            near(&[Nearness::Elsewhere, Nearness::Error]),
            near(&[Nearness::Nothing]),
        )
        .expect("writing to a string");
    };
    for kind in [Kind::Memory, Kind::Init, Kind::Race, Kind::Sync] {
        row(name(kind), Some(kind));
    }
    row("**in all**", None);
    text
}

fn by_file(bugs: &[&Sanitized], right: &[&Sanitized]) -> String {
    let mut text = String::from(
        "| file | bugs | emulator: a planted line | compute-sanitizer: a planted line | nothing | \
         alone: ends | fails | hangs | right kernels |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let mut files: Vec<&str> = Vec::new();
    for case in bugs {
        if !files.contains(&case.file.as_str()) {
            files.push(&case.file);
        }
    }
    for file in files {
        let own = || bugs.iter().filter(|b| b.file == file);
        let alone = |how| own().filter(|b| b.plain == Some(how)).count();
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            file.rsplit('/').next().unwrap_or_default(),
            own().count(),
            own().filter(|b| b.emulator_named_the_line()).count(),
            own().filter(|b| nearest(b) == Nearness::Line).count(),
            own().filter(|b| nearest(b) == Nearness::Nothing).count(),
            alone(Plain::Ends),
            alone(Plain::Fails),
            alone(Plain::Hangs),
            right.iter().filter(|c| c.file == file).count(),
        )
        .expect("writing to a string");
    }
    text
}

/// How near the nearest of the tools came.
fn nearest(bug: &Sanitized) -> Nearness {
    what_tools_said(bug).map(|s| s.said).min().unwrap_or(Nearness::Nothing)
}

/// Whether the kernel ended under none of the tools.
fn hung(bug: &Sanitized) -> bool {
    what_tools_said(bug).all(|s| !s.ended)
}

fn what_tools_said(bug: &Sanitized) -> impl Iterator<Item = &Said> {
    bug.tools.iter().flat_map(|t| t.all())
}

fn alarms(record: &Sanitizers, right: &[&Sanitized]) -> String {
    let mut text = format!(
        "False alarms on the {} right kernels:\n\n\
         | | kernels accused | which | errors counted |\n|---|--:|---|--:|\n",
        right.len()
    );
    let accused: Vec<&str> = right.iter().filter(|c| !c.right).map(|c| c.name.as_str()).collect();
    writeln!(text, "| emulator | {} | {} | – |", accused.len(), codes(&accused))
        .expect("writing to a string");
    for (tool, alarms) in TOOLS.iter().zip(record.alarms.all()) {
        let names: Vec<&str> = alarms.kernels.iter().map(String::as_str).collect();
        let errors = match (alarms.errors, alarms.ended) {
            (Some(n), true) => n.to_string(),
            (Some(n), false) => format!("{n}, then it ended early"),
            (None, _) => "it ended early".into(),
        };
        writeln!(text, "| {tool} | {} | {} | {errors} |", names.len(), codes(&names))
            .expect("writing to a string");
    }
    text
}

fn codes(names: &[&str]) -> String {
    if names.is_empty() {
        return "–".into();
    }
    names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
}

fn table(bugs: &[&Sanitized]) -> String {
    let mut text = format!("| case | kind | lines | emulator | {} |\n", TOOLS.join(" | "));
    text += "|---|---|---|---|---|---|---|---|\n";
    for bug in bugs {
        let file = bug.file.rsplit('/').next().unwrap_or_default();
        let lines: Vec<String> = bug.lines.iter().map(usize::to_string).collect();
        let tools: Vec<&str> = what_tools_said(bug).map(word).collect();
        writeln!(
            text,
            "| `{}` | {} | {file}:{} | {} | {} |",
            bug.name,
            bug.bug.map_or("", name),
            lines.join(", "),
            emulator(bug),
            tools.join(" | ")
        )
        .expect("writing to a string");
    }
    text
}

fn emulator(bug: &Sanitized) -> &'static str {
    match bug.judgement.as_str() {
        _ if bug.right => "line",
        other if other.starts_with("Found") => "line, by another check",
        "Missed" => "—",
        _ => "elsewhere",
    }
}

fn word(said: &Said) -> &'static str {
    match said.said {
        Nearness::Line => "line",
        Nearness::Elsewhere => "elsewhere",
        Nearness::Error => "error",
        Nearness::Nothing if !said.ended => "hung",
        Nearness::Nothing => "—",
    }
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Memory => "memory",
        Kind::Init => "init",
        Kind::Race => "race",
        Kind::Sync => "sync",
    }
}

//! What a reader can run: the bugs of all stages, and the exercises.

use std::fmt::Write as _;

use lab_mutate::{Bug, Bugs, Catch, Exercise, Sources, Workspace};
use lab_registry::STAGES;

use crate::Error;

/// The bugs that the museum's page shows; `lab bug` lists all.
const SHOWN: [&str; 12] = [
    "partials-overwritten",
    "vanished-nan",
    "row-runs-on",
    "one-group-late",
    "a-sum-where-f16-holds-a-mean",
    "sigmoid-underflows",
    "flag-before-sum",
    "tile-by-index",
    "units-that-are-not-there",
    "a-block-that-has-not-begun",
    "half-a-warp-of-rows",
    "an-order-left-to-chance",
];

/// `bugs.md`, a piece for each that is shown, and `exercises.md`.
///
/// # Errors
/// The sources are not those that this binary was built from, or not here.
pub(crate) fn pages(workspace: &Workspace) -> Result<[(String, String); 2], Error> {
    let (mut bugs, mut exercises) = (String::new(), String::new());
    let (mut count, mut by_result) = (0, 0);
    for stage in STAGES {
        let name = stage.name;
        let sources = Sources::read(workspace, &format!("stages/{name}"), stage.kernels)?;
        for (bug, edit) in Bugs::read(&sources)?.entries {
            count += 1;
            by_result += usize::from(bug.check == Catch::Result);
            if SHOWN.contains(&bug.name.as_str()) {
                bugs += &shown(&bug, &edit.file);
            }
        }
        let own = Exercise::read(&sources)?;
        if !own.is_empty() {
            write!(exercises, "\n## {name}\n\nTo [its chapter]({name}.md).\n\n")
                .expect("writing to a string");
        }
        for exercise in own {
            let (name, task) = (exercise.name, exercise.task);
            writeln!(exercises, "- `{name}`. {task}").expect("writing to a string");
        }
    }
    let head = format!(
        "<!-- ANCHOR: count -->\n{count} bugs: {by_result} show in a result, {} would now and then, and a check finds \
         them at every run.\n<!-- ANCHOR_END: count -->\n",
        count - by_result
    );
    Ok([("bugs.md".into(), head + &bugs), ("exercises.md".into(), exercises)])
}

/// A piece of a page: what is seen, the edit, what catches it, and where the whole story is.
fn shown(bug: &Bug, file: &str) -> String {
    let Bug { name, symptom, chapter, .. } = bug;
    let caught_by = bug.check.sanitizer().unwrap_or("a wrong result");
    let edit = difference(&bug.find, &bug.replace);
    format!(
        "\n<!-- ANCHOR: {name} -->\n**Symptom** {symptom} · **Caught by** {caught_by} · **Chapter** \
         [{chapter}]({chapter}.md)\n\nIn `{file}`:\n\n```diff\n{edit}```\n<!-- ANCHOR_END: {name} -->\n"
    )
}

/// Lines that go and lines that come, between those that both texts begin and end with.
fn difference(before: &str, after: &str) -> String {
    let lines = |text: &'_ str| -> Vec<String> {
        text.trim_matches('\n').lines().map(str::to_owned).collect()
    };
    let (before, after) = (lines(before), lines(after));
    let same = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
    let rest = (&before[same..], &after[same..]);
    let last = rest.0.iter().rev().zip(rest.1.iter().rev()).take_while(|(a, b)| a == b).count();
    let margin = before.iter().chain(&after).filter(|l| !l.trim().is_empty());
    let margin = margin.map(|l| l.len() - l.trim_start().len()).min().unwrap_or(0);
    let mut text = String::new();
    let mut add = |mark: &str, lines: &[String]| {
        for line in lines {
            let line = format!("{mark} {}", line.get(margin..).unwrap_or_default());
            text += line.trim_end();
            text.push('\n');
        }
    };
    add(" ", &before[..same]);
    add("-", &rest.0[..rest.0.len() - last]);
    add("+", &rest.1[..rest.1.len() - last]);
    add(" ", &before[before.len() - last..]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_shows_what_goes_and_what_comes() {
        let shown = difference("\n    a;\n    b;\n    c;\n", "\n    a;\n      d;\n    c;\n");
        assert_eq!(shown, "  a;\n- b;\n+   d;\n  c;\n");
        assert_eq!(difference("\n  a;\n", ""), "- a;\n");
    }

    #[test]
    fn every_bug_that_the_museum_shows_is_there() {
        let here = std::env::current_dir().unwrap();
        let pages = pages(&Workspace::find(&here).unwrap()).unwrap();
        for name in SHOWN {
            assert_eq!(
                pages[0].1.matches(&format!("<!-- ANCHOR: {name} -->")).count(),
                1,
                "{name}"
            );
        }
    }
}

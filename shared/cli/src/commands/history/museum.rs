//! What a reader can run: the bugs of all stages, and the exercises.

use std::fmt::Write as _;

use lab_mutate::{Bugs, Catch, Exercise};

use crate::STAGES;
use crate::commands::mutate::Suite;
use crate::failure::Failure;

/// `bugs.md` and `exercises.md`.
///
/// # Errors
/// The sources are not those that this binary was built from, or not here.
pub(crate) fn pages() -> Result<[(String, String); 2], Failure> {
    let (mut bugs, mut exercises) = (String::new(), String::new());
    let (mut count, mut by_result) = (0, 0);
    for &stage in STAGES {
        let (name, sources) = (stage.name, Suite::Stage(stage).sources()?);
        let own = Bugs::read(&sources)?.entries;
        if !own.is_empty() {
            write!(
                bugs,
                "\n## [{name}]({name}.md)\n\n| bug | symptom | caught by |\n|---|---|---|\n"
            )
            .expect("writing to a string");
        }
        for (bug, _) in own {
            count += 1;
            by_result += usize::from(bug.check == Catch::Result);
            let (bug, check, symptom) = (bug.name, bug.check, cell(&bug.symptom));
            let check = check.sanitizer().unwrap_or("a result");
            writeln!(bugs, "| `{bug}` | {symptom} | {check} |").expect("writing to a string");
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
        "{count} bugs: {by_result} show in a result, {} would now and then, and a check finds them \
         at every run.\n",
        count - by_result
    );
    Ok([("bugs.md".into(), head + &bugs), ("exercises.md".into(), exercises)])
}

/// A line of text as a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

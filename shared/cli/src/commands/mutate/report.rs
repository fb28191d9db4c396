//! What became of the mutants, as a table and as JSON.

use std::time::Duration;

use lab_mutate::{Mutant, Operator, Sources, Verdict};
use serde_json::json;

use crate::Common;
use crate::table::table;

/// A mutant, why it is equivalent if that is known, and what became of it.
pub(crate) struct Outcome {
    pub(crate) mutant: Mutant,
    pub(crate) reason: Option<String>,
    pub(crate) verdict: Verdict,
}

/// How many mutants came to which end.
#[derive(Default)]
struct Count {
    mutants: usize,
    rejected: usize,
    /// In the order of [`lab_mutate::How`].
    caught: [usize; 4],
    equivalent: usize,
    survived: usize,
}

impl Count {
    fn of<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Self {
        let mut count = Self::default();
        for outcome in outcomes {
            count.mutants += 1;
            match (&outcome.verdict, &outcome.reason) {
                (Verdict::Rejected(_), _) => count.rejected += 1,
                (Verdict::Caught(how, _), _) => count.caught[*how as usize] += 1,
                (Verdict::SameCode, _) | (Verdict::Survived, Some(_)) => count.equivalent += 1,
                (Verdict::Survived, None) => count.survived += 1,
            }
        }
        count
    }

    /// The share of those that count that was caught.
    fn score(&self) -> Option<f64> {
        let caught: usize = self.caught.iter().sum();
        let all = caught + self.survived;
        (all > 0).then(|| caught as f64 / all as f64)
    }

    fn row(&self, name: String) -> Vec<String> {
        let mut row = vec![name, self.mutants.to_string(), self.rejected.to_string()];
        row.extend(self.caught.iter().map(usize::to_string));
        row.extend([self.equivalent.to_string(), self.survived.to_string()]);
        row.push(self.score().map_or("–".into(), |s| format!("{:.1} %", 100.0 * s)));
        row
    }
}

pub(crate) fn report(common: &Common, sources: &Sources, outcomes: &[Outcome], took: Duration) {
    let total = Count::of(outcomes.iter());
    if common.json {
        let all = outcomes.iter().map(|o| {
            let (verdict, said) = match &o.verdict {
                Verdict::Rejected(said) => ("rejected", said.as_str()),
                Verdict::Caught(how, said) => (how.name(), said.as_str()),
                Verdict::Survived => ("survived", ""),
                Verdict::SameCode => ("same-code", ""),
            };
            let mut entry = entry(&o.mutant);
            entry["verdict"] = json!(verdict);
            entry["said"] = json!(said);
            entry["equivalent"] = json!(o.reason);
            entry
        });
        let object = json!({
            "stage": sources.stage, "seconds": took.as_secs_f64(), "score": total.score(),
            "files": by_file(outcomes).iter().map(|(file, count)| {
                json!({ "file": file, "mutants": count.mutants, "score": count.score() })
            }).collect::<Vec<_>>(),
            "mutants": all.collect::<Vec<_>>(),
        });
        say!("{object}");
        return;
    }
    let mut rows = table(&[
        "operator, file",
        ">mutants",
        ">rejected",
        ">result",
        ">sanitizer",
        ">timeout",
        ">crash",
        ">equivalent",
        ">survived",
        ">score",
    ]);
    for operator in Operator::ALL {
        let count = Count::of(outcomes.iter().filter(|o| o.mutant.operator == operator));
        if count.mutants > 0 {
            rows.add_row(count.row(operator.to_string()));
        }
    }
    for (file, count) in by_file(outcomes) {
        rows.add_row(count.row(file.rsplit('/').next().unwrap_or(file).to_owned()));
    }
    rows.add_row(total.row("in all".into()));
    say!("{rows}");
    say!(
        "rejected: by the compiler; equivalent: the emulator's compiler makes the same code of it, \
         or explained in equivalent.toml; neither counts"
    );
    let survived =
        outcomes.iter().filter(|o| matches!(o.verdict, Verdict::Survived | Verdict::SameCode));
    let (explained, open): (Vec<_>, Vec<_>) = survived.partition(|o| o.reason.is_some());
    for (heading, list) in [("Survived:", open), ("Equivalent:", explained)] {
        if !list.is_empty() {
            say!("\n{heading}");
        }
        for Outcome { mutant, reason, .. } in list {
            say!("  {} ({}, {})", mutant.place(), mutant.operator, mutant.function);
            say!("      {}", mutant.change());
            if let Some(reason) = reason {
                say!("      {reason}");
            }
        }
    }
    let wrong =
        outcomes.iter().filter(|o| o.reason.is_some() && matches!(o.verdict, Verdict::Caught(..)));
    for outcome in wrong {
        say!("  {} is called equivalent, and was caught", outcome.mutant.place());
    }
    say!("\n{} mutants in {:.0} s", total.mutants, took.as_secs_f64());
}

/// The mutants of each file.
fn by_file(outcomes: &[Outcome]) -> Vec<(&str, Count)> {
    let mut files: Vec<&str> = outcomes.iter().map(|o| o.mutant.edit.file.as_str()).collect();
    files.sort_unstable();
    files.dedup();
    let of = |file| Count::of(outcomes.iter().filter(|o| o.mutant.edit.file == file));
    files.into_iter().map(|file| (file, of(file))).collect()
}

fn entry(mutant: &Mutant) -> serde_json::Value {
    json!({
        "operator": mutant.operator.name(), "file": mutant.edit.file, "line": mutant.line,
        "column": mutant.column, "function": mutant.function,
        "original": mutant.edit.original, "replacement": mutant.edit.replacement,
    })
}

pub(crate) fn print_list(common: &Common, all: &[Mutant]) {
    if common.json {
        say!("{}", json!({ "mutants": all.iter().map(entry).collect::<Vec<_>>() }));
        return;
    }
    let mut rows = table(&["operator", "place", "change"]);
    for mutant in all {
        rows.add_row([mutant.operator.to_string(), mutant.place(), mutant.change()]);
    }
    say!("{rows}\n{} mutants", all.len());
    for operator in Operator::ALL {
        say!("  {operator:<15} {}", operator.describe());
    }
}

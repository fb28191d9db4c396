//! Lists of the history's page: a family's records, and many families in one table.

use std::fmt::Write as _;

use lab_records::record::{Measurement, Of, Run};
use lab_registry::STAGES;

/// The families of a stage, each once.
pub(crate) fn families(stage: &str) -> Vec<&'static str> {
    let versions = STAGES.iter().filter(|s| s.name == stage).flat_map(|s| s.versions);
    let mut all = Vec::new();
    for name in versions.map(|v| v.info().family.name()) {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

pub(crate) fn own<'r>(run: &'r Run, family: &str) -> impl Iterator<Item = &'r Measurement> {
    run.results.iter().filter(move |m| m.family == family && m.of == Of::Version)
}

/// A version without its stage.
pub(crate) fn short(version: &str) -> &str {
    version.split(':').next_back().unwrap_or(version)
}

pub(crate) fn fastest<'r>(all: impl Iterator<Item = &'r Measurement>) -> Option<&'r Measurement> {
    all.min_by(|a, b| a.median_us.total_cmp(&b.median_us))
}

/// Of versions on one problem those that do not round more than others.
fn without_rougher<'r>(
    all: impl Iterator<Item = &'r Measurement>,
) -> impl Iterator<Item = &'r Measurement> {
    let all: Vec<&Measurement> = all.collect();
    let digits = |m: &&Measurement| (m.products, m.relative_error.unwrap_or(f64::INFINITY));
    let best = all.iter().copied().min_by(|a, b| {
        digits(a).partial_cmp(&digits(b)).expect("an error of a record is a number")
    });
    all.into_iter().filter(move |m| best.is_some_and(|best| m.is_beside(best)))
}

/// Many families without a peer but the plain copy: a row each.
pub(crate) fn playground(runs: &[Run], stage: &str, families: &[&str], first: &str) -> String {
    let records: Vec<&Run> = runs.iter().filter(|r| measures(r, first)).collect();
    let Some(run) = records.last() else { return String::new() };
    let mut dtypes: Vec<&str> = Vec::new();
    for m in families.iter().flat_map(|f| own(run, f)) {
        if !dtypes.contains(&&*m.dtype) {
            dtypes.push(&m.dtype);
        }
    }
    let mut text = format!(
        "## {stage}\n\nThe fastest version of each family, in % of what a plain copy allows in the same run. \
         All versions, with plots: [its chapter]({stage}.md#numbers).\n\n| family | {} |\n|---|{}\n",
        dtypes.join(" | "),
        "--:|".repeat(dtypes.len()),
    );
    for family in families {
        let cells = dtypes.iter().map(|dtype| {
            let best = fastest(own(run, family).filter(|m| m.dtype == *dtype));
            best.map_or(String::new(), |m| {
                let percent = m.roofline_percent.map_or(String::new(), |p| format!("{p:.0}"));
                format!("{percent} `{}`", short(&m.version))
            })
        });
        let cells: Vec<String> = cells.collect();
        writeln!(text, "| {family} | {} |", cells.join(" | ")).expect("writing to a string");
    }
    text + "\n" + &list(&records, first)
}

/// f32 first; otherwise as they come.
pub(crate) fn cases_order(dtype: &str) -> usize {
    usize::from(dtype != "f32")
}

/// Every record of a family, newest first, with the fastest time at one problem, of versions that are as exact as any: at
/// the last of the problems that most records have.
pub(crate) fn list(records: &[&Run], family: &str) -> String {
    let having = |m: &Measurement| {
        let same = |o: &Measurement| (&o.shape, &o.dtype) == (&m.shape, &m.dtype);
        records.iter().filter(|r| own(r, family).any(same)).count()
    };
    let most = records.iter().flat_map(|r| own(r, family)).map(having).max().unwrap_or(0);
    let is_common = |m: &&Measurement| having(m) == most && most.min(2) == records.len().min(2);
    let newest = records.iter().rev().find(|r| own(r, family).any(|m| is_common(&m)));
    let mut common: Vec<_> =
        newest.map_or(Vec::new(), |r| own(r, family).filter(is_common).collect());
    common.sort_by_key(|m| std::cmp::Reverse(cases_order(&m.dtype)));
    let case = common.last().map(|m| (m.shape.clone(), m.dtype.clone()));
    let head = case.as_ref().map_or(String::new(), |(shape, dtype)| {
        format!(", with the fastest time of `{family}` at {shape} in {dtype}")
    });
    let (column, line) = if case.is_some() { (" µs |", "--:|") } else { ("", "") };
    let mut text = format!(
        "All records{head}:\n\n| date | commit | GPU | driver |{column}\n|---|---|---|---|{line}\n"
    );
    for run in records.iter().rev() {
        let at =
            |m: &&Measurement| case.as_ref().is_some_and(|c| (&m.shape, &m.dtype) == (&c.0, &c.1));
        let cell = match fastest(without_rougher(own(run, family).filter(at))) {
            Some(m) => {
                format!(" `{}` {} |", short(&m.version), lab_plots::three_digits(m.median_us))
            }
            None if case.is_some() => " |".into(),
            None => String::new(),
        };
        let date = run.date.get(..16).unwrap_or(&run.date).replace('T', " ");
        let d = &run.device;
        writeln!(text, "| {} | `{}` | {} | {} |{cell}", date, &run.commit[..12], d.gpu, d.driver)
            .expect("writing to a string");
    }
    text + "\n"
}

/// Whether a record has times of a family.
pub(crate) fn measures(run: &Run, family: &str) -> bool {
    run.results.iter().any(|m| m.family == family)
}

#[cfg(test)]
mod tests {
    use super::super::families::tests::{line, run};
    use super::*;

    #[test]
    fn the_list_has_all_records_and_the_largest_common_problem() {
        let old = run("2026-01-30T12:00:00Z", vec![line("matmul:v0", "version", "K=8", 40.0, 0.0)]);
        let new = run(
            "2026-01-31T12:00:00Z",
            vec![
                line("matmul:v6", "version", "K=8", 20.0, 0.0),
                line("matmul:v6", "version", "K=16", 90.0, 0.0),
            ],
        );
        let text = list(&[&old, &new], "matmul");
        assert!(text.contains("fastest time of `matmul` at K=8 in f32"), "{text}");
        let rows: Vec<&str> = text.lines().filter(|l| l.starts_with("| 2026")).collect();
        assert!(rows[0].starts_with("| 2026-01-31 12:00 |") && rows[0].ends_with("`v6` 20.0 |"));
        assert!(rows[1].starts_with("| 2026-01-30 12:00 |") && rows[1].ends_with("`v0` 40.0 |"));
    }

    #[test]
    fn a_record_of_another_problem_leaves_its_cell_empty() {
        let at = |date, shape| run(date, vec![line("matmul:v0", "version", shape, 40.0, 0.0)]);
        let (old, new) = (at("2026-01-29T12:00:00Z", "K=8"), at("2026-01-30T12:00:00Z", "K=8"));
        let other = at("2026-01-31T12:00:00Z", "K=9");
        let text = list(&[&old, &new, &other], "matmul");
        let rows: Vec<&str> = text.lines().filter(|l| l.starts_with("| 2026")).collect();
        assert!(rows[0].starts_with("| 2026-01-31") && rows[0].ends_with("| |"), "{text}");
        assert!(rows[1].ends_with("`v0` 40.0 |") && rows[2].ends_with("`v0` 40.0 |"), "{text}");
        assert!(!list(&[&old, &other], "matmul").contains("at K="), "none is common");
    }

    #[test]
    fn what_gives_up_digits_is_not_the_fastest_of_a_list() {
        let mut rounds = line("matmul:v7", "version", "K=8", 5.0, 1e-3);
        let exact = line("matmul:v6", "version", "K=8", 20.0, 1e-6);
        let text = |all| list(&[&run("2026-01-31T12:00:00Z", all)], "matmul");
        // By its error, in records that do not tell what it rounds to; else by that.
        assert!(text(vec![exact.clone(), rounds.clone()]).contains("`v6` 20.0 |"));
        rounds["relative_error"] = 1e-6.into();
        assert!(text(vec![exact.clone(), rounds.clone()]).contains("`v7` 5.00 |"));
        rounds["products"] = "tf32".into();
        assert!(text(vec![exact, rounds]).contains("`v6` 20.0 |"));
    }
}

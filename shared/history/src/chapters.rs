//! The pages that chapters include: the numbers of their stage.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use lab_harness::Options;
use lab_plots::Bar;
use lab_records::record::{Measurement, Of, Run};
use lab_registry::STAGES;

use crate::Error;
use crate::counted::computes_what_is_counted;
use crate::ladder::Ladder;
use crate::lists::families;

/// The pages that the book includes, each from the record of its stage's first family: tables, and a plot a
/// type. A family of the stage that this record lacks has a page of its own, STAGE-FAMILY, from the record
/// of that family. A stage that no record knows says so.
pub(crate) fn pages(runs: &[Run]) -> Result<Vec<(String, String)>, Error> {
    let mut all = Vec::new();
    for name in STAGES.iter().map(|s| s.name).chain(["launch"]) {
        let first = families(name).first().copied().unwrap_or(name);
        let with_own = |run| {
            // Of a stage that is named after a family the others have pages of their own.
            let own = |m: &&Measurement| {
                stage(m, run) == Some(name) && (name != first || m.family == first)
            };
            let own: Vec<&Measurement> = run.results.iter().filter(own).collect();
            own.iter().any(|m| m.family == first).then_some((run, own))
        };
        // The fullest record of the family, or of those that have the stage.
        let newest = fullest(runs, first).and_then(with_own).or_else(|| {
            let having = runs.iter().filter(|run| with_own(run).is_some());
            fullest(having, first).and_then(with_own)
        });
        match newest {
            Some((run, own)) => {
                all.extend(pages_of(run, name, &own)?);
                for family in families(name) {
                    let of_family = |m: &&Measurement| m.family == family;
                    if own.iter().any(of_family) {
                        continue;
                    }
                    let Some(run) = fullest(runs, family) else { continue };
                    let own: Vec<&Measurement> = run.results.iter().filter(of_family).collect();
                    all.extend(pages_of(run, &format!("{name}-{family}"), &own)?);
                }
            }
            None if runs.is_empty() => {}
            None => all.push((format!("{name}.md"), not_measured(name))),
        }
    }
    Ok(all)
}

/// The newest of the records that have the most problems of a family: what was narrowed to a few tells less.
fn fullest<'r>(runs: impl IntoIterator<Item = &'r Run>, family: &str) -> Option<&'r Run> {
    let problems = |run: &Run| {
        let own = run.results.iter().filter(|m| m.family == family && m.of == Of::Version);
        own.map(|m| (&m.shape, &m.dtype)).collect::<BTreeSet<_>>().len()
    };
    // Of equals the last one is taken.
    runs.into_iter().max_by_key(|run| problems(run)).filter(|run| problems(run) > 0)
}

fn not_measured(stage: &str) -> String {
    let mut versions = STAGES.iter().filter(|s| s.name == stage).flat_map(|s| s.versions);
    if versions.any(|v| v.expected(&Options::default()).mistake().is_some()) {
        return "It is wrong on purpose, and not timed.\n".into();
    }
    format!("Not measured yet: `lab bench {stage} --record` on a GPU writes the record.\n")
}

fn pages_of(run: &Run, name: &str, own: &[&Measurement]) -> Result<Vec<(String, String)>, Error> {
    let mut dtypes: Vec<&str> = Vec::new();
    for m in own {
        if !dtypes.contains(&m.dtype.as_str()) {
            dtypes.push(&m.dtype);
        }
    }
    let ladders: Vec<Ladder<'_>> = dtypes.iter().map(|d| Ladder::new(run, d, own)).collect();
    let one_family = own.iter().all(|m| m.family == own[0].family);
    if one_family && ladders.iter().any(Ladder::has_several_sizes) {
        let mut all = Vec::new();
        let mut text = heading(run, own);
        for (ladder, dtype) in ladders.iter().zip(&dtypes) {
            if ladder.has_an_axis() {
                let file = format!("{name}-{dtype}.svg");
                writeln!(text, "![{name} in {dtype}: TFLOP/s over the size](generated/{file})\n")
                    .expect("writing to a string");
                all.push((file, ladder.plot(name)?));
            }
            text += &ladder.tables();
        }
        all.push((format!("{name}.md"), text));
        return Ok(all);
    }
    let mut all = vec![(format!("{name}.md"), markdown(run, own))];
    if name == "launch" {
        return Ok(all);
    }
    for dtype in ["f32", "f16"] {
        let of_type: Vec<&Measurement> =
            own.iter().copied().filter(|m| m.dtype == dtype && m.of != Of::Host).collect();
        if !of_type.is_empty() {
            all.push((format!("{name}-{dtype}.svg"), chart(run, name, dtype, &of_type)?));
        }
    }
    Ok(all)
}

/// The stage of a result; what has no stage of its own belongs to the one whose family it is shown
/// with.
fn stage<'a>(m: &'a Measurement, run: &'a Run) -> Option<&'a str> {
    let own = |m: &'a Measurement| m.version.split_once(':').map(|(stage, _)| stage);
    match m.family.as_str() {
        "launch" => Some("launch"),
        family => {
            own(m).or_else(|| run.results.iter().filter(|r| r.family == family).find_map(own))
        }
    }
}

/// What was measured, where.
fn heading(run: &Run, results: &[&Measurement]) -> String {
    let d = &run.device;
    let mut text = format!(
        "{}, driver {}, NVRTC {}, {}, commit `{}`. A plain copy moved {:.0} GB/s in the same run.",
        d.gpu,
        d.driver,
        d.nvrtc,
        run.date,
        &run.commit[..12],
        d.copy_gbps
    );
    text += match (run.in_turns, run.peers_in_turns) {
        (false, _) => "",
        (true, false) => {
            " Versions and libraries ran in turns, a run of each; host code and scripts did not."
        }
        (true, true) => {
            " Versions and libraries ran in turns, a run of each, those from Python too; host code did not."
        }
    };
    let peaks: Vec<_> =
        d.peak_tflops.iter().map(|(dtype, peak)| format!("{dtype} {peak:.1}")).collect();
    if !peaks.is_empty() {
        write!(
            text,
            " At {} MHz its units do at most, in TFLOP/s: {} (halves on the tensor cores).",
            d.clock_mhz,
            peaks.join(", ")
        )
        .expect("writing to a string");
    }
    if !d.libraries.is_empty() {
        write!(text, " {}.", d.libraries.join(", ")).expect("writing to a string");
    }
    if results.iter().any(|m| m.of == Of::Host) {
        write!(text, " Host times: {} threads of an {}.", d.cpu_threads, d.cpu)
            .expect("writing to a string");
    }
    if !results.iter().all(|m| computes_what_is_counted(m)) {
        text += FEWER;
    }
    text + "\n\n"
}

const FEWER: &str = " What works in chunks computes fewer operations than all pairs have, so it has neither TFLOP/s nor a share \
                     of the roofline.";

fn markdown(run: &Run, results: &[&Measurement]) -> String {
    let d = &run.device;
    let mut text = format!(
        "{}, driver {}, NVRTC {}, {}, commit `{}`. A plain copy moved {:.0} GB/s in the same run. `cpu` is {} threads of an {}.",
        d.gpu,
        d.driver,
        d.nvrtc,
        run.date,
        &run.commit[..12],
        d.copy_gbps,
        d.cpu_threads,
        d.cpu
    );
    if !results.iter().all(|m| computes_what_is_counted(m)) {
        text += FEWER;
    }
    text += "\n\n";
    text +=
        "| version | shape | type | median, µs | p10 – p90 | GB/s | % of the roofline | error |\n";
    text += "|---|---|---|--:|--:|--:|--:|--:|\n";
    for m in results {
        let shown = |value: Option<f64>, digits: usize| {
            value.map_or(String::new(), |v| format!("{v:.digits$}"))
        };
        let error = m.relative_error.map_or(String::new(), |e| format!("{e:.1e}"));
        let share = m.roofline_percent.filter(|_| computes_what_is_counted(m));
        let moved = format!("{} | {} | {error}", shown(m.gbps, 0), shown(share, 1));
        let version = if m.version.contains(':') {
            m.version.clone()
        } else {
            format!("{} ({})", m.version, m.family)
        };
        let digits = if m.median_us < 10.0 { 2 } else { 1 };
        writeln!(
            text,
            "| {version} | {} | {} | {:.digits$} | {:.digits$} – {:.digits$} | {moved} |",
            m.shape, m.dtype, m.median_us, m.p10_us, m.p90_us
        )
        .expect("writing to a string");
    }
    text
}

fn chart(run: &Run, stage: &str, dtype: &str, results: &[&Measurement]) -> Result<String, Error> {
    let mut families: Vec<&str> = results.iter().map(|m| m.family.as_str()).collect();
    families.dedup();
    let bars: Vec<Bar> = results
        .iter()
        .map(|m| Bar {
            label: m.version.split(':').next_back().unwrap_or_default().to_owned(),
            value: m.gbps.unwrap_or(0.0),
            note: format!("{:.0} GB/s, {:.0} µs", m.gbps.unwrap_or(0.0), m.median_us),
            guess: None,
            group: families.iter().position(|f| *f == m.family).unwrap_or(0),
        })
        .collect();
    let title = format!("{stage}, {dtype}, {}", run.device.gpu);
    Ok(lab_plots::bars(&title, (run.device.copy_gbps, "plain copy"), &bars)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests::{line, run};

    #[test]
    fn a_narrowed_record_does_not_take_the_page_of_a_whole_one() {
        let problems = |date, sizes: &[usize]| {
            let of = |k: &usize| line("matmul:v0", "version", &format!("K={k}"), 9.0, 0.0);
            run(date, sizes.iter().map(of).collect())
        };
        let all = [
            problems("2026-01-01T00:00:00Z", &[1, 2]),
            problems("2026-01-02T00:00:00Z", &[1, 2]),
            problems("2026-01-03T00:00:00Z", &[2]),
        ];
        assert_eq!(fullest(&all, "matmul").unwrap().date, all[1].date);
        assert!(fullest(&all, "mlp").is_none());
    }

    #[test]
    fn the_heading_says_who_ran_in_turns() {
        let mut run =
            run("2026-01-01T00:00:00Z", vec![line("matmul:v0", "version", "K=1", 9.0, 0.0)]);
        let mut of = |in_turns, peers_in_turns| {
            (run.in_turns, run.peers_in_turns) = (in_turns, peers_in_turns);
            heading(&run, &[])
        };
        assert!(!of(false, false).contains("turns"));
        assert!(of(true, false).contains("host code and scripts did not."));
        assert!(of(true, true).contains("those from Python too; host code did not."));
    }
}

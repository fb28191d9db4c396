//! The table of the passes: each beside what memory allows and beside PyTorch.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use lab_plots::three_digits;
use lab_records::record::{Measurement, Run};

use crate::lists::{families, fastest, own};

/// The stage whose families are layers between others.
pub(crate) const STAGE: &str = "passes";
/// The type that a language model is trained in.
const DTYPE: &str = "bf16";
/// As `benches/peers/passes.py` names them, and their columns.
const PEERS: [(&str, &str); 2] = [("compiled", "PyTorch, compiled"), ("torch", "PyTorch")];

/// The table, from the newest record of each family that has a library beside it, or from its newest.
pub(crate) fn pages(runs: &[Run]) -> Vec<(String, String)> {
    if runs.is_empty() {
        return Vec::new();
    }
    let rows: Vec<Row<'_>> = families(STAGE).into_iter().filter_map(|f| Row::of(runs, f)).collect();
    vec![("layers.md".into(), if rows.is_empty() { not_measured() } else { table(&rows) })]
}

fn not_measured() -> String {
    format!(
        "Not measured yet: `lab bench {STAGE} --record --peers --in-turns` on a GPU writes the record.\n"
    )
}

/// A family's fastest version, and the libraries of the same problem.
struct Row<'r> {
    family: &'static str,
    run: &'r Run,
    version: &'r Measurement,
    peers: [Option<&'r Measurement>; PEERS.len()],
}

impl<'r> Row<'r> {
    fn of(runs: &'r [Run], family: &'static str) -> Option<Self> {
        let in_record = |run: &'r Run| {
            let version = fastest(own(run, family).filter(|m| m.dtype == DTYPE))?;
            let peer = |(name, _): &(&str, &str)| {
                let same = |m: &&Measurement| {
                    (&*m.family, &*m.version, &m.shape) == (family, *name, &version.shape)
                };
                run.results.iter().find(|m| same(m) && m.dtype == DTYPE)
            };
            Some(Self { family, run, version, peers: PEERS.each_ref().map(peer) })
        };
        let all: Vec<Self> = runs.iter().filter_map(in_record).collect();
        let beside = all.iter().rposition(|row| row.peers.iter().any(Option::is_some));
        let newest = all.len().checked_sub(1)?;
        all.into_iter().nth(beside.unwrap_or(newest))
    }

    /// What moving its bytes takes at the speed of a plain copy, in µs.
    fn limit_us(&self) -> Option<f64> {
        let moved = self.version.gbps? * self.version.median_us;
        (self.run.device.copy_gbps > 0.0).then(|| moved / self.run.device.copy_gbps)
    }

    /// How many times as fast the version is as the faster library that computes the same.
    fn ratio(&self) -> Option<f64> {
        let same = self.peers.iter().flatten().filter(|peer| peer.computes.is_none());
        Some(fastest(same.copied())?.median_us / self.version.median_us)
    }

    /// With a cell for each of these peers.
    fn cells(&self, peers: &[usize]) -> String {
        let number = |value: Option<f64>| value.map_or(String::new(), three_digits);
        let peer = |peer: &Option<&Measurement>| match peer {
            None => String::new(),
            Some(m) => {
                let other = m.computes.as_ref().map_or(String::new(), |what| format!(" ({what})"));
                three_digits(m.median_us) + &other
            }
        };
        let beside: String = peers.iter().map(|n| peer(&self.peers[*n]) + " | ").collect();
        let ratio = self.ratio().map_or(String::new(), |ratio| format!("{ratio:.2}"));
        format!(
            "| `{}` | {} | {beside}{ratio} | {} | {} | {} |",
            self.family,
            three_digits(self.version.median_us),
            number(self.limit_us()),
            self.version.gbps.map_or(String::new(), |gbps| format!("{gbps:.0}")),
            self.version.shape.replace(',', ", ").replace('=', "\u{a0}=\u{a0}"),
        )
    }
}

fn table(rows: &[Row<'_>]) -> String {
    let peers: Vec<usize> =
        (0..PEERS.len()).filter(|n| rows.iter().any(|row| row.peers[*n].is_some())).collect();
    let columns: String = peers.iter().map(|n| format!("{} | ", PEERS[*n].1)).collect();
    let mut text = format!(
        "In {DTYPE}, µs, launched with a cold cache. *Limit* is what moving the bytes takes at the speed of a plain copy in the same run, *ratio* how \
         many times as fast the pass is as the faster one by PyTorch. A call of PyTorch includes its work on the host. Where its time does \
         not grow with the bytes, as backward by autograd and in `soft_cap_gates`, that is most of it, and the ratio says nothing of kernels. {}\n\n\
         | layer | here | {columns}ratio | limit | GB/s | problem |\n\
         |---|--:|{}--:|--:|--:|---|\n",
        headings(rows),
        "--:|".repeat(peers.len()),
    );
    for row in rows {
        writeln!(text, "{}", row.cells(&peers)).expect("writing to a string");
    }
    text
}

/// On what the rows were measured, and when: runs that differ by their commit alone are one sentence.
fn headings(rows: &[Row<'_>]) -> String {
    let mut commits: BTreeMap<[String; 2], BTreeSet<String>> = BTreeMap::new();
    for Row { run, .. } in rows {
        let mut libraries = run.device.libraries.clone();
        libraries.dedup();
        libraries.push(run.date.get(..10).unwrap_or(&run.date).into());
        let on = format!("{}: {}", run.device.gpu, libraries.join(", "));
        let turns = if run.peers_in_turns { ", in turns" } else { "" };
        commits.entry([on, turns.into()]).or_default().insert(format!("`{}`", &run.commit[..12]));
    }
    let sentence = |([on, turns], commits): (&[String; 2], &BTreeSet<String>)| {
        let several = if commits.len() > 1 { "s" } else { "" };
        let commits: Vec<&str> = commits.iter().map(String::as_str).collect();
        format!("{on}, commit{several} {}{turns}.", commits.join(", "))
    };
    let all: Vec<String> = commits.iter().map(sentence).collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests::{line, run};

    fn of_pass(version: &str, of: &str, us: f64, gbps: f64) -> serde_json::Value {
        let mut line = line(version, of, "R=8,C=8", us, 1e-3);
        line["family"] = "rms_norm".into();
        line["dtype"] = DTYPE.into();
        line["gbps"] = gbps.into();
        line
    }

    #[test]
    fn a_layer_stands_beside_the_limit_and_the_library() {
        let beside = vec![
            of_pass("passes:rms_norm", "version", 20.0, 0.5),
            of_pass("compiled", "library", 30.0, 0.3),
            of_pass("torch", "library", 50.0, 0.2),
        ];
        let later = vec![of_pass("passes:rms_norm", "version", 21.0, 0.5)];
        let runs = [run("2026-01-30T12:00:00Z", beside), run("2026-01-31T12:00:00Z", later)];
        let pages = pages(&runs);
        let text = &pages[0].1;
        // A copy has 1 GB/s there.
        let row = "| `rms_norm` | 20.0 | 30.0 | 50.0 | 1.50 | 10.0 | 0 | R\u{a0}=\u{a0}8, C\u{a0}=\u{a0}8 |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("2026-01-30") && !text.contains("2026-01-31"), "{text}");
    }

    #[test]
    fn what_computes_something_else_is_no_ratio() {
        let mut other = of_pass("torch", "library", 50.0, 0.2);
        other["computes"] = "draws of its own".into();
        let all = vec![of_pass("passes:rms_norm", "version", 20.0, 0.5), other];
        let text = &pages(&[run("2026-01-30T12:00:00Z", all)])[0].1;
        assert!(text.contains("| 20.0 | 50.0 (draws of its own) |  | 10.0 |"), "{text}");
        assert!(text.contains("| here | PyTorch | ratio |"), "{text}");
    }

    #[test]
    fn without_a_record_it_says_so() {
        let other = vec![line("matmul:v0", "version", "K=8", 40.0, 0.0)];
        assert!(pages(&[run("2026-01-30T12:00:00Z", other)])[0].1.starts_with("Not measured yet"));
        assert!(pages(&[]).is_empty());
    }
}

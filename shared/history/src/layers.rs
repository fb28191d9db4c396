//! The table of the passes: each beside what memory allows and beside PyTorch.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use lab_plots::three_digits;
use lab_records::record::{Measurement, Run};

use crate::lists::{families, fastest, own};

/// The stage whose families are layers between others.
pub(crate) const STAGE: &str = "passes";
/// The type that a language model is trained in.
const DTYPE: &str = "bf16";
/// As `benches/peers/passes.py` names them.
const PEERS: [&str; 2] = ["compiled", "torch"];

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
            let peer = |name: &&str| {
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

    fn cells(&self) -> String {
        let number = |value: Option<f64>| value.map_or(String::new(), three_digits);
        let peer = |peer: &Option<&Measurement>| match peer {
            None => String::new(),
            Some(m) => {
                let other = m.computes.as_ref().map_or(String::new(), |what| format!(" ({what})"));
                three_digits(m.median_us) + &other
            }
        };
        let [compiled, eager] = self.peers.each_ref().map(peer);
        let ratio = self.ratio().map_or(String::new(), |ratio| format!("{ratio:.2}"));
        format!(
            "| `{}` | {} | {compiled} | {eager} | {ratio} | {} | {} | {} |",
            self.family,
            three_digits(self.version.median_us),
            number(self.limit_us()),
            self.version.gbps.map_or(String::new(), |gbps| format!("{gbps:.0}")),
            self.version.shape.replace(',', ", ").replace('=', "\u{a0}=\u{a0}"),
        )
    }
}

fn table(rows: &[Row<'_>]) -> String {
    let of: BTreeSet<String> = rows.iter().map(|row| heading(row.run)).collect();
    let of: Vec<String> = of.into_iter().collect();
    let mut text = format!(
        "In {DTYPE}, µs, launched with a cold cache. *Limit* is what moving the bytes takes at the speed of a plain copy in the same run, *ratio* how \
         many times as fast the pass is as the faster of the two by PyTorch. A call of PyTorch includes its work on the host. Where its time does \
         not grow with the bytes, as backward by autograd and in `soft_cap_gates`, that is most of it, and the ratio says nothing of kernels. {}\n\n\
         | layer | here | PyTorch, compiled | PyTorch | ratio | limit | GB/s | problem |\n\
         |---|--:|--:|--:|--:|--:|--:|---|\n",
        of.join(" ")
    );
    for row in rows {
        writeln!(text, "{}", row.cells()).expect("writing to a string");
    }
    text
}

fn heading(run: &Run) -> String {
    let d = &run.device;
    let turns = if run.peers_in_turns { ", in turns" } else { "" };
    let mut libraries = d.libraries.clone();
    libraries.dedup();
    let libraries = if libraries.is_empty() { String::new() } else { libraries.join(", ") + ", " };
    let date = run.date.get(..10).unwrap_or(&run.date);
    format!("{}: {libraries}{date}, commit `{}`{turns}.", d.gpu, &run.commit[..12])
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
        assert!(text.contains("| 50.0 (draws of its own) |  | 10.0 |"), "{text}");
    }

    #[test]
    fn without_a_record_it_says_so() {
        let other = vec![line("matmul:v0", "version", "K=8", 40.0, 0.0)];
        assert!(pages(&[run("2026-01-30T12:00:00Z", other)])[0].1.starts_with("Not measured yet"));
        assert!(pages(&[]).is_empty());
    }
}

//! What moved from one record to another, beyond noise.

use std::path::Path;
use std::process::Command;

use lab_device::Facts;
use lab_records::record::{self, Measurement, Of, Run};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::table::table;
use lab_device::emulator::shown;

/// What the same kernels moved by from one turn to the next of one run on an H200, in percent, rounded up
/// (2.9).
const DRIFT: f64 = 3.0;

/// A line that took more or less than before.
#[derive(Debug, PartialEq)]
struct Move<'a> {
    then: &'a Measurement,
    now: &'a Measurement,
}

impl Move<'_> {
    fn percent(&self) -> f64 {
        100.0 * (self.now.median_us / self.then.median_us - 1.0)
    }

    /// Whether nine tenths of the runs of the one took less than nine tenths of the other's, and the
    /// medians are further apart than the machine drifts.
    fn is_beyond_noise(&self) -> bool {
        let (then, now) = (self.then, self.now);
        let apart = now.p10_us > then.p90_us || now.p90_us < then.p10_us;
        apart && self.percent().abs() > DRIFT
    }
}

/// The lines of a commit's records, on one GPU.
#[derive(Debug)]
pub(crate) struct Then {
    commit: String,
    lines: Vec<Measurement>,
}

impl Then {
    /// Of the commit that `revision` begins, or that git knows by that name; on a GPU such as this one,
    /// where there is one. Of a line that was measured twice, the newer.
    ///
    /// # Errors
    /// No such record; the message, for `argument`, names those there are.
    pub(crate) fn read(
        directory: &Path,
        argument: &str,
        revision: &str,
        device: Option<&Facts>,
    ) -> Result<Self, Failure> {
        let runs = record::read_all(directory)?;
        let here = |run: &&Run| device.is_none_or(|device| run.device.gpu == device.name);
        let commit = commit_of(&runs, revision)
            .filter(|c| runs.iter().filter(here).any(|run| run.commit == *c));
        let Some(commit) = commit else {
            let mut known: Vec<_> = runs.iter().filter(here).map(|r| &r.commit[..12]).collect();
            known.dedup();
            let of = device.map_or(String::new(), |device| format!(" on {}", device.name));
            let revision = shown(revision, 60);
            let message = if known.is_empty() {
                format!("{argument}: there is no record{of} in {}", directory.display())
            } else {
                format!(
                    "{argument}: expected the commit of a record{of}, one of {}, got '{revision}'",
                    known.join(", ")
                )
            };
            return Err(Failure::Usage(message));
        };
        let newest_first = runs.into_iter().rev().filter(|run| here(&run) && run.commit == commit);
        let mut lines: Vec<Measurement> = Vec::new();
        for line in newest_first.flat_map(|run| run.results) {
            if !lines.iter().any(|other| same(other, &line)) {
                lines.push(line);
            }
        }
        Ok(Self { commit, lines })
    }

    /// Of one record, whatever GPU it is of.
    pub(crate) fn of(run: &Run) -> Self {
        Self { commit: run.commit.clone(), lines: run.results.clone() }
    }

    /// Those that moved, largest change first, how many did not, and how many have no counterpart.
    fn moves<'a>(&'a self, now: &'a [Measurement]) -> (Vec<Move<'a>>, usize, usize) {
        let timed: Vec<_> = now.iter().filter(|m| m.of != Of::Host).collect();
        let pairs: Vec<_> = timed
            .iter()
            .filter_map(|now| Some(Move { then: self.lines.iter().find(|l| same(l, now))?, now }))
            .collect();
        let (known, alone) = (pairs.len(), timed.len() - pairs.len());
        let mut moved: Vec<_> = pairs.into_iter().filter(Move::is_beyond_noise).collect();
        moved.sort_by(|a, b| b.percent().abs().total_cmp(&a.percent().abs()));
        let still = known - moved.len();
        (moved, still, alone)
    }

    /// The same as JSON.
    pub(crate) fn json(&self, now: &[Measurement]) -> Value {
        let (moved, still, alone) = self.moves(now);
        let lines: Vec<_> = moved
            .iter()
            .map(|m| {
                json!({
                    "version": m.now.version, "shape": m.now.shape, "dtype": m.now.dtype,
                    "then_us": m.then.median_us, "now_us": m.now.median_us, "percent": m.percent(),
                })
            })
            .collect();
        json!({ "commit": self.commit, "moved": lines, "within_noise": still, "new": alone })
    }

    /// A table of what moved, and a line that says what else there is.
    pub(crate) fn print(&self, now: &[Measurement]) {
        let (moved, still, alone) = self.moves(now);
        let mut rows = table(&["version", "shape", "type", ">then, µs", ">now, µs", ">change, %"]);
        for m in &moved {
            rows.add_row([
                m.now.version.clone(),
                m.now.shape.clone(),
                m.now.dtype.clone(),
                format!("{:.1}", m.then.median_us),
                format!("{:.1}", m.now.median_us),
                format!("{:+.1}", m.percent()),
            ]);
        }
        if !moved.is_empty() {
            say!("{rows}");
        }
        say!(
            "against {}: {} moved beyond noise ({DRIFT} %, and p10 to p90 apart), {still} did not, \
             {alone} were not measured there",
            &self.commit[..12],
            moved.len(),
        );
    }

    /// The lines themselves.
    pub(crate) fn lines(&self) -> &[Measurement] {
        &self.lines
    }
}

/// The commit among those of records that `revision` begins; else what git says it is.
fn commit_of(runs: &[Run], revision: &str) -> Option<String> {
    let begun = |run: &&Run| revision.len() >= 4 && run.commit.starts_with(revision);
    if let Some(run) = runs.iter().rev().find(begun) {
        return Some(run.commit.clone());
    }
    let name = format!("{revision}^{{commit}}");
    let output = Command::new("git")
        .args(["rev-parse", "--verify", "--quiet", "--end-of-options", &name])
        .output()
        .ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    output.status.success().then_some(commit)
}

fn same(a: &Measurement, b: &Measurement) -> bool {
    (&a.family, &a.version, &a.shape, &a.dtype) == (&b.family, &b.version, &b.shape, &b.dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(version: &str, [p10, median, p90]: [f64; 3]) -> Measurement {
        let fields = json!({
            "family": "sum", "version": version, "shape": "N=8", "dtype": "f32",
            "median_us": median, "p10_us": p10, "p90_us": p90, "runs": 9,
        });
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn only_what_is_beyond_noise_moves() {
        let then = [
            line("a", [9.0, 10.0, 11.0]),
            line("b", [9.9, 10.0, 10.1]),
            line("c", [99.9, 100.0, 100.1]),
            line("d", [1.0, 1.0, 1.0]),
        ];
        let then = Then { commit: "0123456789abcdef".into(), lines: then.to_vec() };
        let now = [
            line("a", [10.5, 12.0, 13.0]),    // 20 %, but the ranges meet
            line("b", [4.9, 5.0, 5.1]),       // half
            line("c", [102.0, 102.5, 102.8]), // apart, but within the drift
            line("e", [1.0, 1.0, 1.0]),       // was not there
        ];
        let (moved, still, alone) = then.moves(&now);
        assert_eq!(moved, [Move { then: &then.lines[1], now: &now[1] }]);
        assert_eq!((moved[0].percent(), still, alone), (-50.0, 2, 1));
        let said = then.json(&now);
        assert_eq!((&said["within_noise"], &said["new"]), (&json!(2), &json!(1)));
    }

    #[test]
    fn records_are_those_of_such_a_gpu() {
        let records = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/history"));
        let read = |facts: &Facts| Then::read(records, "--against", "59c2710d", Some(facts));
        let emulator = lab_device::Device::emulator().unwrap();
        let mut facts = emulator.facts().clone();
        let Err(Failure::Usage(refused)) = read(&facts) else { panic!("it was read") };
        assert!(refused.contains("there is no record on CPU emulator on "), "{refused}");
        facts.name = "NVIDIA H200".into();
        assert!(read(&facts).unwrap().lines.iter().any(|l| l.family == "lstm"));
    }
}

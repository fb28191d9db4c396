//! Time over a size, replayed, from all records. Of a sequence over its length: does it grow with S, or with its square? Of a
//! recurrence over the rows of a batch, a step's: which of them are free?

use std::collections::BTreeMap;

use lab_harness::Dims;
use lab_plots::Curve;
use lab_records::record::{Measurement, Run};

use crate::Error;

/// A line of so many sizes at least.
const SIZES: usize = 4;

/// What is drawn over what.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// All of a sequence, over S.
    Length,
    /// One of T steps, over B.
    Rows,
}

impl Over {
    fn size(self) -> &'static str {
        match self {
            Self::Length => "S",
            Self::Rows => "B",
        }
    }

    /// Of how many the time is.
    fn parts(self, sizes: &[(String, usize)]) -> Option<usize> {
        match self {
            Self::Length => Some(1),
            Self::Rows => sizes.iter().find(|(name, _)| name == "T").map(|(_, steps)| *steps),
        }
    }
}

/// Beside what else a problem is: its other sizes and its type.
type Others = (Vec<(String, usize)>, String);

/// µs by size, of each line: whether it is a library, and its name.
type Lines<'a> = BTreeMap<(bool, &'a str), BTreeMap<usize, f64>>;

/// The plot of the problems of a family that have been measured at the most sizes; `None` where none has at [`SIZES`].
pub(crate) fn plot(runs: &[Run], family: &str, over: Over) -> Result<Option<String>, Error> {
    // Of each line and length, the newest record's.
    let mut all: BTreeMap<Others, Lines<'_>> = BTreeMap::new();
    for run in runs {
        let mut own: BTreeMap<(Others, usize), f64> = BTreeMap::new();
        for m in run.results.iter().filter(|m| m.family == family) {
            let Some(Point { others, size, us }) = Point::of(m, over) else { continue };
            if m.is_peer() {
                let lines = all.entry(others).or_default();
                lines.entry((true, &m.version)).or_default().insert(size, us);
            } else {
                let least = own.entry((others, size)).or_insert(us);
                *least = least.min(us);
            }
        }
        for ((others, size), us) in own {
            let lines = all.entry(others).or_default();
            lines.entry((false, "the fastest version")).or_default().insert(size, us);
        }
    }
    let sizes = |lines: &Lines<'_>| lines.values().map(BTreeMap::len).max();
    let points = |lines: &Lines<'_>| lines.values().map(BTreeMap::len).sum::<usize>();
    // Of equals the last is taken: backwards, so that it is bf16, not f16.
    let most = all.into_iter().rev().max_by_key(|(_, lines)| (sizes(lines), points(lines)));
    let Some((others, lines)) = most else {
        return Ok(None);
    };
    if sizes(&lines) < Some(SIZES) {
        return Ok(None);
    }
    let mut ticks: Vec<usize> = lines.values().flat_map(BTreeMap::keys).copied().collect();
    ticks.sort_unstable();
    ticks.dedup();
    let ticks: Vec<_> = ticks.iter().map(|&s| (s as f64, s.to_string())).collect();
    let curves: Vec<Curve> = lines
        .into_iter()
        .map(|((dashed, name), points)| Curve {
            label: name.to_owned(),
            dashed,
            points: points.into_iter().map(|(s, us)| (s as f64, us)).collect(),
        })
        .collect();
    let sizes: Vec<String> = others.0.iter().map(|(name, size)| format!("{name}={size}")).collect();
    let of = if over == Over::Rows { "µs a step" } else { "µs" };
    let title = format!("{family}, {}, {}: {of} in a graph", others.1, sizes.join(" "));
    Ok(Some(lab_plots::curves(&title, over.size(), &ticks, &[], &curves)?))
}

/// A measurement as a point of a line.
struct Point {
    others: Others,
    size: usize,
    us: f64,
}

impl Point {
    fn of(m: &Measurement, over: Over) -> Option<Self> {
        let dims = Dims::parse(&m.shape).ok()?;
        let mut sizes: Vec<(String, usize)> =
            dims.iter().map(|(name, size)| (name.to_string(), size)).collect();
        let at = sizes.iter().position(|(name, _)| name == over.size())?;
        let (_, size) = sizes.remove(at);
        let us = m.replay_us? / over.parts(&sizes)? as f64;
        Some(Self { others: (sizes, m.dtype.clone()), size, us })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::families::tests::run;
    use super::*;

    fn line(version: &str, s: usize, us: f64) -> serde_json::Value {
        let of = if version.contains(':') { "version" } else { "library" };
        json!({"family": "vlstm_fw", "version": version, "of": of, "shape": format!("B=1,NH=2,S={s}"), "dtype": "bf16",
               "median_us": us, "p10_us": us, "p90_us": us, "replay_us": us, "runs": 3, "tflops": null, "gbps": null,
               "roofline_percent": null, "relative_error": null})
    }

    #[test]
    fn of_problems_with_as_many_lengths_that_of_more_lines_is_drawn_and_then_bf16() {
        let of = |dtype: &str, name: &str| {
            let lines = [100, 200, 400, 800].map(|s| line(name, s, 1.0));
            lines.map(|mut line| {
                line["dtype"] = json!(dtype);
                line
            })
        };
        let all = [of("bf16", "vlstm_fw_v4:v2"), of("f16", "vlstm_fw_v4:v2")].concat();
        let drawn =
            |lines| plot(&[run("2026-01-01", lines)], "vlstm_fw", Over::Length).unwrap().unwrap();
        assert!(drawn(all.clone()).contains("vlstm_fw, bf16"));
        assert!(drawn([all, of("f16", "xl_chunk").to_vec()].concat()).contains("vlstm_fw, f16"));
    }

    #[test]
    fn a_line_needs_lengths_enough_and_has_the_newest_of_each() {
        let few = [100, 200, 400].map(|s| line("vlstm_fw_v4:v2", s, s as f64)).to_vec();
        let first = run("2026-01-01", few);
        assert!(plot(std::slice::from_ref(&first), "vlstm_fw", Over::Length).unwrap().is_none());
        let more = vec![line("vlstm_fw_v4:v2", 800, 5e6), line("xl_chunk", 800, 7.0)];
        let svg =
            plot(&[first, run("2026-01-02", more)], "vlstm_fw", Over::Length).unwrap().unwrap();
        for said in ["the fastest version", "xl_chunk", "800", "B=1 NH=2", "2000000"] {
            assert!(svg.contains(said), "{said}");
        }
    }

    #[test]
    fn over_rows_a_step_is_drawn_and_a_batch_without_steps_is_not() {
        let of = |shape: &dyn Fn(usize) -> String| {
            let lines = [1, 2, 4, 8].map(|b| {
                let mut line = line("vlstm_fw_v4:v2", 1, 500.0 * b as f64);
                line["shape"] = json!(shape(b));
                line
            });
            plot(&[run("2026-01-01", lines.to_vec())], "vlstm_fw", Over::Rows).unwrap()
        };
        let svg = of(&|b| format!("B={b},T=100")).unwrap();
        for said in ["µs a step", "T=100", "5", "40"] {
            assert!(svg.contains(said), "{said}");
        }
        assert!(of(&|b| format!("B={b},H=100")).is_none());
    }
}

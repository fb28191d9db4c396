//! Time over the length of a sequence, replayed, from all records: does it grow with S, or with its square?

use std::collections::BTreeMap;

use lab_harness::Dims;
use lab_harness::record::{Measurement, Run};

use crate::failure::Failure;
use crate::plot::{self, Curve};

/// A line of so many lengths at least.
const LENGTHS: usize = 4;

/// Beside what else a problem is: its other sizes and its type.
type Others = (Vec<(String, usize)>, String);

/// µs by length, of each line: whether it is a library, and its name.
type Lines<'a> = BTreeMap<(bool, &'a str), BTreeMap<usize, f64>>;

/// The plot of the problems of a family that have been measured at the most lengths; `None` where none has at
/// [`LENGTHS`].
pub(super) fn plot(runs: &[Run], family: &str) -> Result<Option<String>, Failure> {
    // Of each line and length, the newest record's.
    let mut all: BTreeMap<Others, Lines<'_>> = BTreeMap::new();
    for run in runs {
        let mut own: BTreeMap<(Others, usize), f64> = BTreeMap::new();
        for m in run.results.iter().filter(|m| m.family == family) {
            let Some(((others, length), us)) = length(m).zip(m.replay_us) else { continue };
            if m.is_peer() {
                let lines = all.entry(others).or_default();
                lines.entry((true, &m.version)).or_default().insert(length, us);
            } else {
                let least = own.entry((others, length)).or_insert(us);
                *least = least.min(us);
            }
        }
        for ((others, length), us) in own {
            let lines = all.entry(others).or_default();
            lines.entry((false, "the fastest version")).or_default().insert(length, us);
        }
    }
    let lengths = |lines: &Lines<'_>| lines.values().map(BTreeMap::len).max();
    let points = |lines: &Lines<'_>| lines.values().map(BTreeMap::len).sum::<usize>();
    // Of equals the last is taken: backwards, so that it is bf16, not f16.
    let most = all.into_iter().rev().max_by_key(|(_, lines)| (lengths(lines), points(lines)));
    let Some((others, lines)) = most else {
        return Ok(None);
    };
    if lengths(&lines) < Some(LENGTHS) {
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
    let title = format!("{family}, {}, {}: µs in a graph", others.1, sizes.join(" "));
    Ok(Some(plot::curves(&title, "S", &ticks, &[], &curves)?))
}

/// What a measurement is of, and the length of its sequences.
fn length(m: &Measurement) -> Option<(Others, usize)> {
    let dims = Dims::parse(&m.shape).ok()?;
    let mut sizes: Vec<(String, usize)> =
        dims.iter().map(|(name, size)| (name.to_string(), size)).collect();
    let at = sizes.iter().position(|(name, _)| name == "S")?;
    let (_, length) = sizes.remove(at);
    Some(((sizes, m.dtype.clone()), length))
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
        let drawn = |lines| plot(&[run("2026-01-01", lines)], "vlstm_fw").unwrap().unwrap();
        assert!(drawn(all.clone()).contains("vlstm_fw, bf16"));
        assert!(drawn([all, of("f16", "xl_chunk").to_vec()].concat()).contains("vlstm_fw, f16"));
    }

    #[test]
    fn a_line_needs_lengths_enough_and_has_the_newest_of_each() {
        let few = [100, 200, 400].map(|s| line("vlstm_fw_v4:v2", s, s as f64)).to_vec();
        let first = run("2026-01-01", few);
        assert!(plot(std::slice::from_ref(&first), "vlstm_fw").unwrap().is_none());
        let more = vec![line("vlstm_fw_v4:v2", 800, 5e6), line("xl_chunk", 800, 7.0)];
        let svg = plot(&[first, run("2026-01-02", more)], "vlstm_fw").unwrap().unwrap();
        for said in ["the fastest version", "xl_chunk", "800", "B=1 NH=2", "2000000"] {
            assert!(svg.contains(said), "{said}");
        }
    }
}

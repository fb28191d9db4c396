//! The emulator's counters beside Nsight Compute's.

use std::fmt::Write as _;

use lab_corpus::records::{Counted, Counters};

/// A difference above this, in percent, is marked.
const MARKED: f64 = 5.0;

pub(crate) fn page(record: &Counters) -> String {
    let counted = &record.counted;
    let off = |c: &&Counted| figures(c).iter().any(|&(own, other)| !within(own, other, MARKED));
    let equal = |c: &&Counted| figures(c).iter().all(|&(own, other)| within(own, other, 0.0));
    let mut text = format!(
        "{}. Rows: {}; exactly equal: {}; more than {MARKED} % apart, in **bold**: {}.\n\n",
        record.origin(),
        counted.len(),
        counted.iter().filter(equal).count(),
        counted.iter().filter(off).count(),
    );
    text += "| kernel | operation | requests: emulator | Nsight Compute | difference | \
             sectors or wavefronts: emulator | Nsight Compute | difference |\n\
             |---|---|--:|--:|--:|--:|--:|--:|\n";
    for c in counted {
        let cells = figures(c).map(|(own, other)| {
            let shown = other.map_or_else(|| "not measured".into(), |o| o.to_string());
            format!("{own} | {shown} | {}", difference(own, other))
        });
        writeln!(text, "| `{}` | {} | {} |", c.kernel, c.operation, cells.join(" | "))
            .expect("writing to a string");
    }
    text += "\nThe metrics, each a sum over the GPU; sectors for global memory, wavefronts for shared:\n\n";
    text += "| operation | requests | sectors or wavefronts |\n|---|---|---|\n";
    for (operation, requests, cost) in metrics(counted) {
        writeln!(text, "| {operation} | `{requests}` | `{cost}` |").expect("writing to a string");
    }
    text
}

/// Requests and cost: counted by the emulator, measured.
fn figures(c: &Counted) -> [(u64, Option<f64>); 2] {
    [(c.requests, c.measured.requests), (c.cost, c.measured.cost)]
}

fn percent(own: u64, other: f64) -> f64 {
    if own as f64 == other { 0.0 } else { 100.0 * (own as f64 - other) / other }
}

fn within(own: u64, other: Option<f64>, bound: f64) -> bool {
    other.is_some_and(|o| percent(own, o).abs() <= bound)
}

fn difference(own: u64, other: Option<f64>) -> String {
    let Some(other) = other else { return String::new() };
    match percent(own, other) {
        0.0 => "0 %".into(),
        d if !d.is_finite() => "**none there**".into(),
        d if d.abs() > MARKED => format!("**{d:+.1} %**"),
        d => format!("{d:+.1} %"),
    }
}

/// Each operation once, with the names of its metrics.
fn metrics(counted: &[Counted]) -> Vec<(&str, &str, &str)> {
    let mut all: Vec<(&str, &str, &str)> = counted
        .iter()
        .map(|c| (c.operation.as_str(), c.nsight.requests.as_str(), c.nsight.cost.as_str()))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_above_the_bound_is_marked() {
        assert_eq!(difference(100, Some(100.0)), "0 %");
        assert_eq!(difference(0, Some(0.0)), "0 %");
        assert_eq!(difference(104, Some(100.0)), "+4.0 %");
        assert_eq!(difference(90, Some(100.0)), "**-10.0 %**");
        assert_eq!(difference(1, Some(0.0)), "**none there**");
        assert_eq!(difference(1, None), "");
        assert!(
            !within(1, None, 5.0) && !within(1, Some(0.0), 5.0) && within(95, Some(100.0), 5.0)
        );
    }
}

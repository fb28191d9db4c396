//! What a launch has done, on a terminal and as JSON.

use std::path::Path;

use lab_app::{Array, Component, Outcome, Role, Tensor, decode, write_tensors};
use serde_json::{Value, json};

use super::expect::Comparison;
use super::{Launched, Mode, Targets};
use crate::failure::CheckFailure;
use crate::finding::finding_json;
use crate::table::table;
use crate::words::{counted, counted_findings};

/// Findings outrank a wrong result.
pub(super) fn code(outcome: &Outcome, comparisons: &[Comparison], strict: bool) -> u8 {
    verdict(outcome, comparisons, strict).err().map_or(0, |failure| failure.code())
}

/// What is wrong by the letter alone counts where that is asked for.
pub(super) fn verdict(
    outcome: &Outcome,
    comparisons: &[Comparison],
    strict: bool,
) -> Result<(), CheckFailure> {
    let wrong: Vec<&str> =
        comparisons.iter().filter(|c| c.wrong > 0).map(|c| c.name.as_str()).collect();
    let counts = outcome.findings.iter().filter(|f| strict || f.formal.is_none()).count();
    match (counts, &wrong[..]) {
        (0, []) => Ok(()),
        (0, names) => {
            Err(CheckFailure::Wrong(format!("{}: wrong: {}", outcome.kernel, names.join(", "))))
        }
        (n, _) => {
            Err(CheckFailure::Found(format!("{}: {}", outcome.kernel, counted(n, "finding"))))
        }
    }
}

pub(super) fn print(
    launched: &Launched,
    comparisons: &[Comparison],
    mode: Mode,
    targets: &Targets<'_>,
) {
    let outcome = &launched.outcome;
    say!("{}", title(outcome));
    if let [first, ..] = &outcome.left_out[..] {
        say!("other code of the file does not compile here and is left out: {first}");
    }
    for finding in &outcome.findings {
        let formal = if finding.formal.is_some() { "formal, " } else { "" };
        say!("\n{formal}{}: {finding}", finding.kind.check().name());
    }
    if !outcome.findings.is_empty() {
        say!();
    }
    if mode == Mode::Plain {
        print_arrays(&outcome.arrays);
    }
    for c in comparisons {
        let (at, got, expected) = c.worst;
        let Comparison { name, elements, wrong, rtol, atol, .. } = c;
        match wrong {
            0 => say!("{name}: as expected, all {elements} within {atol:e} + {rtol:e} of each"),
            _ => say!(
                "{name}: WRONG, {wrong} of {elements} elements; the worst, {name}[{at}]: expected \
                 {expected}, got {got} (may differ by {atol:e} + {rtol:e} of it)"
            ),
        }
    }
    let order = format!("{:?}", launched.order).to_lowercase();
    let seconds = launched.seconds;
    match mode {
        Mode::Plain => say!("run, not checked, in {seconds:.1} s, compiling included"),
        _ => say!(
            "1 launch checked in {seconds:.1} s (order {order}, seed {}): {}",
            launched.seed,
            counted_findings(outcome.findings.iter())
        ),
    }
    for path in [targets.output, targets.sarif].into_iter().flatten() {
        say!("wrote {}", path.display());
    }
}

/// `sum<T = float> at sum.cu:9, grid (4,1,1), block (128,1,1)`
pub(super) fn title(outcome: &Outcome) -> String {
    let mut text = format!("{} at {}", outcome.kernel, outcome.place);
    if let Some(config) = outcome.config {
        let sizes = |[x, y, z]: [u32; 3]| match (y, z) {
            (1, 1) => x.to_string(),
            (_, 1) => format!("{x},{y}"),
            _ => format!("{x},{y},{z}"),
        };
        text += &format!(": grid {}, block {}", sizes(config.grid), sizes(config.block));
        if config.dynamic_shared > 0 {
            text += &format!(", {} bytes of shared memory", config.dynamic_shared);
        }
        if config.cluster > 1 {
            text += &format!(", clusters of {}", config.cluster);
        }
        text += if config.cooperative { ", cooperative" } else { "" };
    }
    text
}

fn print_arrays(arrays: &[Array]) {
    let mut rows = table(&["output", "first elements", ">least", ">greatest", ">mean"]);
    let outputs: Vec<&Array> = arrays.iter().filter(|a| a.role != Role::In).collect();
    for array in &outputs {
        let values = decode(array.tensor.part, &array.tensor.bytes);
        let mut shown: Vec<String> =
            values.iter().take(4).map(|v| number(*v, array.tensor.part)).collect();
        if values.len() > 4 {
            shown.push("…".into());
        }
        let [least, greatest, mean] = summary(&values);
        rows.add_row([
            described(array),
            shown.join(" "),
            number(least, array.tensor.part),
            number(greatest, array.tensor.part),
            of_float(mean),
        ]);
    }
    if !outputs.is_empty() {
        say!("{rows}");
    }
}

/// `y f32[1000]`
fn described(array: &Array) -> String {
    let shape: Vec<String> = array.tensor.shape.iter().map(ToString::to_string).collect();
    format!("{} {}[{}]", array.name, array.tensor.part.name(), shape.join(","))
}

fn number(value: f64, part: Component) -> String {
    if part.is_float() { of_float(value) } else { format!("{value}") }
}

/// In six places; what they show as 0, or with more digits than the type has, with an exponent.
fn of_float(value: f64) -> String {
    let is_far = value != 0.0 && value.is_finite() && !(1e-4..1e9).contains(&value.abs());
    if is_far { format!("{value:.6e}") } else { format!("{value:.6}") }
}

/// Least, greatest, mean; NaN where one is none.
fn summary(values: &[f64]) -> [f64; 3] {
    let fold = |f: fn(f64, f64) -> f64| values.iter().copied().reduce(f).unwrap_or(f64::NAN);
    let sum: f64 = values.iter().sum();
    if sum.is_nan() {
        [f64::NAN; 3]
    } else {
        [fold(f64::min), fold(f64::max), sum / values.len() as f64]
    }
}

pub(super) fn write_outputs(path: &Path, outcome: &Outcome) -> Result<(), CheckFailure> {
    let outputs = outcome.arrays.iter().filter(|a| a.role != Role::In);
    let all: Vec<(&str, &Tensor)> = outputs.map(|a| (a.name.as_str(), &a.tensor)).collect();
    write_tensors(path, &all).map_err(|e| CheckFailure::Usage(format!("{}: {e}", path.display())))
}

pub(super) fn as_json(
    launched: &Launched,
    comparisons: &[Comparison],
    mode: Mode,
    code: u8,
) -> Value {
    let outcome = &launched.outcome;
    let config = outcome.config.map(|c| {
        json!({ "grid": c.grid, "block": c.block, "shared": c.dynamic_shared,
                "cooperative": c.cooperative, "cluster": c.cluster })
    });
    let arrays = outcome.arrays.iter().map(|a| {
        json!({ "name": a.name, "role": a.role.name(), "type": a.type_name,
                "dtype": a.tensor.part.name(), "shape": a.tensor.shape })
    });
    let compared = comparisons.iter().map(|c| {
        let (at, got, expected) = c.worst;
        json!({ "name": c.name, "passed": c.wrong == 0, "wrong": c.wrong, "elements": c.elements,
                "rtol": c.rtol, "atol": c.atol,
                "worst": { "element": at, "got": got, "expected": expected } })
    });
    json!({
        "kernel": outcome.kernel, "place": outcome.place, "launch": config,
        "checked": mode != Mode::Plain, "order": format!("{:?}", launched.order).to_lowercase(),
        "seed": launched.seed,
        "findings": outcome.findings.iter().map(finding_json).collect::<Vec<_>>(),
        "arrays": arrays.collect::<Vec<_>>(), "expected": compared.collect::<Vec<_>>(),
        "left_out": outcome.left_out, "exit": code,
    })
}

#[cfg(test)]
mod tests {
    use super::of_float;

    #[test]
    fn small_and_large_numbers_have_exponents() {
        let said: Vec<String> =
            [0.0, 0.5, -2.98e-8, 1.7e38, f64::INFINITY, -1234.5].map(of_float).into();
        assert_eq!(
            said,
            ["0.000000", "0.500000", "-2.980000e-8", "1.700000e38", "inf", "-1234.500000"]
        );
    }
}

//! The hidden states of a trained network, as a picture and as a file.

use std::fmt;
use std::path::Path;

use lab_harness::{Error, Tensor, Tensors, tensor};
use lab_lstm::data::StateSummary;
use lab_plots::heat::{Frame, heat};
use lstm_fused::{Lstm, Pass};
use serde::Serialize;

use super::tested::Tested;
use crate::failure::Failure;

/// Units of a picture at most.
const SHOWN: usize = 96;

/// What the states say.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Analysis {
    #[serde(flatten)]
    summary: StateSummary,
    /// The unit that goes most with the input, or against it.
    #[serde(skip_serializing_if = "Option::is_none")]
    nearest: Option<Nearest>,
}

#[derive(Clone, Debug, Serialize)]
struct Nearest {
    unit: usize,
    correlation: f64,
}

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StateSummary { steps, units, still, saturated, directions } = self.summary;
        write!(
            f,
            "hidden states of {steps} steps: 95 % of what {units} units do is in {directions} \
             directions; {still} stand still, {saturated} are saturated"
        )?;
        match &self.nearest {
            Some(n) => write!(f, "; unit {} goes with the input ({:.2})", n.unit, n.correlation),
            None => Ok(()),
        }
    }
}

/// Those of the first steps of a series, as the network sees it.
pub(super) fn of_series(
    tested: &Tested<'_>,
    values: &[f64],
    picture: &Path,
) -> Result<Analysis, Failure> {
    let values = &values[..values.len().min(tested.arguments.steps as usize)];
    let states = run(tested, values, 1)?;
    let names: Vec<String> = values.iter().map(f64::to_string).collect();
    let nearest = nearest(values, &states.rows());
    states.show(tested, picture, None, &names, nearest)
}

/// Those of the first characters of a text.
pub(super) fn of_text(
    tested: &Tested<'_>,
    tokens: &[usize],
    characters: &[char],
    picture: &Path,
) -> Result<Analysis, Failure> {
    let tokens = &tokens[..tokens.len().min(tested.arguments.steps.min(100) as usize)];
    let mut x = vec![0.0; tokens.len() * characters.len()];
    for (row, token) in tokens.iter().enumerate() {
        x[row * characters.len() + token] = 1.0;
    }
    let states = run(tested, &x, characters.len())?;
    let names: Vec<String> = tokens.iter().map(|t| characters[*t].to_string()).collect();
    let shown: Vec<String> = tokens.iter().map(|t| visible_character(characters[*t])).collect();
    states.show(tested, picture, Some(&shown), &names, None)
}

/// A character as a mark under a picture.
fn visible_character(character: char) -> String {
    match character {
        ' ' => "␣".into(),
        '\n' => "⏎".into(),
        '\t' => "⇥".into(),
        c if c.is_control() => "·".into(),
        c => c.to_string(),
    }
}

/// h of the last layer, \[steps, units\], and what went in, \[steps, columns\].
struct States {
    h: Tensor,
    x: Tensor,
}

/// From a zero state on, without a stop.
fn run(tested: &Tested<'_>, x: &[f64], columns: usize) -> Result<States, Failure> {
    let lstm = Lstm::new(tested.checkpoint.model.network)?;
    let steps = x.len() / columns;
    let mut tensors: Tensors = tested.checkpoint.parameters.clone();
    let Some(of_weights) = tensors.values().next().map(|t| t.dtype) else {
        return Err(Error::bad("model", "parameters", "none").into());
    };
    let x = Tensor::rounded(of_weights, &[steps, 1, columns], x);
    tensors.insert("x".into(), x.clone());
    let mut out = lstm.run(&tested.device, &tensors, Pass::Forward)?;
    let y = out.remove("y").expect("an output of every network");
    let units = y.shape[2];
    let h = Tensor { shape: vec![steps, units], ..y };
    Ok(States { h, x: Tensor { shape: vec![steps, columns], ..x } })
}

impl States {
    /// A row a unit.
    fn rows(&self) -> Vec<Vec<f64>> {
        let units = self.h.shape[1];
        let values = self.h.values();
        (0..units).map(|u| values.iter().skip(u).step_by(units).copied().collect()).collect()
    }

    fn show(
        &self,
        tested: &Tested<'_>,
        picture: &Path,
        labels: Option<&[String]>,
        names: &[String],
        nearest: Option<Nearest>,
    ) -> Result<Analysis, Failure> {
        let h = self.h.values();
        if let Some(at) = h.iter().position(|v| !v.is_finite()) {
            let units = self.h.shape[1];
            let got = format!("{} of unit {} at step {}", h[at], at % units, at / units);
            return Err(Error::bad("hidden states", "finite numbers", got).into());
        }
        let summary = StateSummary::of(&h, self.h.shape[1]);
        let mut rows = self.rows();
        let name = tested.model.file_stem().unwrap_or_default().to_string_lossy();
        let of = if rows.len() > SHOWN {
            format!(", {SHOWN} of {} units", rows.len())
        } else {
            String::new()
        };
        rows.truncate(SHOWN);
        let title = format!("hidden states of {name}{of}");
        let column = if labels.is_some() { "character" } else { "step" };
        let frame = Frame { title: &title, row: "unit", column, labels };
        lab_plots::write(picture, &heat(&frame, &rows)?)?;
        if let Some(path) = &tested.arguments.states {
            self.write(path, names)?;
        }
        Ok(Analysis { summary, nearest })
    }

    fn write(&self, path: &Path, names: &[String]) -> Result<(), Failure> {
        if path.extension().is_some_and(|e| e == "safetensors") {
            let all = [("h", self.h.clone()), ("x", self.x.clone())];
            return Ok(tensor::write(path, &tensor::tensors(all))?);
        }
        let failed = |message: String| Error::File { path: path.display().to_string(), message };
        let units = self.h.shape[1];
        let mut csv = csv::Writer::from_writer(Vec::new());
        let header = ["step".into(), "input".into()];
        let header = header.into_iter().chain((0..units).map(|u| format!("h{u}")));
        csv.write_record(header).map_err(|e| failed(e.to_string()))?;
        for (step, row) in self.h.values().chunks(units).enumerate() {
            let first = [step.to_string(), names[step].clone()];
            let row = first.into_iter().chain(row.iter().map(f64::to_string));
            csv.write_record(row).map_err(|e| failed(e.to_string()))?;
        }
        let text = csv.into_inner().map_err(|e| failed(e.to_string()))?;
        let text = String::from_utf8(text).map_err(|e| failed(e.to_string()))?;
        Ok(lab_plots::write(path, &text)?)
    }
}

/// The unit with the largest correlation with the input.
fn nearest(input: &[f64], rows: &[Vec<f64>]) -> Option<Nearest> {
    let all = rows
        .iter()
        .enumerate()
        .map(|(unit, h)| Nearest { unit, correlation: correlation(input, h) });
    let finite = all.filter(|n| n.correlation.is_finite());
    finite.max_by(|a, b| a.correlation.abs().total_cmp(&b.correlation.abs()))
}

/// Pearson's; NaN where one of the two is constant.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let (of_a, of_b) = (mean(a), mean(b));
    let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
        a.iter().zip(b).map(|(a, b)| f(a - of_a, b - of_b)).sum()
    };
    sum(&|a, b| a * b) / (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_that_goes_with_the_input() {
        let input = [1.0, 2.0, 4.0, 3.0];
        assert!((correlation(&input, &[-2.0, -4.0, -8.0, -6.0]) + 1.0).abs() < 1e-12);
        let rows = [vec![0.5; 4], vec![0.1, -0.1, 0.1, 0.2], vec![-0.1, -0.2, -0.4, -0.3]];
        assert_eq!(nearest(&input, &rows).unwrap().unit, 2);
        assert!(nearest(&input, &rows[..1]).is_none());
    }
}

//! Forecasts that need no network: what a network has to beat.

use lab_harness::Error;

use super::Windows;
use super::algebra::Matrix;

/// As it was: the last value of the window.
///
/// # Panics
/// The window is empty.
pub fn persistence(window: &[f64]) -> f64 {
    *window.last().expect("a window has values")
}

/// The `steps` values after `window`, each forecast from those before it, forecasts among them.
pub fn free_run(window: &[f64], steps: usize, mut next: impl FnMut(&[f64]) -> f64) -> Vec<f64> {
    let mut all = window.to_vec();
    for n in 0..steps {
        let value = next(&all[n..]);
        all.push(value);
    }
    all.split_off(window.len())
}

/// A linear autoregressive model: the next value is a weighted sum of those of the window, and a
/// constant; the weights are those of the least squares.
///
/// Where several fit alike (of a sine two points say all) they are the smallest.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// The weight of each value of the window, the oldest first.
    pub weights: Vec<f64>,
    /// What is added.
    pub constant: f64,
}

/// Singular values below this share of the largest are taken for roundings.
const RANK: f64 = 1e-10;

/// Windows that are looked at together.
const CHUNK: usize = 1024;

impl Linear {
    /// Fitted to windows: by QR, a chunk at a time, so that the matrix of all of them never stands
    /// in memory, and by the singular values of what is left of it.
    ///
    /// # Errors
    /// The windows hold values for which no weights were found: such as are too large to square.
    pub fn fit(windows: &Windows<'_>) -> Result<Self, Error> {
        let columns = windows.window() + 1;
        // Each row: the window, 1, and what comes next.
        let mut triangle = Matrix::new(columns + 1, Vec::new());
        for first in (0..windows.len()).step_by(CHUNK) {
            for n in first..windows.len().min(first + CHUNK) {
                let (window, next) = windows.get(n);
                triangle.push_row(window.iter().copied().chain([1.0, next]));
            }
            triangle = triangle.triangle();
        }
        let mut left = Matrix::new(columns, Vec::new());
        let mut right = Vec::new();
        for row in 0..triangle.rows().min(columns) {
            let (own, next) = triangle.row(row).split_at(columns);
            left.push_row(own.iter().copied());
            right.push(next[0]);
        }
        let failed = || {
            let got = "others".to_owned();
            Error::bad("series", "values that a linear model can be fitted to", got)
        };
        let rows = (0..left.rows()).flat_map(|row| left.row(row));
        if rows.chain(&right).any(|v| !v.is_finite()) {
            return Err(failed());
        }
        let mut weights = left.least_squares(&right, RANK).ok_or_else(failed)?;
        if weights.iter().any(|v| !v.is_finite()) {
            return Err(failed());
        }
        let constant = weights.pop().expect("a weight of the constant");
        Ok(Self { weights, constant })
    }

    /// The value after a window.
    ///
    /// # Panics
    /// The window has another length.
    pub fn next(&self, window: &[f64]) -> f64 {
        assert_eq!(window.len(), self.weights.len(), "window");
        self.constant + self.weights.iter().zip(window).map(|(w, v)| w * v).sum::<f64>()
    }
}

//! Forecasts that need no network: what a network has to beat.

use lab_harness::Error;
use nalgebra::{DMatrix, DVector};

use super::Windows;

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
        let mut triangle = DMatrix::<f64>::zeros(0, columns + 1);
        for first in (0..windows.len()).step_by(CHUNK) {
            let rows = CHUNK.min(windows.len() - first);
            let above = triangle.nrows();
            let mut chunk = triangle.resize_vertically(above + rows, 0.0);
            for n in 0..rows {
                let (window, next) = windows.get(first + n);
                let row = window.iter().copied().chain([1.0, next]);
                row.enumerate().for_each(|(c, value)| chunk[(above + n, c)] = value);
            }
            triangle = chunk.qr().r();
        }
        let rows = triangle.nrows().min(columns);
        let left = triangle.view((0, 0), (rows, columns)).into_owned();
        let right: DVector<f64> = triangle.view((0, columns), (rows, 1)).column(0).into_owned();
        let failed = || {
            let got = "others".to_owned();
            Error::bad("series", "values that a linear model can be fitted to", got)
        };
        // Of a matrix that is not finite the iteration would have no end.
        if left.iter().chain(&right).any(|v| !v.is_finite()) {
            return Err(failed());
        }
        let svd = left.svd(true, true);
        let largest = svd.singular_values.max();
        let weights = svd.solve(&right, RANK * largest).map_err(|_| failed())?;
        let constant = weights[columns - 1];
        Ok(Self { weights: weights.as_slice()[..columns - 1].to_vec(), constant })
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

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Errors, Series};

    /// x_n = 0.5 x_{n−1} − 0.3 x_{n−2} + 2, and what drives it.
    fn driven(len: usize, noise: f64) -> Vec<f64> {
        let mut values = vec![1.0, -2.0];
        for n in 2..len {
            let from_outside = noise * ((n * n) as f64 * 0.7).sin();
            values.push(0.5 * values[n - 1] - 0.3 * values[n - 2] + 2.0 + from_outside);
        }
        values
    }

    #[test]
    fn the_weights_of_a_recurrence_are_found() {
        // More windows than a chunk.
        let values = driven(3000, 0.0);
        for len in [6, 40, 3000] {
            let windows = Windows::new(&values[..len], 2, 0..len).unwrap();
            let linear = Linear::fit(&windows).unwrap();
            let found = [linear.weights[0], linear.weights[1], linear.constant];
            for (found, expected) in found.into_iter().zip([-0.3, 0.5, 2.0]) {
                assert!((found - expected).abs() < 1e-9, "{len}: {linear:?}");
            }
        }
    }

    #[test]
    fn no_other_weights_have_smaller_squares() {
        let values = driven(2500, 1.0);
        let windows = Windows::new(&values, 3, 0..values.len()).unwrap();
        let fitted = Linear::fit(&windows).unwrap();
        let least = windows.errors(|w| fitted.next(w)).rmse;
        for at in 0..4 {
            for by in [-1e-3, 1e-3] {
                let mut other = fitted.clone();
                match other.weights.get_mut(at) {
                    Some(weight) => *weight += by,
                    None => other.constant += by,
                }
                assert!(windows.errors(|w| other.next(w)).rmse > least, "{at} {by}");
            }
        }
    }

    #[test]
    fn fewer_windows_than_weights_are_fitted_exactly() {
        let values = driven(8, 1.0);
        let windows = Windows::new(&values, 6, 0..8).unwrap();
        let linear = Linear::fit(&windows).unwrap();
        assert!(windows.errors(|w| linear.next(w)).rmse < 1e-9);
    }

    #[test]
    fn a_sine_runs_on_for_long() {
        let sine = Series::sine(1400, 1.0, 0).values;
        let windows = Windows::new(&sine, 20, 0..1000).unwrap();
        let linear = Linear::fit(&windows).unwrap();
        let run = free_run(&sine[980..1000], 400, |w| linear.next(w));
        assert!(Errors::of(&run, &sine[1000..]).rmse < 1e-6);
        let still = free_run(&sine[980..1000], 400, persistence);
        assert!(still.iter().all(|v| *v == sine[999]));
    }
}

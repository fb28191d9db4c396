//! What hidden states look like over time.

use nalgebra::{DMatrix, SymmetricEigen};
use serde::Serialize;

/// A few numbers about the states of so many units.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StateSummary {
    /// Steps.
    pub steps: usize,
    /// Units.
    pub units: usize,
    /// Units with a deviation below 0.01: they say nothing.
    pub still: usize,
    /// Units with |h| above 0.95 at half of the steps or more: their gates hardly move.
    pub saturated: usize,
    /// Principal components that hold 95 % of the variance of all units together: in how many
    /// directions the state moves.
    pub directions: usize,
}

const STILL: f64 = 0.01;
const SATURATED: f64 = 0.95;
const SHARE: f64 = 0.95;

impl StateSummary {
    /// Of states \[steps, units\].
    ///
    /// # Panics
    /// `states` is empty or not of rows of `units`, or holds what is not finite.
    pub fn of(states: &[f64], units: usize) -> Self {
        assert!(!states.is_empty() && states.len().is_multiple_of(units), "states");
        assert!(states.iter().all(|v| v.is_finite()), "states that are finite");
        let mut centred = DMatrix::from_row_slice(states.len() / units, units, states);
        let steps = centred.nrows();
        let mut still = 0;
        let mut saturated = 0;
        for mut unit in centred.column_iter_mut() {
            saturated +=
                usize::from(unit.iter().filter(|v| v.abs() > SATURATED).count() * 2 >= steps);
            let mean = unit.mean();
            unit.add_scalar_mut(-mean);
            still += usize::from((unit.norm_squared() / steps as f64).sqrt() < STILL);
        }
        // Both products have the same eigenvalues but for zeros.
        let product = if steps < units {
            &centred * centred.transpose()
        } else {
            centred.transpose() * &centred
        };
        let mut variances: Vec<f64> = SymmetricEigen::new(product).eigenvalues.as_slice().to_vec();
        variances.sort_by(|a, b| b.total_cmp(a));
        let all: f64 = variances.iter().sum();
        let mut held = 0.0;
        let mut directions = 0;
        while directions < variances.len() && held < SHARE * all {
            held += variances[directions];
            directions += 1;
        }
        Self { steps, units, still, saturated, directions }
    }
}

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
        let product = match steps < units {
            true => &centred * centred.transpose(),
            false => centred.transpose() * &centred,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_counted_by_what_they_do() {
        // One that swings, its double, one that is shut, one that stands still, one apart.
        let row = |n: usize| {
            let t = n as f64 * 0.37;
            [0.4 * t.sin(), -0.8 * t.sin(), 0.99, 0.3, 0.5 * (2.3 * t).cos()]
        };
        let states: Vec<f64> = (0..200).flat_map(row).collect();
        let summary = StateSummary::of(&states, 5);
        let expected = StateSummary { steps: 200, units: 5, still: 2, saturated: 1, directions: 2 };
        assert_eq!(summary, expected);
        // Fewer steps than units.
        assert_eq!(StateSummary::of(&states[..10], 5).steps, 2);
        assert_eq!(StateSummary::of(&states[..10], 5).directions, 1);
        assert_eq!(StateSummary::of(&[0.5; 5], 5).directions, 0);
    }
}

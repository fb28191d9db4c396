//! What hidden states look like over time.

use serde::Serialize;

use super::algebra::Matrix;

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
        let steps = states.len() / units;
        let mut centred = Vec::with_capacity(states.len());
        let mut still = 0;
        let mut saturated = 0;
        for unit in 0..units {
            let own = || states.iter().skip(unit).step_by(units);
            saturated += usize::from(own().filter(|v| v.abs() > SATURATED).count() * 2 >= steps);
            let mean = own().sum::<f64>() / steps as f64;
            let square: f64 = own().map(|v| (v - mean).powi(2)).sum();
            still += usize::from((square / steps as f64).sqrt() < STILL);
            centred.extend(own().map(|v| v - mean));
        }
        // A row a unit. Both products have the same eigenvalues but for zeros.
        let centred = Matrix::new(steps, centred);
        let variances = if steps < units { centred.transposed() } else { centred };
        let variances = variances.by_own_transpose().eigenvalues();
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

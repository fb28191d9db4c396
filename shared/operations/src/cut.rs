//! A forward pass and its backward pass, from a plan of both.

use lab_harness::{Error, Plan};

/// A plan of both passes, or of the forward pass alone, and what has made it.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    /// `vlstm_fwbw_v4:v1_together`.
    pub(crate) version: String,
    /// `eps=1e-6` and so on.
    pub(crate) options: Vec<String>,
    pub(crate) plan: Plan,
}

/// A plan of both passes, cut where the gradient from above is first needed.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) version: String,
    pub(crate) options: Vec<String>,
    pub(crate) forward: Plan,
    pub(crate) backward: Plan,
}

impl Cut {
    /// Cuts a plan before the first step that reads one of these slots; the plan itself where that cannot be.
    pub(crate) fn before(whole: Made, upstream: &[&str]) -> Result<Self, Box<Made>> {
        match whole.plan.split_before(upstream) {
            Some([forward, backward]) => {
                let Made { version, options, .. } = whole;
                Ok(Self { version, options, forward, backward })
            }
            None => Err(Box::new(whole)),
        }
    }

    /// The same of a version that always can be cut.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn of_two_passes(whole: Made, upstream: &[&str]) -> Result<Self, Error> {
        Self::before(whole, upstream).map_err(|whole| {
            Error::bad("version", "a forward pass before its backward pass", whole.version)
        })
    }

    /// The backward pass alone, for a plan that takes what is saved from another.
    pub(crate) fn backward_of(whole: Made, upstream: &[&str]) -> Made {
        match Self::before(whole, upstream) {
            Ok(Self { version, options, backward, .. }) => {
                Made { version, options, plan: backward }
            }
            Err(whole) => *whole,
        }
    }
}

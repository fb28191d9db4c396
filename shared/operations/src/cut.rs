//! A forward pass and its backward pass, from a plan of both.

use lab_harness::plan::{Included, Slot};
use lab_harness::{Error, Plan};

use crate::saved::{Origin, Saved, Upward};

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
    version: String,
    options: Vec<String>,
    forward: Plan,
    backward: Plan,
}

impl Cut {
    /// Cuts a plan before the first step that reads one of these slots; the plan itself where that cannot be.
    pub(crate) fn before(whole: Made, upstream: &[&str]) -> Result<Self, Made> {
        match whole.plan.split_before(upstream) {
            Some([forward, backward]) => {
                let Made { version, options, .. } = whole;
                Ok(Self { version, options, forward, backward })
            }
            None => Err(whole),
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

    /// Adds the forward pass, which reads those of the inputs that it names.
    pub(crate) fn add_forward<O>(
        self,
        plan: &mut Plan,
        inputs: &[(&str, Slot)],
    ) -> Result<(Included, Saved<O>), Error> {
        let Self { version, options, forward, backward } = self;
        let of_forward = inputs.iter().copied().filter(|(name, _)| forward.slot(name).is_some());
        let included = plan.include(&forward, &of_forward.collect::<Vec<_>>())?;
        let own = |name: &str| inputs.iter().find(|(own, _)| *own == name).map(|(_, slot)| *slot);
        let slots = backward.slots().iter().filter(|facts| !facts.name.is_empty());
        let given = slots.filter_map(|facts| {
            let slot = own(&facts.name).or_else(|| included.find(&facts.name))?;
            Some((facts.name.clone(), slot))
        });
        let upward = Upward { given: given.collect(), backward };
        let origin = Origin { versions: [version.clone(), version], options };
        Ok((included, Saved::new(origin, upward)))
    }

    /// The backward pass alone, for a plan that takes what is saved from another.
    pub(crate) fn backward_of(whole: Made, upstream: &[&str]) -> Made {
        match Self::before(whole, upstream) {
            Ok(Self { version, options, backward, .. }) => {
                Made { version, options, plan: backward }
            }
            Err(whole) => whole,
        }
    }
}

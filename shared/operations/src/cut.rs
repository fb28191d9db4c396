//! A forward pass and its backward pass, from a plan of both.

use lab_harness::plan::{Included, Slot};
use lab_harness::{Error, Plan};

/// A plan of both passes, cut where the gradient from above is first needed.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    forward: Plan,
    backward: Plan,
}

/// The backward pass, and the slots that it reads of the forward pass: its inputs, its outputs and what it has left.
#[derive(Clone, Debug)]
pub(crate) struct Upward {
    backward: Plan,
    given: Vec<(String, Slot)>,
}

impl Cut {
    /// Cuts a plan before the first step that reads one of these slots; the plan itself where that cannot be.
    pub(crate) fn before(whole: Plan, upstream: &[&str]) -> Result<Self, Plan> {
        match whole.split_before(upstream) {
            Some([forward, backward]) => Ok(Self { forward, backward }),
            None => Err(whole),
        }
    }

    /// Adds the forward pass, which reads those of the inputs that it names.
    pub(crate) fn add_forward(
        self,
        plan: &mut Plan,
        inputs: &[(&str, Slot)],
    ) -> Result<(Included, Upward), Error> {
        let Self { forward, backward } = self;
        let of_forward = inputs.iter().copied().filter(|(name, _)| forward.slot(name).is_some());
        let included = plan.include(&forward, &of_forward.collect::<Vec<_>>())?;
        let own = |name: &str| inputs.iter().find(|(own, _)| *own == name).map(|(_, slot)| *slot);
        let slots = backward.slots().iter().filter(|facts| !facts.name.is_empty());
        let given = slots.filter_map(|facts| {
            let slot = own(&facts.name).or_else(|| included.find(&facts.name))?;
            Some((facts.name.clone(), slot))
        });
        let given = given.collect();
        Ok((included, Upward { backward, given }))
    }
}

impl Upward {
    /// A backward pass that makes its forward pass again.
    pub(crate) fn anew(both: Plan, inputs: &[(&str, Slot)]) -> Self {
        let given = inputs.iter().map(|(name, slot)| ((*name).to_owned(), *slot)).collect();
        Self { backward: both, given }
    }

    /// Adds it, with the gradients from above.
    pub(crate) fn add(
        &self,
        plan: &mut Plan,
        upstream: &[(&str, Slot)],
    ) -> Result<Included, Error> {
        let own = self.given.iter().map(|(name, slot)| (name.as_str(), *slot));
        plan.include(&self.backward, &own.chain(upstream.iter().copied()).collect::<Vec<_>>())
    }
}

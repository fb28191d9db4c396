//! What a forward pass saves for its backward pass: in its own plan, and as a value that another plan takes.

use std::marker::PhantomData;

use lab_device::ElementType;
use lab_harness::plan::{Included, Slot, SlotFacts, SlotKind};
use lab_harness::{Binder, Binding, Error, Plan};

use crate::Vlstm;
use crate::cut::{Cut, Made};

/// The versions of the two passes, and the options that both were made under.
#[derive(Clone, Debug)]
struct Origin {
    versions: [String; 2],
    options: Vec<String>,
}

/// A backward pass, and the slots that it reads of the forward pass: its inputs, its outputs and what it has left.
#[derive(Clone, Debug)]
struct Upward {
    backward: Plan,
    given: Vec<(String, Slot)>,
}

/// What the forward pass of an operation has saved, and the backward pass that reads it. No backward pass writes it.
///
/// Both passes may be in one plan. Or the forward pass's plan exports what is saved, and the backward pass's plan imports it:
///
/// ```no_run
/// # use lab_harness::{Error, Plan, plan::Slot};
/// # use lab_operations::Vlstm;
/// # fn add(forward: &mut Plan, backward: &mut Plan, vlstm: Vlstm, dh: Slot) -> Result<(), Error> {
/// let (outputs, saved) = vlstm.add_forward_saving(forward)?;
/// let export = saved.export(forward)?;
/// let imported = vlstm.import(backward, &export)?;
/// let gradients = vlstm.add_backward(backward, &imported, dh)?;
/// # Ok(())
/// # }
/// # fn run(forward: Plan, backward: Plan, export: lab_operations::Export, imported: lab_operations::Saved) -> Result<(), Error> {
/// let mut forward = forward.bind().finish()?;
/// let mut backward = imported.share(backward.bind(), &export, &forward)?.finish()?;
/// forward.run()?;
/// backward.run()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Saved<O = Vlstm> {
    origin: Origin,
    upward: Upward,
    operation: PhantomData<fn() -> O>,
}

/// What a forward pass has saved, without its plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The version of the forward pass, and the version whose backward pass reads what is saved. They differ where a version makes
    /// both passes in one launch: then the backward pass makes the forward pass again, and only inputs are saved.
    pub versions: [String; 2],
    /// The options of both, `eps=1e-6` and so on.
    pub options: Vec<String>,
    /// All that the backward pass reads.
    pub tensors: Vec<SavedTensor>,
}

/// A tensor that a backward pass reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedTensor {
    /// As the version's plan names it: `q`, `h`, `left 12`.
    pub name: String,
    /// Numbers, or structs.
    pub element: ElementType,
    /// Row-major, without gaps.
    pub shape: Vec<usize>,
    /// Where the forward pass's plan has it. That plan keeps it from run to run.
    pub slot: Slot,
}

impl SavedTensor {
    fn is_like(&self, facts: &SlotFacts) -> bool {
        (self.element, &self.shape) == (facts.element, &facts.shape)
    }
}

impl Cut {
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
}

fn describe(element: ElementType, shape: &[usize]) -> String {
    format!("{element} {shape:?}")
}

impl<O> Saved<O> {
    fn new(origin: Origin, upward: Upward) -> Self {
        Self { origin, upward, operation: PhantomData }
    }

    /// Of a version that makes both passes in one launch: its backward pass makes the forward pass again, from the inputs.
    pub(crate) fn of_inputs(forward: String, both: Made, inputs: &[(&str, Slot)]) -> Self {
        let Made { version, options, plan: backward, .. } = both;
        let given = inputs.iter().map(|(name, slot)| ((*name).to_owned(), *slot)).collect();
        let origin = Origin { versions: [forward, version], options };
        Self::new(origin, Upward { backward, given })
    }

    /// The version whose backward pass reads it, `vlstm_fwbw_v4:v1_together`.
    pub fn version(&self) -> &str {
        &self.origin.versions[1]
    }

    /// The version of the forward pass, and [`Saved::version`].
    pub fn versions(&self) -> [&str; 2] {
        self.origin.versions.each_ref().map(String::as_str)
    }

    /// What is saved under this name ([`SavedTensor::name`]), in the plan that this is of.
    pub fn slot(&self, name: &str) -> Option<Slot> {
        self.upward.given.iter().find(|(own, _)| own == name).map(|(_, slot)| *slot)
    }

    /// Adds the backward pass, with the gradients from above.
    pub(crate) fn add_backward(
        &self,
        plan: &mut Plan,
        upstream: &[(&str, Slot)],
    ) -> Result<Included, Error> {
        let Upward { backward, given } = &self.upward;
        let own = given.iter().map(|(name, slot)| (name.as_str(), *slot));
        plan.include(backward, &own.chain(upstream.iter().copied()).collect::<Vec<_>>())
    }

    /// What must outlast a run of the forward pass's plan for a backward pass in another plan. The plan keeps it from here on
    /// ([`Plan::keep`]).
    ///
    /// # Errors
    /// The plan is not the one that the forward pass was added to.
    pub fn export(&self, plan: &mut Plan) -> Result<Export, Error> {
        let Self { origin: Origin { versions, options }, upward, .. } = self;
        let mut tensors = Vec::with_capacity(upward.given.len());
        for (name, slot) in &upward.given {
            plan.check_own(*slot)?;
            let facts = upward.backward.slots().iter().find(|facts| facts.has_name(name));
            let SlotFacts { element, shape, .. } = facts.expect("a slot of the backward pass");
            tensors.push(SavedTensor {
                name: name.clone(),
                element: *element,
                shape: shape.clone(),
                slot: *slot,
            });
        }
        tensors.iter().for_each(|tensor| plan.keep(tensor.slot));
        Ok(Export { versions: versions.clone(), options: options.clone(), tensors })
    }

    /// Adds what is saved as inputs of a plan, under the names of [`Export::tensors`].
    ///
    /// # Errors
    /// The plan's version, its options, or a tensor that it reads is another than the one exported.
    pub(crate) fn import(plan: &mut Plan, whole: Made, export: &Export) -> Result<Self, Error> {
        let Made { version, options, upstream, plan: backward } = whole.backward();
        if version != export.versions[1] {
            return Err(Error::bad("version of what is saved", version, &export.versions[1]));
        }
        if options != export.options {
            let [expected, got] = [&options, &export.options].map(|all| all.join(", "));
            return Err(Error::bad("options of what is saved", expected, got));
        }
        let is_saved = |facts: &&SlotFacts| {
            let is_input = facts.kind == SlotKind::Input && !upstream.contains(&&*facts.name);
            is_input || facts.is_left()
        };
        let needed: Vec<&SlotFacts> = backward.slots().iter().filter(is_saved).collect();
        let refuse = |name: &str, expected: String, got: String| {
            Err(Error::Tensor { name: name.to_owned(), expected, got })
        };
        for facts in &needed {
            let found = export.tensors.iter().find(|tensor| tensor.name == facts.name);
            if !found.is_some_and(|tensor| tensor.is_like(facts)) {
                let got = found.map_or_else(|| "none".into(), |t| describe(t.element, &t.shape));
                return refuse(&facts.name, describe(facts.element, &facts.shape), got);
            }
        }
        let is_needed =
            |tensor: &&SavedTensor| needed.iter().any(|facts| facts.name == tensor.name);
        if let Some(tensor) = export.tensors.iter().find(|tensor| !is_needed(tensor)) {
            let got = describe(tensor.element, &tensor.shape);
            return refuse(&tensor.name, "none".into(), got);
        }
        let given = needed.into_iter().map(|SlotFacts { name, element, shape, .. }| {
            (name.clone(), plan.input_of(name, *element, shape))
        });
        let given = given.collect();
        let origin = Origin { versions: export.versions.clone(), options };
        Ok(Self::new(origin, Upward { backward, given }))
    }

    /// Lets the inputs that an import has added be what a binding of the forward pass's plan holds, with no copy between. Whoever
    /// runs both on different streams sees to their order.
    ///
    /// # Errors
    /// The binder is of another plan than the one that imported, or the binding of another than the one that exported; an input
    /// is bound already.
    pub fn share<'a>(
        &self,
        binder: Binder<'a>,
        export: &Export,
        forward: &Binding,
    ) -> Result<Binder<'a>, Error> {
        self.upward.given.iter().try_fold(binder, |binder, (name, slot)| {
            let found = export.tensors.iter().find(|tensor| tensor.name == *name);
            let theirs = found.ok_or_else(|| Error::Tensor {
                name: name.clone(),
                expected: "an exported tensor".into(),
                got: "none of that name".into(),
            })?;
            binder.share_slot(*slot, forward, theirs.slot)
        })
    }
}

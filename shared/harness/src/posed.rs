//! A problem with its inputs and its reference: made once, for all versions of a family.

use lab_device::DType;

use crate::compare::{Magnitudes, against};
use crate::{Comparison, Problem, Tensors, Version};

/// A problem as all versions of a family in a stage see it: the inputs, and what must come out.
/// At 8192³ the reference takes longer than every version together, so it is computed once.
pub struct Posed {
    /// The problem.
    pub problem: Problem,
    /// Its inputs.
    pub inputs: Tensors,
    reference: Vec<(&'static str, Vec<f64>)>,
    magnitudes: Magnitudes,
}

impl std::fmt::Debug for Posed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Posed").field("problem", &self.problem).finish_non_exhaustive()
    }
}

impl Posed {
    /// Draws the inputs and computes the reference and its magnitudes, as `version` says. They are the same for every
    /// version of its family.
    pub fn new(version: &dyn Version, problem: Problem) -> Self {
        let inputs = version.inputs(&problem);
        let reference = version.reference(&inputs, &problem.options);
        let magnitudes = version.magnitudes(&inputs, &problem.options, &reference);
        Self { problem, inputs, reference, magnitudes }
    }

    /// What must come out under this name, in f64.
    pub fn reference(&self, name: &str) -> Option<&[f64]> {
        self.reference.iter().find(|r| r.0 == name).map(|r| r.1.as_slice())
    }

    /// Outputs of a run on these inputs against the reference, with the bounds of `version` for a
    /// run in `dtype`.
    ///
    /// # Panics
    /// An output of the version is missing or has another number of elements: a mistake of the
    /// version or peer.
    pub fn compare(
        &self,
        version: &dyn Version,
        outputs: &Tensors,
        dtype: DType,
    ) -> Vec<Comparison> {
        let expected = version.info().outputs_under(&self.problem.options);
        against(&expected, &self.reference, &self.magnitudes, outputs, dtype)
    }
}

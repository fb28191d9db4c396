//! A problem with its inputs and its reference: made once, for all versions of a family.

use lab_device::DType;

use crate::compare::{Magnitudes, against};
use crate::heads::Heads;
use crate::{Comparison, Problem, Tensors, Version};

/// A problem as all versions of a family in a stage see it: the inputs, and what must come out.
/// At 8192³ the reference takes longer than every version together, so it is computed once.
pub struct Posed {
    /// The problem.
    pub problem: Problem,
    /// Its inputs.
    pub inputs: Tensors,
    /// What is judged, where that is not the whole.
    heads: Option<Heads>,
    expected: Expected,
}

/// What must come out, and what errors of it are relative to.
struct Expected {
    reference: Vec<(&'static str, Vec<f64>)>,
    magnitudes: Magnitudes,
}

impl Expected {
    /// Of these heads, or of all.
    fn of(
        version: &dyn Version,
        problem: &Problem,
        inputs: &Tensors,
        heads: Option<&Heads>,
    ) -> Self {
        let cut = heads.map(|heads| heads.cut(inputs));
        let inputs = cut.as_ref().unwrap_or(inputs);
        let reference = version.reference(inputs, &problem.options);
        let magnitudes = version.magnitudes(inputs, &problem.options, &reference);
        Self { reference, magnitudes }
    }
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
        Self::with(version, problem, None)
    }

    /// The same; where the reference of all heads would take the CPU long, of [some of them](Heads::affordable).
    pub fn affordable(version: &dyn Version, problem: Problem) -> Self {
        let all = version.info().family.independent_heads(&problem.dims);
        let cost = version.cost(&problem.dims, problem.dtype);
        let heads = Heads::affordable(all, cost, problem.seed);
        Self::with(version, problem, heads)
    }

    /// The same of these heads, or of the whole.
    pub fn with(version: &dyn Version, problem: Problem, heads: Option<Heads>) -> Self {
        let inputs = version.inputs(&problem);
        let expected = Expected::of(version, &problem, &inputs, heads.as_ref());
        Self { problem, inputs, heads, expected }
    }

    /// The heads that results are judged on; `None` where that is the whole problem.
    pub fn heads(&self) -> Option<&Heads> {
        self.heads.as_ref()
    }

    /// What must come out under this name, in f64: of the [heads](Self::heads) that are judged.
    pub fn reference(&self, name: &str) -> Option<&[f64]> {
        self.expected.reference.iter().find(|r| r.0 == name).map(|r| r.1.as_slice())
    }

    /// Outputs of a run on these inputs against the reference, with the bounds of `version` for a
    /// run in `dtype`. Of a problem that is judged on some heads, these, each whole; and one more that has an element that is no
    /// finite number, if there is one: what was not written does not pass.
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
        let against = |expected: &Expected, outputs: &Tensors| {
            let named = version.info().outputs_under(&self.problem.options);
            against(&named, &expected.reference, &expected.magnitudes, outputs, dtype)
        };
        let Some(heads) = &self.heads else { return against(&self.expected, outputs) };
        let of_heads = |heads: &Heads, expected: &Expected| {
            let mut all = against(expected, &heads.cut(outputs));
            for comparison in &mut all {
                let whole = &outputs[comparison.name].shape;
                comparison.worst.iter_mut().for_each(|worst| heads.place(&mut worst.at, whole));
            }
            all
        };
        let mut all = of_heads(heads, &self.expected);
        if let Some(other) = heads.not_finite_beside(outputs) {
            let other = Heads::new(&[other], heads.counts()[1]);
            let expected = Expected::of(version, &self.problem, &self.inputs, Some(&other));
            let further = of_heads(&other, &expected).into_iter();
            all.iter_mut()
                .zip(further)
                .filter(|(own, more)| more.share() > own.share())
                .for_each(|(own, more)| *own = more);
        }
        all
    }
}

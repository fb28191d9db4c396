//! What a family is measured by: its versions, on which problems, beside what.

use lab_device::DType;
use lab_harness::{Dims, Peer, Version};

use super::asked::{Asked, Family};

/// A family's versions that run on the device, what is asked of them, and what stands beside them.
pub(super) struct Chosen {
    pub(super) family: &'static str,
    pub(super) versions: Family,
    pub(super) asked: Asked,
    /// The one type; all where there is none.
    pub(super) dtype: Option<DType>,
    pub(super) peers: Vec<&'static dyn Peer>,
}

impl Chosen {
    /// Those that take a problem.
    pub(super) fn those_that_take(&self, dtype: DType, dims: &Dims) -> Family {
        let takes = |v: &dyn Version| {
            v.info().dtypes.contains(&dtype) && self.asked.problems(v, dtype).contains(dims)
        };
        self.versions.iter().copied().filter(|(_, v)| takes(*v)).collect()
    }

    /// The problems that they are timed on, each once.
    pub(super) fn problems(&self) -> Vec<(DType, Dims)> {
        let mut problems: Vec<(DType, Dims)> = Vec::new();
        for (_, version) in &self.versions {
            let dtypes = version.info().dtypes.iter().copied();
            for dtype in dtypes.filter(|of| self.dtype.is_none_or(|only| only == *of)) {
                let all =
                    self.asked.problems(*version, dtype).into_iter().map(|dims| (dtype, dims));
                let new: Vec<_> = all.filter(|p| !problems.contains(p)).collect();
                problems.extend(new);
            }
        }
        problems
    }

    /// Where what stands beside them comes: behind the last of them.
    pub(super) fn last(&self) -> usize {
        self.versions.iter().map(|v| v.0).max().unwrap_or(0)
    }
}

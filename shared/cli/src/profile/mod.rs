//! What a run has asked of the memory system, joined with the source that asked.

mod banks;
mod html;
mod picture;
mod sectors;
mod text;

use lab_checker::counted::Counted;
use lab_device::DType;
use lab_device::emulator::{Counts, Line, Operation, Profile};
use lab_harness::{Comparison, Cost, Dims, Info};
use lab_registry::source;

pub(crate) use html::page;
pub(crate) use lab_checker::counted::{Place, excess, number, ratio, said, settled, unit};
pub(crate) use text::print;

/// One profiled run.
pub(crate) struct Report<'a> {
    pub(crate) info: &'a Info,
    pub(crate) dims: Dims,
    pub(crate) dtype: DType,
    pub(crate) seed: u64,
    pub(crate) comparisons: Vec<Comparison>,
    pub(crate) cost: Cost,
    pub(crate) profile: Profile,
}

impl Report<'_> {
    pub(crate) fn passed(&self) -> bool {
        self.comparisons.iter().all(Comparison::passed)
    }

    /// `playg:transpose C=64,R=64 f32`
    pub(crate) fn title(&self) -> String {
        format!("{} {} {}", self.info.full_name(), self.dims, self.dtype)
    }

    /// What was counted, with the stages' sources.
    pub(crate) fn counted(&self) -> Counted<'_> {
        Counted { profile: &self.profile, source: &|file| source(file).map(str::to_owned) }
    }

    /// Sums by operation, of those that came up.
    pub(crate) fn totals(&self) -> Vec<(Operation, Counts)> {
        self.counted().totals()
    }

    /// Bytes that lanes asked of device memory.
    pub(crate) fn global_bytes(&self) -> u64 {
        self.lines().filter(|l| l.operation.global()).map(|l| l.counts.bytes).sum()
    }

    /// Sectors, or wavefronts: the sum over all lines that count in the unit of this one.
    pub(crate) fn total_in_unit_of(&self, operation: Operation) -> u64 {
        self.lines().filter(|l| unit(l.operation) == unit(operation)).map(|l| l.counts.cost).sum()
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        self.profile.lines.iter()
    }

    /// Whether no other line of the same unit wastes more, and this one wastes something.
    pub(crate) fn worst(&self, line: &Line) -> bool {
        self.counted().worst(line)
    }

    /// The files that have counted lines, the stage's own first.
    pub(crate) fn files(&self) -> Vec<&str> {
        self.counted().files()
    }

    /// The text of a file that a place names. A stage may launch kernels of another.
    pub(crate) fn source(&self, file: &str) -> Option<&'static str> {
        source(file)
    }
}

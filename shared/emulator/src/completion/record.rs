//! What the checks remember of an mbarrier beside its state: which phase it is in, who has arrived, what
//! has landed, and what that publishes.

use crate::clock::Gathered;
use crate::completion::mbarrier::Misuse;
use crate::report::{Finding, Kind};
use crate::shadow::Cell;

/// One mbarrier, since it was initialised.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Among those of its launch, in the order in which they were initialised.
    pub(crate) number: u32,
    /// Its block.
    pub(crate) block: u32,
    /// Complete phases.
    pub(crate) phase: u32,
    pub(crate) count: u32,
    /// Its initialisation, for as long as the block's clock remembers.
    pub(crate) made: Option<Cell>,
    /// Of this phase: by place, arrivals.
    pub(crate) arrived: Vec<(u16, u32)>,
    /// Of this phase: bytes that are expected.
    pub(crate) expected: u32,
    /// Of this phase: by place, bytes that have come.
    pub(crate) landed: Vec<(u16, u32)>,
    pub(crate) gathered: Gathered,
}

impl Record {
    /// Adds to what came from a place in this phase.
    pub(crate) fn note(list: &mut Vec<(u16, u32)>, place: u16, more: u32) {
        match list.iter_mut().find(|entry| entry.0 == place) {
            Some(entry) => entry.1 += more,
            None => list.push((place, more)),
        }
    }

    /// The phase is complete.
    pub(crate) fn turn(&mut self) {
        self.phase += 1;
        self.gathered.turn();
        self.arrived.clear();
        self.landed.clear();
        self.expected = 0;
    }

    /// `phase 3 (parity 1): 1 of 2 arrivals, 2048 of 16384 bytes`
    pub(crate) fn standing(&self) -> String {
        let sum = |list: &[(u16, u32)]| list.iter().map(|e| e.1).sum::<u32>();
        let mut text = format!(
            "phase {} (parity {}): {} of {} arrivals",
            self.phase,
            self.phase % 2,
            sum(&self.arrived),
            self.count
        );
        let came = sum(&self.landed);
        if self.expected > 0 || came > 0 {
            text += &format!(", {came} of {} bytes", self.expected);
        }
        text
    }
}

impl Misuse {
    /// What is wrong with a use of the barrier of this name.
    pub(crate) fn finding(self, name: &str) -> Finding {
        match self {
            Self::NotInitialised => Finding::new(
                Kind::Uninitialised,
                format!("uninitialised: {name} is used as an mbarrier, and nobody has made it one"),
            )
            .fix("let one thread call mbarrier_init, then all meet at a barrier, before its first use"),
            Self::Invalidated => Finding::new(
                Kind::Mbarrier,
                format!("{name} is used as an mbarrier after it was invalidated"),
            )
            .fix("initialise it again, or invalidate it when all have used it for the last time"),
            Self::InitialisedTwice => Finding::new(
                Kind::Mbarrier,
                format!("{name} is initialised, and it is an mbarrier already"),
            )
            .fix("let one thread initialise it once, or invalidate it before"),
            Self::TooMany { count } => Finding::new(
                Kind::Mbarrier,
                format!("more arrivals at {name} in one phase than its count, {count}"),
            )
            .fix("initialise it with as many as arrive in a phase, or wait before arriving again"),
            Self::Bytes => Finding::new(
                Kind::Mbarrier,
                format!("{name} counts at most {} bytes in a phase", super::mbarrier::MOST),
            )
            .fix("expect as many bytes as come, and let no more come than are expected"),
        }
    }
}

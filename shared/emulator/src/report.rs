//! What the emulator says when a kernel goes wrong.

use std::fmt;

/// Threads of one block that stand at the same place.
#[derive(Clone, Debug)]
pub struct Standing {
    /// `blockIdx`.
    pub block: [u32; 3],
    /// What they wait for or do: `__syncthreads`, `polls memory`, `exited`, …
    pub what: &'static str,
    /// `file:line:column`, where there is one.
    pub place: Option<String>,
    /// The mask of a warp collective.
    pub mask: Option<u32>,
    /// How many they are.
    pub count: usize,
    /// `threadIdx` of the first of them.
    pub first: [u32; 3],
    /// `threadIdx` of the last of them.
    pub last: [u32; 3],
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, first, last, count, .. } = self;
        write!(f, "block {}, ", Index(*block))?;
        match count {
            1 => write!(f, "thread {}", Index(*first))?,
            n => write!(f, "{n} threads {}..{}", Index(*first), Index(*last))?,
        }
        write!(f, ": {}", self.what)?;
        if let Some(mask) = self.mask {
            write!(f, " (mask {mask:#010x})")?;
        }
        if let Some(place) = &self.place {
            write!(f, " at {place}")?;
        }
        Ok(())
    }
}

/// A thread or block index, as CUDA programmers write it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Index(pub(crate) [u32; 3]);

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.0;
        write!(f, "({x},{y},{z})")
    }
}

/// Which of the checks found it; the names of compute-sanitizer's tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Check {
    /// Addresses that belong to nobody, misaligned or freed.
    Memory,
    /// Bytes that nobody wrote.
    Init,
    /// Accesses that nothing orders.
    Race,
    /// Barriers, collectives, waiting.
    Sync,
    /// The kernel stopped by itself: a trap, a division by zero.
    Stop,
}

impl Check {
    /// `memcheck`, `initcheck`, `racecheck`, `synccheck`, `stop`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memcheck",
            Self::Init => "initcheck",
            Self::Race => "racecheck",
            Self::Sync => "synccheck",
            Self::Stop => "stop",
        }
    }
}

/// What kind of thing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// An address outside of every allocation and array.
    OutOfBounds,
    /// An address in an allocation that was freed.
    UseAfterFree,
    /// An address that is no multiple of the access's size.
    Misaligned,
    /// An address that the processor refused.
    InvalidAddress,
    /// Shared memory of a block that may not have begun, or may have exited.
    AbsentBlock,
    /// A thread's stack is used up.
    StackOverflow,
    /// Bytes were read that nobody wrote.
    Uninitialised,
    /// A value was stored that a local variable never got.
    UninitialisedLocal,
    /// Bytes that a launch was to write got no value.
    NeverWritten,
    /// Two accesses to the same bytes, one of them a write, that nothing orders.
    Race,
    /// Memory was used while an asynchronous copy into it was under way.
    CopyInFlight,
    /// Memory was used that an earlier grid uses, which may not have ended.
    GridInFlight,
    /// An asynchronous access that may not see a plain write before it.
    UnfencedProxy,
    /// Memory that one launch both writes and takes for constant.
    ConstantWritten,
    /// A wgmma that may not see what the thread has done with its registers.
    UnfencedWgmma,
    /// A use of an mbarrier that it does not allow.
    Mbarrier,
    /// No thread can go on.
    Deadlock,
    /// Threads of one block met at barriers of different places.
    DivergentBarrier,
    /// Threads of one block met at barriers that do different things.
    MixedBarriers,
    /// Some blocks have exited, and the others wait for them in a grid-wide sync.
    GridSyncAbandoned,
    /// Nothing but polling has happened for the limit, or a loop has not called the runtime.
    Stalled,
    /// A block waits for another that may not have begun.
    AwaitsBlock,
    /// A warp collective by a lane that its own mask does not name, or of a bad width.
    BadCollective,
    /// A shuffle read a lane that does not take part.
    AbsentLane,
    /// A grid-wide sync in a launch that is not cooperative.
    GridSyncNotCooperative,
    /// A trap, an integer division by zero, an illegal instruction.
    Stopped,
}

impl Kind {
    /// Which of the checks found it.
    pub fn check(self) -> Check {
        match self {
            Self::OutOfBounds
            | Self::UseAfterFree
            | Self::Misaligned
            | Self::InvalidAddress
            | Self::AbsentBlock
            | Self::StackOverflow => Check::Memory,
            Self::Uninitialised | Self::UninitialisedLocal | Self::NeverWritten => Check::Init,
            Self::Race
            | Self::CopyInFlight
            | Self::GridInFlight
            | Self::UnfencedProxy
            | Self::ConstantWritten
            | Self::UnfencedWgmma => Check::Race,
            Self::Deadlock
            | Self::Mbarrier
            | Self::DivergentBarrier
            | Self::MixedBarriers
            | Self::GridSyncAbandoned
            | Self::Stalled
            | Self::AwaitsBlock
            | Self::BadCollective
            | Self::AbsentLane
            | Self::GridSyncNotCooperative => Check::Sync,
            Self::Stopped => Check::Stop,
        }
    }
}

/// One access of a finding.
#[derive(Clone, Debug)]
pub struct Access {
    /// `write of 4 bytes`, `atomic update of 4 bytes`, …
    pub what: String,
    /// `file:line:column`.
    pub place: String,
    /// Where that is in a shared header: the calls that led there, the innermost first.
    pub within: Vec<String>,
    /// `blockIdx`.
    pub block: [u32; 3],
    /// `threadIdx`.
    pub thread: [u32; 3],
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, place, within, block, thread } = self;
        write!(f, "{what} at {place} by block {}, thread {}", Index(*block), Index(*thread))?;
        within.iter().try_for_each(|caller| write!(f, "\n    called from {caller}"))
    }
}

/// A variable that the compiler warns of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Its name.
    pub name: String,
    /// Where it is declared, `file:line:column`.
    pub place: String,
}

/// What is wrong, and where.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What kind of thing.
    pub kind: Kind,
    /// What, in a line; memory by its array and index.
    pub message: String,
    /// The accesses that did it; of a race both, the earlier one first.
    pub accesses: Vec<Access>,
    /// Local variables of the same kernel file that the compiler thinks may get no value.
    pub suspects: Vec<Suspect>,
    /// Where threads stand, for what is about waiting.
    pub standing: Vec<Standing>,
    /// What is missing at the mbarriers that they wait for: lines.
    pub missing: Vec<String>,
    /// Why GPUs do what is meant all the same, though the language or its memory model does not promise it; `None`
    /// where they may not.
    pub formal: Option<&'static str>,
    /// What would mend it, in a sentence; empty where that cannot be said.
    pub fix: String,
    /// How often it was seen at the same places.
    pub count: u64,
}

impl Finding {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            accesses: Vec::new(),
            suspects: Vec::new(),
            standing: Vec::new(),
            missing: Vec::new(),
            formal: None,
            fix: String::new(),
            count: 1,
        }
    }

    pub(crate) fn standing(mut self, standing: Vec<Standing>) -> Self {
        self.standing = standing;
        self
    }

    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }

    /// Every place that it names, `file:line:column`.
    pub fn places(&self) -> impl Iterator<Item = &str> {
        let accesses = self.accesses.iter().flat_map(|a| {
            std::iter::once(a.place.as_str()).chain(a.within.iter().map(String::as_str))
        });
        let declared = self.suspects.iter().map(|s| s.place.as_str());
        accesses.chain(declared).chain(self.standing.iter().filter_map(|s| s.place.as_deref()))
    }
}

/// At most this many groups of threads are printed.
const SHOWN: usize = 16;

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        for access in &self.accesses {
            write!(f, "\n  {access}")?;
        }
        for suspect in &self.suspects {
            write!(f, "\n  perhaps '{}', declared at {}", suspect.name, suspect.place)?;
        }
        for line in &self.missing {
            write!(f, "\n  {line}")?;
        }
        for s in self.standing.iter().take(SHOWN) {
            write!(f, "\n  {s}")?;
        }
        if self.standing.len() > SHOWN {
            write!(f, "\n  … and {} more groups of threads", self.standing.len() - SHOWN)?;
        }
        if let Some(reason) = self.formal {
            write!(f, "\n  formal: {reason}")?;
        }
        if !self.fix.is_empty() {
            write!(f, "\n  fix: {}", self.fix)?;
        }
        if self.count > 1 {
            write!(f, "\n  seen {} times", self.count)?;
        }
        Ok(())
    }
}

/// All that was found in a launch; at least one.
#[derive(Clone, Debug)]
pub struct Findings {
    /// One for each kind and pair of places, in the order in which they were found.
    pub all: Vec<Finding>,
    /// Further ones that were left out.
    pub more: u64,
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.all.iter().enumerate() {
            let line = if index == 0 { "" } else { "\n" };
            write!(f, "{line}{finding}")?;
        }
        if self.more > 0 {
            write!(f, "\n… and {} more findings at other places", self.more)?;
        }
        Ok(())
    }
}

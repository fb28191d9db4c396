//! The ways in which a kernel is broken.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// A kind of mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    /// A barrier, or a wait for asynchronous copies, is gone.
    Barrier,
    /// A memory fence is gone.
    Fence,
    /// A variable or cell that starts from a constant starts from whatever is there.
    Initialisation,
    /// A condition lets one more through: `<` is `<=`, `>=` is `>`.
    OffByOne,
    /// A condition, or one part of it, is not asked.
    Guard,
    /// Two indices trade places.
    SwapIndices,
    /// An index or a loop advances by another stride.
    Stride,
    /// A loop ends a step early.
    LastStep,
    /// A kernel does nothing.
    EmptyKernel,
    /// In a header of instructions: one is not issued.
    Instruction,
    /// In a header of instructions: one is issued with another argument.
    Argument,
    /// In a header of instructions: a number is one more.
    Number,
}

impl Operator {
    /// Every operator.
    pub const ALL: [Self; 12] = [
        Self::Barrier,
        Self::Fence,
        Self::Initialisation,
        Self::OffByOne,
        Self::Guard,
        Self::SwapIndices,
        Self::Stride,
        Self::LastStep,
        Self::EmptyKernel,
        Self::Instruction,
        Self::Argument,
        Self::Number,
    ];

    /// Whether only headers of instructions are broken in this way.
    pub fn is_of_instructions(self) -> bool {
        matches!(self, Self::Instruction | Self::Argument | Self::Number)
    }

    /// Its name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Fence => "fence",
            Self::Initialisation => "initialisation",
            Self::OffByOne => "off-by-one",
            Self::Guard => "guard",
            Self::SwapIndices => "swap-indices",
            Self::Stride => "stride",
            Self::LastStep => "last-step",
            Self::EmptyKernel => "empty-kernel",
            Self::Instruction => "instruction",
            Self::Argument => "argument",
            Self::Number => "number",
        }
    }

    /// What it does.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Barrier => "a barrier removed",
            Self::Fence => "a fence removed",
            Self::Initialisation => "an initialisation removed",
            Self::OffByOne => "a bound off by one",
            Self::Guard => "a guard dropped",
            Self::SwapIndices => "two indices swapped",
            Self::Stride => "a stride changed",
            Self::LastStep => "the last step of a loop skipped",
            Self::EmptyKernel => "a kernel emptied",
            Self::Instruction => "an instruction's header that does not issue it",
            Self::Argument => "an instruction's header that hands on another argument",
            Self::Number => "a number of an instruction's header one more",
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Operator {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|o| o.name() == text).ok_or_else(|| Error::Bad {
            what: "operator".into(),
            expected: Self::ALL.map(Self::name).join(", "),
            got: format!("'{text}'"),
        })
    }
}

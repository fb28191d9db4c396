//! The ranks of a training, and how they share its work.

use std::fmt;
use std::sync::Arc;

use lab_device::{Communicator, DType};
use lab_harness::Error;

/// The ranks of a training, of which each has a device, and how they share its state.
#[derive(Clone, Debug)]
pub struct Ranks {
    /// This one's end.
    pub communicator: Arc<Communicator>,
    /// Whether each has only its part of the optimizer's state (ZeRO stage 1, Rajbhandari et al. 2020): moments, and masters where the
    /// model reads rounded ones. All ranks must then read it together: [`Trainer::parameters`], [`Trainer::gradients`] and
    /// [`Trainer::checkpoint`].
    ///
    /// [`Trainer::parameters`]: crate::Trainer::parameters
    /// [`Trainer::gradients`]: crate::Trainer::gradients
    /// [`Trainer::checkpoint`]: crate::Trainer::checkpoint
    pub shard_optimizer: bool,
    /// How they add up their gradients.
    pub sums: Sums,
}

impl Ranks {
    /// Each of which has all of the state.
    pub fn new(communicator: Arc<Communicator>) -> Self {
        Self { communicator, shard_optimizer: false, sums: Sums::default() }
    }

    /// What all ranks must have said alike.
    pub(crate) fn sharing(&self) -> String {
        let state = if self.shard_optimizer { "sharded" } else { "whole" };
        let how = if self.communicator.copies().is_ok() { "sent" } else { "summed" };
        format!("{state}, gradients {how} {}", self.sums)
    }
}

/// How ranks add up their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    /// What they are rounded to before: f32, which rounds nothing, or bf16, of half the bytes.
    pub dtype: DType,
    /// How much is summed at once.
    pub piece: SumPiece,
}

impl Default for Sums {
    fn default() -> Self {
        Self { dtype: DType::F32, piece: SumPiece::BySize }
    }
}

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in {}, {}", self.dtype, self.piece)
    }
}

/// How much of the gradients is summed at once. Pieces that are final are summed while the backward pass goes on; what is left, behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumPiece {
    /// A 32nd of the gradients, from 1024 elements to 4 M.
    BySize,
    /// About so many bytes.
    Bytes(usize),
    /// All of them, behind the backward pass.
    All,
}

impl SumPiece {
    /// Elements of a piece, of so many parameters.
    pub fn elements(self, parameters: usize, dtype: DType) -> usize {
        match self {
            Self::BySize => (parameters / 32).clamp(1 << 10, 1 << 22),
            Self::Bytes(bytes) => (bytes / dtype.size()).max(1),
            Self::All => parameters.max(1),
        }
    }
}

impl fmt::Display for SumPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BySize => write!(f, "in pieces"),
            Self::Bytes(bytes) if bytes % (1 << 20) == 0 => {
                write!(f, "in pieces of {} MiB", bytes >> 20)
            }
            Self::Bytes(bytes) => write!(f, "in pieces of {bytes} bytes"),
            Self::All => write!(f, "at once"),
        }
    }
}

/// Of a user's words: MiB of a piece, or `all`.
impl std::str::FromStr for SumPiece {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        const MOST: usize = 1 << 20;
        match text.parse() {
            _ if text == "all" => Ok(Self::All),
            Ok(mib @ 1..=MOST) => Ok(Self::Bytes(mib << 20)),
            _ => Err(Error::bad("piece of a sum", format!("1 to {MOST} MiB, or all"), text)),
        }
    }
}

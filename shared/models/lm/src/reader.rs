//! How a batch reads what a long prompt has before its first step.

use std::cell::Ref;

use lab_harness::{Binding, Error};

use crate::bucket::Of;
use crate::decoding::Blocks;
use crate::fresh::Fresh;
use crate::pieces::Pieces;
use crate::{Mixer, Writer};

/// Prompts from so many tokens on are read ahead of their first step; a shorter one is read a token a step, beside the other sequences.
const LONG: usize = 64;

/// Reads tokens of one sequence at a time ahead of its first step, into a state of its own.
pub(crate) enum Reader {
    /// Nothing is read ahead: in f32 no version of the vLSTM leaves its state.
    ByStep,
    /// Piece by piece.
    InPieces(Pieces),
    /// All at once: no version of attention goes on behind keys and values that are there.
    Whole(Box<Writer>),
}

impl Reader {
    /// The one that a model needs; pieces have so many positions at most, and weights are those of another binding.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn new(of: Of<'_>, longest: usize, weights: &Binding) -> Result<Self, Error> {
        let Of { device, model, store, types, room, .. } = of;
        if !Writer::reads_at_once(model, types.run()) {
            return Ok(Self::ByStep);
        }
        if model.mixers.has(Mixer::Attention) {
            let writer = Writer::beside_binding(device, *model, store, types, room, weights)?;
            return Ok(Self::Whole(Box::new(writer)));
        }
        Pieces::new(of, longest, weights).map(Self::InPieces)
    }

    /// Lengths of pieces, from the longest; none where prompts are not read in pieces.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        if let Self::InPieces(pieces) = self { pieces.lengths() } else { Vec::new() }
    }

    /// How many tokens of a prompt are read ahead of its first step. The last one never is: its step draws the token behind it.
    pub(crate) fn ahead(&self, prompt: usize) -> usize {
        match self {
            Self::InPieces(_) if prompt >= LONG => Pieces::covered(prompt - 1),
            Self::Whole(_) if prompt >= LONG => prompt - 1,
            _ => 0,
        }
    }

    /// Reads a piece of tokens that are to be read ahead, or all of them; of a sequence that begins if `begins` says what it begins with.
    /// How many it has read.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn read(&mut self, tokens: &[i32], begins: Option<&Fresh>) -> Result<usize, Error> {
        match self {
            Self::ByStep => Ok(0),
            Self::InPieces(pieces) => {
                begins.map_or(Ok(()), |fresh| pieces.forget(fresh))?;
                pieces.read(tokens)
            }
            Self::Whole(writer) => {
                writer.read(tokens)?;
                Ok(tokens.len())
            }
        }
    }

    /// The state behind what was read, of one sequence.
    pub(crate) fn states(&self) -> Option<(Ref<'_, Binding>, &Blocks)> {
        match self {
            Self::ByStep => None,
            Self::InPieces(pieces) => Some(pieces.states()),
            Self::Whole(writer) => Some(writer.states()),
        }
    }
}

//! The launches of a step of B pairs that store no logits.

use lab_device::{DType, Device, Launch};
use lab_harness::Error;
use lab_harness::program::{Program, Slot};
use lab_reference::mlp::Sizes;

use crate::batch::{Batch, Pairs};
use crate::kernels::V1_RECOMPUTED;
use crate::steps::{blocks, int, kernel};

/// How threads lie, as `L` in the kernels.
const ROWS: usize = 8;
const COLUMNS: usize = 16;
const THREADS: u32 = (ROWS * COLUMNS) as u32;

/// What a block owns, what comes past it, room for H, columns of a piece, blocks of a multiprocessor; the
/// least room first. Those up to 256 are what `vlstm_fwbw_v1` was measured with.
const TILES: [[usize; 5]; 4] =
    [[64, 64, 64, 64, 3], [64, 64, 128, 64, 2], [32, 64, 256, 64, 2], [32, 64, 512, 32, 2]];

/// The most hidden units, and what they are made a multiple of: 16 bytes are copied at a time.
pub(crate) const MOST_HIDDEN: usize = TILES[TILES.len() - 1][2];
pub(crate) const HIDDEN_IN: usize = 4;

/// Threads that merge the parts of a pair, and so the most parts.
const MOST_PARTS: usize = 256;

/// What the launches leave for each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recomputed {
    tile: Tile,
    /// In how many parts V is cut, and tokens of a part.
    splits: usize,
    span: usize,
    /// \[splits, B, H\]: the products with w2, of each part.
    parts: Slot,
    /// \[splits, B\]: the largest logit, and the sum of the exponentials.
    stats: Slot,
    /// \[B\]: the target's logit.
    of_target: Slot,
    /// \[B\]: the largest of all logits, and the inverse of their sum.
    softmax: Slot,
    da: Slot,
    dx: Slot,
}

#[derive(Clone, Copy, Debug)]
struct Tile([usize; 5]);

impl Tile {
    fn of(hidden: usize) -> Self {
        let fits = |tile: &&[usize; 5]| hidden <= tile[2];
        Self(*TILES.iter().find(fits).expect("sizes that were checked"))
    }

    fn arguments(self) -> String {
        self.0.map(|n| n.to_string()).join(", ")
    }

    /// As `Passing` in `lab/ahead.cuh`, which does not compile where it is more than a block has.
    fn shared(self) -> usize {
        let [own, past, room, piece, _] = self.0;
        let [x, z] = [past * (piece + 4), past * piece / room * (room + 4)];
        DType::F32.size() * (own * (room + 4 + past + COLUMNS) + 2 * x.max(z))
    }

    fn launch(self, grid: [u32; 3]) -> Launch {
        Launch::new_3d(grid, [THREADS, 1, 1]).shared(self.shared())
    }

    /// Parts and tokens of each, whole tiles, so that each multiprocessor has as many blocks as find room.
    fn parts(self, device: &Device, batch: usize, vocabulary: usize) -> [usize; 2] {
        let [own, past, _, _, resident] = self.0;
        let wanted = resident * device.facts().multiprocessors as usize / batch.div_ceil(own);
        let span = vocabulary.div_ceil(wanted.clamp(1, MOST_PARTS)).next_multiple_of(past);
        [vocabulary.div_ceil(span), span]
    }
}

impl Recomputed {
    pub(crate) fn new(program: &mut Program, sizes: Sizes, batch: usize) -> Result<Self, Error> {
        let Sizes { vocabulary, embedding, hidden } = sizes;
        let tile = Tile::of(hidden);
        let [splits, span] = tile.parts(program.device(), batch, vocabulary);
        let mut scratch = |len| program.scratch(DType::F32, batch * len);
        Ok(Self {
            tile,
            splits,
            span,
            parts: scratch(splits * hidden)?,
            stats: scratch(2 * splits)?,
            of_target: scratch(1)?,
            softmax: scratch(2)?,
            da: scratch(hidden)?,
            dx: scratch(embedding)?,
        })
    }
}

impl Batch {
    /// What a softmax needs of all logits, of parts of them.
    pub(crate) fn attend(&self, program: &mut Program, left: Recomputed) -> Result<(), Error> {
        self.hidden(program)?;
        let [_, _, _, w2, b2] = self.parameters.map(Slot::read);
        let [b, v, _, h, _] = self.ints();
        let grid = [blocks(self.batch, left.tile.0[0]), blocks(left.splits, 1), 1];
        program.launch(
            kernel(program.device(), &V1_RECOMPUTED, "attend", &left.tile.arguments())?,
            left.tile.launch(grid),
            [
                self.h.read(),
                w2,
                b2,
                self.ids.read(),
                left.parts.write(),
                left.stats.write(),
                left.of_target.write(),
                b,
                v,
                h,
                int(left.span),
            ],
        );
        Ok(())
    }

    /// The losses of the pairs, and da, of the parts.
    pub(crate) fn merge(&self, program: &mut Program, left: Recomputed) -> Result<(), Error> {
        let [_, _, _, w2, _] = self.parameters;
        let [b, _, _, h, _] = self.ints();
        program.launch(
            kernel(program.device(), &V1_RECOMPUTED, "merge", &MOST_PARTS.to_string())?,
            Launch::new(blocks(self.batch, 1), MOST_PARTS as u32),
            [
                left.parts.read(),
                left.stats.read(),
                left.of_target.read(),
                self.h.read(),
                w2.read(),
                self.ids.read(),
                left.da.write(),
                left.softmax.write(),
                self.row_losses.write(),
                int(left.splits),
                b,
                h,
            ],
        );
        Ok(())
    }

    /// The logits again: w2 and b2 move. da and dx, for the launch that follows.
    pub(crate) fn back_again(
        &self,
        program: &mut Program,
        left: Recomputed,
    ) -> Result<[Slot; 2], Error> {
        let Pairs { counts, rates, losses, .. } = self.pairs;
        let [_, w1, _, w2, b2] = self.parameters;
        let [b, v, e, h, _] = self.ints();
        let rows = self.sizes.vocabulary.div_ceil(left.tile.0[0]);
        let arguments = format!("{}, {}", left.tile.arguments(), self.pack);
        program.launch(
            kernel(program.device(), &V1_RECOMPUTED, "output_weights", &arguments)?,
            left.tile.launch([blocks(self.input_tiles() + rows, 1), 1, 1]),
            [
                self.h.read(),
                self.ids.read(),
                left.softmax.read(),
                self.row_losses.read(),
                left.da.read(),
                w1.read(),
                left.dx.write(),
                w2.write(),
                b2.write(),
                counts.read(),
                rates.read(),
                losses.write(),
                b,
                v,
                e,
                h,
            ],
        );
        Ok([left.da, left.dx])
    }
}

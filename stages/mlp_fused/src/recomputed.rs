//! The launches of a step of B pairs that store no logits.

use lab_device::{DType, Device, Kernel, Launch};
use lab_harness::plan::{Plan, Scope};
use lab_harness::{Error, arguments};
use lab_reference::mlp::Sizes;

use crate::batch::{Batch, HiddenGradients};
use crate::kernels::V1_RECOMPUTED;
use crate::steps::{blocks, load_kernel};

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

/// Bytes of `Softmax` in the kernels.
const SOFTMAX_BYTES: usize = 8;

/// How V is cut, and what the merge leaves for the way back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recomputed {
    tile: Tile,
    /// In how many parts V is cut.
    splits: usize,
    back: HiddenGradients,
}

#[derive(Clone, Copy, Debug)]
struct Tile([usize; 5]);

impl Tile {
    fn smallest_fitting(hidden: usize) -> Self {
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
    fn split_vocabulary(self, device: &Device, batch: usize, vocabulary: usize) -> [usize; 2] {
        let [own, past, _, _, resident] = self.0;
        let wanted = resident * device.facts().multiprocessors as usize / batch.div_ceil(own);
        let span = vocabulary.div_ceil(wanted.clamp(1, MOST_PARTS)).next_multiple_of(past);
        [vocabulary.div_ceil(span), span]
    }
}

impl Recomputed {
    /// Makes room for B pairs, and adds what the launches share to their scope.
    pub(crate) fn new(plan: &mut Plan, sizes: Sizes, batch: usize, scope: Scope) -> (Self, Scope) {
        let Sizes { vocabulary, embedding, hidden } = sizes;
        let tile = Tile::smallest_fitting(hidden);
        let [splits, span] = tile.split_vocabulary(plan.device(), batch, vocabulary);
        // [splits, B, H]: the products with w2, of each part; [splits, B]: the largest logit, and the
        // sum of the exponentials; [B]: the target's logit.
        let [parts, stats, of_target, da, dx] = [splits * hidden, 2 * splits, 1, hidden, embedding]
            .map(|len| plan.scratch(DType::F32, batch * len));
        // [B]: the largest of all logits, and the inverse of their sum.
        let softmax = plan.records("Softmax", SOFTMAX_BYTES, batch);
        let scope = scope.with(arguments![parts, stats, of_target, softmax, da, dx, splits, span]);
        (Self { tile, splits, back: HiddenGradients { da, dx } }, scope)
    }

    /// Loads the kernel that makes the losses of the pairs, and da, of the parts. It has a block a pair,
    /// of so many threads.
    pub(crate) fn load_merge(device: &Device) -> Result<(Kernel, u32), Error> {
        let kernel = load_kernel(device, &V1_RECOMPUTED, "merge", &MOST_PARTS.to_string())?;
        Ok((kernel, MOST_PARTS as u32))
    }
}

impl Batch {
    /// Adds the launches that make, of parts of the logits, what a softmax needs of all of them.
    pub(crate) fn launch_attention(
        &self,
        plan: &mut Plan,
        Recomputed { tile, splits, .. }: Recomputed,
    ) -> Result<(), Error> {
        self.launch_hidden(plan)?;
        let attend = load_kernel(plan.device(), &V1_RECOMPUTED, "attend", &tile.arguments())?;
        let grid = [blocks(self.batch, tile.0[0]), blocks(splits, 1), 1];
        plan.launch_in(&self.scope, &attend, tile.launch(grid), [])
    }

    /// Adds the launch that makes the logits again and moves w2 and b2. da and dx, for the launch that
    /// follows.
    pub(crate) fn launch_back_recomputed(
        &self,
        plan: &mut Plan,
        Recomputed { tile, back, .. }: Recomputed,
    ) -> Result<HiddenGradients, Error> {
        let rows = self.sizes.vocabulary.div_ceil(tile.0[0]);
        let arguments = format!("{}, {}", tile.arguments(), self.pack);
        let kernel = load_kernel(plan.device(), &V1_RECOMPUTED, "output_weights", &arguments)?;
        let launch = tile.launch([blocks(self.input_tiles() + rows, 1), 1, 1]);
        plan.launch_in(&self.scope, &kernel, launch, [])?;
        Ok(back)
    }
}

//! The launches of a step of B pairs that store no logits.

use lab_device::{DType, Device, Instance, Kernel};
use lab_harness::plan::{Plan, Scope};
use lab_harness::{Error, arguments};
use lab_reference::mlp::Sizes;

use crate::kernels::V1_RECOMPUTED;
use crate::shared::{HiddenGradients, Shared};
use crate::steps::{blocks, load_kernel};

/// The most hidden units that a kernel has room for, and what they are made a multiple of: 16 bytes are
/// copied at a time.
pub(crate) const MOST_HIDDEN: usize = 512;
pub(crate) const HIDDEN_IN: usize = 4;

/// Threads that merge the parts of a pair, and so the most parts.
const MOST_PARTS: usize = 256;

/// Bytes of `Softmax` in the kernels.
const SOFTMAX_BYTES: usize = 8;

/// How V is cut, and what the merge leaves for the way back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recomputed {
    tile: Instance,
    /// In how many parts V is cut.
    splits: usize,
    back: HiddenGradients,
}

/// The kernel with the least room for H units.
fn instance_for(kernel: &str, hidden: usize) -> Instance {
    let fits = |i: &Instance| hidden <= i.size("DH");
    V1_RECOMPUTED.instances(kernel).find(fits).expect("sizes that were checked")
}

/// Parts and tokens of each, whole tiles, so that each multiprocessor has as many blocks as find room.
fn split_vocabulary(
    tile: Instance,
    device: &Device,
    batch: usize,
    vocabulary: usize,
) -> [usize; 2] {
    let [own, past, resident] = ["OWN", "PAST", "BLOCKS"].map(|name| tile.size(name));
    let wanted = resident * device.facts().multiprocessors as usize / batch.div_ceil(own);
    let span = vocabulary.div_ceil(wanted.clamp(1, MOST_PARTS)).next_multiple_of(past);
    [vocabulary.div_ceil(span), span]
}

impl Recomputed {
    /// Makes room for B pairs, and adds what the launches share to their scope.
    pub(crate) fn new(plan: &mut Plan, sizes: Sizes, batch: usize, scope: Scope) -> (Self, Scope) {
        let Sizes { vocabulary, embedding, hidden } = sizes;
        let tile = instance_for("attend", hidden);
        let [splits, span] = split_vocabulary(tile, plan.device(), batch, vocabulary);
        // [splits, B, H]: the products with w2, of each part; [splits, B]: the largest logit, and the
        // sum of the exponentials; [B]: the target's logit.
        let [parts, stats, of_target, da, dx] = [splits * hidden, 2 * splits, 1, hidden, embedding]
            .map(|len| plan.scratch(DType::F32, batch * len));
        // [B]: the largest of all logits, and the inverse of their sum.
        let softmax = plan.records("Softmax", SOFTMAX_BYTES, batch);
        let scope = scope.with(arguments![parts, stats, of_target, softmax, da, dx, splits, span]);
        (Self { tile, splits, back: HiddenGradients { da, dx } }, scope)
    }

    /// Loads the kernel that makes the losses of the pairs, and da, of the parts. It has a block a pair.
    pub(crate) fn load_merge(device: &Device) -> Result<Kernel, Error> {
        load_kernel(device, &V1_RECOMPUTED, "merge", &MOST_PARTS.to_string())
    }
}

impl Shared {
    /// Adds the launches that make, of parts of the logits, what a softmax needs of all of them.
    pub(crate) fn add_attention(
        &self,
        plan: &mut Plan,
        Recomputed { tile, splits, .. }: Recomputed,
    ) -> Result<(), Error> {
        self.add_hidden(plan)?;
        let attend = plan.device().load(tile)?;
        let launch = attend.grid([blocks(self.batch, tile.size("OWN")), blocks(splits, 1), 1])?;
        plan.launch_in(&self.scope, &attend, launch, arguments![])
    }

    /// Adds the launch that makes the logits again and moves w2 and b2. da and dx, for the launch that
    /// follows.
    pub(crate) fn add_back_recomputed(
        &self,
        plan: &mut Plan,
        Recomputed { back, .. }: Recomputed,
    ) -> Result<HiddenGradients, Error> {
        let has_pack =
            |i: &Instance| i.size("PACK") == self.pack && self.sizes.hidden <= i.size("DH");
        let tile = V1_RECOMPUTED.instances("output_weights").find(has_pack);
        let tile = tile.expect("sizes that were checked");
        let rows = self.sizes.vocabulary.div_ceil(tile.size("OWN"));
        let kernel = plan.device().load(tile)?;
        let launch = kernel.grid([blocks(self.input_gradient_tiles() + rows, 1), 1, 1])?;
        plan.launch_in(&self.scope, &kernel, launch, arguments![])?;
        Ok(back)
    }
}

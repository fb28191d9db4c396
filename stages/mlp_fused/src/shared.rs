//! What a step has and does in the same way whatever its products by w2.

use lab_device::{DType, Device, Kernel, Launch};
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::{Error, arguments};
use lab_reference::mlp::Sizes;

use crate::kernels::V1_BATCH;
use crate::steps::{blocks, load_kernel};

/// Sides of the tiles of the small products and of those by w2, as the kernels have them.
pub(crate) const SMALL: usize = 32;
pub(crate) const LARGE: usize = 64;
/// Rows of those by w2 in f32, where there are many.
const TALL: usize = 128;
/// Blocks of the products by w2 in f32 for which a multiprocessor has room.
pub(crate) const PLACES: usize = 3;

/// What becomes of the gradients.
#[derive(Clone, Copy, Debug)]
pub enum Use {
    /// They are written into these, emb, w1, b1, w2, b2.
    Keep([Slot; 5]),
    /// The parameters move by −lr times them.
    Descend,
}

/// The gradients by a and x, \[B, H\] and \[B, E\].
#[derive(Clone, Copy, Debug)]
pub(crate) struct HiddenGradients {
    pub(crate) da: Slot,
    pub(crate) dx: Slot,
}

/// Sizes, parameters, and the launches of the hidden layer.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) sizes: Sizes,
    pub(crate) batch: usize,
    /// emb, w1, b1, w2, b2.
    pub(crate) parameters: [Slot; 5],
    /// Elements that are loaded at a time.
    pub(crate) pack: usize,
    /// What the launches share, under the names of the kernels' parameters.
    pub(crate) scope: Scope,
}

impl Shared {
    pub(crate) fn load_kernel(
        &self,
        device: &Device,
        name: &str,
        arguments: &str,
    ) -> Result<Kernel, Error> {
        load_kernel(device, &V1_BATCH, name, &format!("{arguments}{}", self.pack))
    }

    /// Adds the launch that makes x and h.
    pub(crate) fn add_hidden(&self, plan: &mut Plan) -> Result<(), Error> {
        let hidden = self.load_kernel(plan.device(), "hidden", "")?;
        plan.launch_in(&self.scope, &hidden, self.hidden_layer(&hidden)?, arguments![])
    }

    /// How a kernel of the hidden layer is launched.
    pub(crate) fn hidden_layer(&self, kernel: &Kernel) -> Result<Launch, Error> {
        let grid = [blocks(self.batch, SMALL), blocks(self.sizes.hidden, SMALL), 1];
        Ok(kernel.grid(grid)?)
    }

    /// The template argument of what becomes of the gradients, and where they go.
    pub(crate) fn destination(&self, gradients: Use) -> (&'static str, [Slot; 5]) {
        match gradients {
            Use::Keep(to) => ("KEEP, ", to),
            Use::Descend => ("DESCEND, ", self.parameters),
        }
    }

    /// Room for the parts of da \[splits, B, H\].
    pub(crate) fn gradient_parts(&self, plan: &mut Plan, splits: usize) -> Slot {
        plan.scratch(DType::F32, splits * self.batch * self.sizes.hidden)
    }

    /// Adds the launch that sums up the parts of da, and makes room for dx.
    pub(crate) fn add_hidden_gradient(
        &self,
        plan: &mut Plan,
        parts: Slot,
        splits: usize,
    ) -> Result<HiddenGradients, Error> {
        let Sizes { embedding, hidden, .. } = self.sizes;
        let kernel = load_kernel(plan.device(), &V1_BATCH, "hidden_gradient", "256")?;
        let count = self.batch * hidden;
        let da = plan.scratch(DType::F32, count);
        let dx = plan.scratch(DType::F32, self.batch * embedding);
        let launch = kernel.grid_over(count)?;
        plan.launch_in(&self.scope, &kernel, launch, arguments![parts, da, splits, count])?;
        Ok(HiddenGradients { da, dx })
    }

    /// Rows of the tiles of a product of `rows` x `columns` in f32, whose sums up to `parts` blocks share: the tall
    /// ones where they fill all multiprocessors and are loaded in packs.
    pub(crate) fn tile_rows(
        &self,
        device: &Device,
        rows: usize,
        columns: usize,
        parts: usize,
    ) -> usize {
        let tiles = rows / TALL * columns.div_ceil(LARGE) * parts;
        let places = PLACES * device.facts().multiprocessors as usize;
        if self.pack == 1 || tiles < places { LARGE } else { TALL }
    }

    /// Blocks for the tiles of dx, which come before those of w2.
    pub(crate) fn input_gradient_tiles(&self) -> usize {
        self.batch.div_ceil(LARGE) * self.sizes.embedding.div_ceil(LARGE)
    }
}

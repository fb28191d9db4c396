//! The launches of a step of B pairs.

use lab_device::{DType, Device, LaunchPromise};
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::progress::{COUNTS, NUMBERS};
use lab_harness::{Error, Tensor, arguments};
use lab_reference::mlp::Sizes;

use crate::kernels::{PROMISE, V1_BATCH};
use crate::recomputed::Recomputed;
use crate::shared::{HiddenGradients, LARGE, PLACES, SMALL, Shared, Use};
use crate::steps::{StepsPlan, blocks, load_kernel};
use crate::tensor::{Halves, round_rows};
use crate::wgmma::Warpgroups;

/// Tokens by which V is cut into parts, and the most parts.
const DEPTH: usize = 16;
const MOST_PARTS: usize = 32;

/// How the products by w2 are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// In f32; the logits are stored.
    F32,
    /// Of bf16, on the tensor cores; the logits are stored, in f32.
    Halves,
    /// Of bf16, by wgmma; of the logits their exponentials are stored, relative to the largest of a tile.
    Warpgroups,
    /// In f32; the logits are computed on the way there and again on the way back.
    Recomputed,
}

impl Products {
    /// Those of elements of this type that store the logits.
    pub fn for_dtype(dtype: DType) -> Self {
        if dtype == DType::BF16 { Self::Halves } else { Self::F32 }
    }

    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::Halves | Self::Warpgroups => DType::BF16,
            Self::F32 | Self::Recomputed => DType::F32,
        }
    }
}

/// What the products leave for each other.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// The logits, then dz.
    F32 {
        z: Slot,
    },
    Halves(Halves),
    Warpgroups(Warpgroups),
    Recomputed(Recomputed),
}

/// Where the data are, and where a step stands in them.
#[derive(Clone, Copy, Debug)]
pub struct Pairs {
    /// The text, i32.
    pub tokens: Slot,
    /// The text from its second token on.
    pub targets: Slot,
    /// Of an epoch, the pairs in their order.
    pub order: Slot,
    /// Counts of [`lab_harness::progress`], twice, i64.
    pub counts: Slot,
    /// Its numbers, twice, f64.
    pub numbers: Slot,
    /// Learning rates, one a step of an epoch, f64.
    pub rates: Slot,
    /// Losses, likewise.
    pub losses: Slot,
}

/// The launches of a step, and what they leave for each other.
#[derive(Debug)]
pub struct Batch {
    /// The loss of each pair, by B, f64: scratch.
    pub row_losses: Slot,
    shared: Shared,
    left: Left,
}

impl Batch {
    /// With room for B pairs, and no launch yet. emb, w1, b1, w2 and b2 are in `parameters`. Whoever calls for launches promises that
    /// these slots, and those of a [`Use::Keep`], have the elements that the sizes say, and that of the text each of the order's pairs is there.
    pub fn new(
        plan: &mut Plan,
        _promise: LaunchPromise,
        sizes: Sizes,
        batch: usize,
        pairs: Pairs,
        parameters: [Slot; 5],
        products: Products,
    ) -> Self {
        let Sizes { vocabulary, embedding, hidden } = sizes;
        let Pairs { tokens, targets, order, counts, numbers, rates, losses } = pairs;
        let [emb, w1, b1, w2, b2] = parameters;
        let ids = plan.scratch(DType::I32, 2 * batch);
        let [x, h] = [embedding, hidden].map(|len| plan.scratch(DType::F32, batch * len));
        let row_losses = plan.scratch(DType::F64, batch);
        let columns = vocabulary.next_multiple_of(4);
        let scope = Scope::new()
            .with(arguments![tokens, targets, order, counts, numbers, rates, losses])
            .with(arguments![emb, w1, b1, w2, b2, ids, x, h, row_losses, pairs: order.len()])
            .with(arguments![B: batch, V: vocabulary, E: embedding, H: hidden, Z: columns]);
        let (left, scope) = match products {
            Products::F32 => {
                let tiles = vocabulary.div_ceil(LARGE);
                let z = plan.scratch(DType::F32, batch * columns);
                let stats = plan.scratch(DType::F32, batch * 2 * tiles);
                // The softmax leaves dz where the logits were.
                (Left::F32 { z }, scope.with(arguments![z, dz: z, stats, tiles]))
            }
            Products::Halves => {
                let (halves, scope) = Halves::new(plan, sizes, batch, scope);
                (Left::Halves(halves), scope)
            }
            Products::Warpgroups => {
                let (warpgroups, scope) = Warpgroups::new(plan, sizes, batch, scope);
                (Left::Warpgroups(warpgroups), scope)
            }
            Products::Recomputed => {
                let (recomputed, scope) = Recomputed::new(plan, sizes, batch, scope);
                (Left::Recomputed(recomputed), scope)
            }
        };
        let pack = if embedding % 4 == 0 && hidden % 4 == 0 { 4 } else { 1 };
        Self { row_losses, shared: Shared { sizes, batch, parameters, pack, scope }, left }
    }

    /// Where the logits are stored, in rows of V rounded up to four: scratch that becomes dz, in f32
    /// products.
    pub fn stored_logits(&self) -> Option<Slot> {
        match self.left {
            Left::F32 { z } => Some(z),
            Left::Halves(halves) => Some(halves.z),
            Left::Warpgroups(_) | Left::Recomputed(_) => None,
        }
    }

    /// Adds the launch that rounds w2 to the copy that the products read, where they read one. A step
    /// that descends moves the copy too; where something else moves w2, this comes before each step.
    ///
    /// # Errors
    /// A kernel does not compile on this device.
    pub fn add_rounding(&self, plan: &mut Plan) -> Result<(), Error> {
        match self.left {
            Left::Halves(_) | Left::Warpgroups(_) => self.shared.add_rounding_to_halves(plan),
            Left::F32 { .. } | Left::Recomputed(_) => Ok(()),
        }
    }

    /// What [`Batch::add_rounding`] would make of this w2, \[V, H\], and its slot: to be written once
    /// the plan is bound.
    pub fn rounded_weights(&self, w2: &Tensor) -> Option<(Slot, Tensor)> {
        match self.left {
            Left::Halves(Halves { copy, .. }) | Left::Warpgroups(Warpgroups { copy, .. }) => {
                Some((copy, round_rows(w2)))
            }
            Left::F32 { .. } | Left::Recomputed(_) => None,
        }
    }

    /// Adds the launches that make the logits, or what is kept of them where they are not stored.
    ///
    /// # Errors
    /// A kernel does not compile on this device.
    pub fn add_logits(&self, plan: &mut Plan) -> Result<(), Error> {
        match self.left {
            Left::F32 { .. } => self.add_logits_in_f32(plan),
            Left::Halves(halves) => self.shared.add_logits_in_halves(plan, halves),
            Left::Warpgroups(warpgroups) => self.shared.add_powers(plan, warpgroups),
            Left::Recomputed(recomputed) => self.shared.add_attention(plan, recomputed),
        }
    }

    /// Adds the launch that makes the losses of a step's pairs, of the logits; these become dz.
    ///
    /// # Errors
    /// A kernel does not compile on this device.
    pub fn add_loss(&self, plan: &mut Plan) -> Result<(), Error> {
        let kernel = match self.left {
            Left::F32 { .. } => load_kernel(plan.device(), &V1_BATCH, "softmax_loss", "256")?,
            Left::Halves(_) => Halves::load_softmax(plan.device())?,
            Left::Warpgroups(_) => Warpgroups::load_softmax(plan.device())?,
            Left::Recomputed(_) => Recomputed::load_merge(plan.device())?,
        };
        let launch = kernel.grid([blocks(self.shared.batch, 1), 1, 1])?;
        plan.launch_in(&self.shared.scope, &kernel, launch, arguments![])
    }

    fn add_logits_in_f32(&self, plan: &mut Plan) -> Result<(), Error> {
        self.shared.add_hidden(plan)?;
        let (vocabulary, batch) = (self.shared.sizes.vocabulary, self.shared.batch);
        let rows = self.shared.tile_rows(plan.device(), batch, vocabulary, 1);
        let logits = self.shared.load_kernel(plan.device(), "logits", &format!("{rows}, "))?;
        let grid = [blocks(vocabulary, LARGE), blocks(batch, rows), 1];
        plan.launch_in(&self.shared.scope, &logits, logits.grid(grid)?, arguments![])
    }

    /// In how many parts V is cut, so that all blocks run at once, and tokens of a part. Tiles have `rows` rows.
    fn split_vocabulary(&self, device: &Device, rows: usize) -> [usize; 2] {
        let Sizes { vocabulary, hidden, .. } = self.shared.sizes;
        let tiles = self.shared.batch.div_ceil(rows) * hidden.div_ceil(LARGE);
        let wanted = PLACES * device.facts().multiprocessors as usize / tiles;
        let span = vocabulary.div_ceil(wanted.clamp(1, MOST_PARTS)).next_multiple_of(DEPTH);
        [vocabulary.div_ceil(span), span]
    }

    /// Adds the launches of the way back, from dz, and of what is done with the gradients.
    ///
    /// # Errors
    /// A kernel does not compile on this device.
    ///
    /// # Panics
    /// Gradients are to be kept, of logits that are not stored.
    pub fn add_backward(&self, plan: &mut Plan, gradients: Use) -> Result<(), Error> {
        let HiddenGradients { da, dx } = match (self.left, gradients) {
            (Left::F32 { .. }, _) => self.add_back_in_f32(plan, gradients)?,
            (Left::Halves(halves), _) => self.shared.add_back_in_halves(plan, halves, gradients)?,
            (Left::Warpgroups(warpgroups), _) => {
                self.shared.add_back_by_warpgroups(plan, warpgroups, gradients)?
            }
            (Left::Recomputed(recomputed), Use::Descend) => {
                self.shared.add_back_recomputed(plan, recomputed)?
            }
            (Left::Recomputed(_), Use::Keep(_)) => unreachable!("training stores its logits"),
        };
        let Sizes { embedding, hidden, .. } = self.shared.sizes;
        let (gradient_use, [emb, w1, b1, _, _]) = self.shared.destination(gradients);
        let device = plan.device();
        let tiles = hidden.div_ceil(SMALL) * embedding.div_ceil(SMALL);
        let (kernel, launch) = match self.left {
            Left::Warpgroups(_) => {
                self.shared.rounded_input_weights(device, gradient_use, tiles)?
            }
            _ => {
                let kernel = self.shared.load_kernel(device, "input_weights", gradient_use)?;
                let launch = kernel.grid([blocks(tiles + self.shared.batch, 1), 1, 1])?;
                (kernel, launch)
            }
        };
        plan.launch_in(&self.shared.scope, &kernel, launch, arguments![da, dx, emb, w1, b1])
    }

    /// Adds the products that have to do with w2.
    fn add_back_in_f32(&self, plan: &mut Plan, gradients: Use) -> Result<HiddenGradients, Error> {
        let Sizes { vocabulary, hidden, .. } = self.shared.sizes;
        let (gradient_use, [_, _, _, w2, b2]) = self.shared.destination(gradients);
        let batch = self.shared.batch;
        let rows = self.shared.tile_rows(plan.device(), batch, hidden, MOST_PARTS);
        let arguments = format!("{rows}, ");
        let output_input = self.shared.load_kernel(plan.device(), "output_input", &arguments)?;
        let [splits, span] = self.split_vocabulary(plan.device(), rows);
        let parts = self.shared.gradient_parts(plan, splits);
        let grid = [blocks(batch, rows), blocks(hidden, LARGE), blocks(splits, 1)];
        let launch = output_input.grid(grid)?;
        plan.launch_in(&self.shared.scope, &output_input, launch, arguments![parts, span])?;
        let back = self.shared.add_hidden_gradient(plan, parts, splits)?;
        let HiddenGradients { da, dx } = back;
        let rows = self.shared.tile_rows(plan.device(), vocabulary, hidden, 1);
        let arguments = format!("{gradient_use}{rows}, ");
        let output_weights =
            self.shared.load_kernel(plan.device(), "output_weights", &arguments)?;
        let tiles = vocabulary.div_ceil(rows) * hidden.div_ceil(LARGE);
        let launch =
            output_weights.grid([blocks(self.shared.input_gradient_tiles() + tiles, 1), 1, 1])?;
        plan.launch_in(&self.shared.scope, &output_weights, launch, arguments![da, dx, w2, b2])?;
        Ok(back)
    }
}

/// Adds the launches of all steps of a family's run.
pub(crate) fn add_steps(run: &mut StepsPlan, products: Products) -> Result<(), Error> {
    let StepsPlan { steps, batch, sizes, .. } = *run;
    let parameters = run.trained();
    let plan = &mut run.plan;
    let pairs = Pairs {
        tokens: run.tokens,
        targets: run.targets,
        order: plan.input("order", DType::I32, &[steps * batch]),
        counts: plan.zeros(DType::I64, 2 * COUNTS),
        numbers: plan.zeros(DType::F64, 2 * NUMBERS),
        rates: plan.input("rates", DType::F64, &[steps]),
        losses: run.losses,
    };
    plan.zero(pairs.counts);
    let step = Batch::new(plan, PROMISE, sizes, batch, pairs, parameters, products);
    step.add_rounding(plan)?;
    let before = plan.len();
    step.add_logits(plan)?;
    step.add_loss(plan)?;
    step.add_backward(plan, Use::Descend)?;
    plan.repeat(before, steps - 1);
    Ok(())
}

//! The launches of a step of B pairs.

use lab_device::{DType, Device, Kernel, Launch};
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::progress::{COUNTS, NUMBERS};
use lab_harness::{Error, Tensor, arguments};
use lab_reference::mlp::Sizes;

use crate::kernels::V1_BATCH;
use crate::recomputed::Recomputed;
use crate::steps::{StepsPlan, blocks, load_kernel};
use crate::tensor::Halves;

/// Sides of the tiles, and threads of a block, of the small products and of those by w2.
pub(crate) const SMALL: usize = 32;
pub(crate) const SMALL_THREADS: u32 = 64;
const LARGE: usize = 64;
const LARGE_THREADS: u32 = 128;
pub(crate) const SOFTMAX_THREADS: u32 = 256;

/// Tokens by which V is cut into parts, and the most parts.
const DEPTH: usize = 16;
const MOST_PARTS: usize = 32;

const GRADIENT_THREADS: u32 = 256;

/// How the products by w2 are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// In f32; the logits are stored.
    F32,
    /// Of bf16, on the tensor cores; the logits are stored, in f32.
    Halves,
    /// In f32; the logits are computed on the way there and again on the way back.
    Recomputed,
}

impl Products {
    /// Those of elements of this type that store the logits.
    pub fn for_dtype(dtype: DType) -> Self {
        if dtype == DType::BF16 { Self::Halves } else { Self::F32 }
    }

    pub(crate) fn dtype(self) -> DType {
        if self == Self::Halves { DType::BF16 } else { DType::F32 }
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
    Recomputed(Recomputed),
}

/// What becomes of the gradients.
#[derive(Clone, Copy, Debug)]
pub enum Use {
    /// They are written into these, emb, w1, b1, w2, b2.
    Keep([Slot; 5]),
    /// The parameters move by −lr times them.
    Descend,
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
    pub(crate) sizes: Sizes,
    pub(crate) batch: usize,
    /// emb, w1, b1, w2, b2.
    parameters: [Slot; 5],
    /// The loss of each pair, by B, f64: scratch.
    pub row_losses: Slot,
    /// Elements that are loaded at a time.
    pub(crate) pack: usize,
    left: Left,
    /// What the launches share, under the names of the kernels' parameters.
    pub(crate) scope: Scope,
}

/// The gradients by a and x, \[B, H\] and \[B, E\].
#[derive(Clone, Copy, Debug)]
pub(crate) struct HiddenGradients {
    pub(crate) da: Slot,
    pub(crate) dx: Slot,
}

impl Batch {
    /// With room for B pairs, and no launch yet. emb, w1, b1, w2 and b2 are in `parameters`.
    pub fn new(
        plan: &mut Plan,
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
            Products::Recomputed => {
                let (recomputed, scope) = Recomputed::new(plan, sizes, batch, scope);
                (Left::Recomputed(recomputed), scope)
            }
        };
        let pack = if embedding % 4 == 0 && hidden % 4 == 0 { 4 } else { 1 };
        Self { sizes, batch, parameters, row_losses, pack, left, scope }
    }

    /// Where the logits are stored, in rows of V rounded up to four: scratch that becomes dz, in f32
    /// products.
    pub fn stored_logits(&self) -> Option<Slot> {
        match self.left {
            Left::F32 { z } => Some(z),
            Left::Halves(halves) => Some(halves.z),
            Left::Recomputed(_) => None,
        }
    }

    fn load_kernel(&self, device: &Device, name: &str, arguments: &str) -> Result<Kernel, Error> {
        load_kernel(device, &V1_BATCH, name, &format!("{arguments}{}", self.pack))
    }

    /// Adds the launch that rounds w2 to the copy that the products read, where they read one. A step
    /// that descends moves the copy too; where something else moves w2, this comes before each step.
    ///
    /// # Errors
    /// A kernel does not compile on this device.
    pub fn launch_rounding(&self, plan: &mut Plan) -> Result<(), Error> {
        match self.left {
            Left::Halves(_) => self.launch_rounding_to_halves(plan),
            Left::F32 { .. } | Left::Recomputed(_) => Ok(()),
        }
    }

    /// What [`Batch::launch_rounding`] would make of this w2, \[V, H\], and its slot: to be written once
    /// the plan is bound.
    pub fn rounded_weights(&self, w2: &Tensor) -> Option<(Slot, Tensor)> {
        match self.left {
            Left::Halves(halves) => Some((halves.copy, halves.round(w2))),
            Left::F32 { .. } | Left::Recomputed(_) => None,
        }
    }

    /// Adds the launches that make the logits, or what is kept of them where they are not stored.
    ///
    /// # Errors
    /// A kernel does not compile on this device.
    pub fn launch_logits(&self, plan: &mut Plan) -> Result<(), Error> {
        match self.left {
            Left::F32 { .. } => self.launch_logits_in_f32(plan),
            Left::Halves(halves) => self.launch_logits_in_halves(plan, halves),
            Left::Recomputed(recomputed) => self.launch_attention(plan, recomputed),
        }
    }

    /// Adds the launch that makes the losses of a step's pairs, of the logits; these become dz.
    ///
    /// # Errors
    /// A kernel does not compile on this device.
    pub fn launch_loss(&self, plan: &mut Plan) -> Result<(), Error> {
        let (kernel, threads) = match self.left {
            Left::F32 { .. } => {
                let kernel = load_kernel(plan.device(), &V1_BATCH, "softmax_loss", "256")?;
                (kernel, SOFTMAX_THREADS)
            }
            Left::Halves(_) => (Halves::load_softmax(plan.device())?, SOFTMAX_THREADS),
            Left::Recomputed(_) => Recomputed::load_merge(plan.device())?,
        };
        plan.launch_in(&self.scope, &kernel, Launch::new(blocks(self.batch, 1), threads), [])
    }

    /// Adds the launch that makes x and h.
    pub(crate) fn launch_hidden(&self, plan: &mut Plan) -> Result<(), Error> {
        let hidden = self.load_kernel(plan.device(), "hidden", "")?;
        plan.launch_in(&self.scope, &hidden, self.hidden_layer(), [])
    }

    /// How the kernels of the hidden layer are launched.
    pub(crate) fn hidden_layer(&self) -> Launch {
        let grid = [blocks(self.batch, SMALL), blocks(self.sizes.hidden, SMALL), 1];
        Launch::new_3d(grid, [SMALL_THREADS, 1, 1])
    }

    fn launch_logits_in_f32(&self, plan: &mut Plan) -> Result<(), Error> {
        self.launch_hidden(plan)?;
        let logits = self.load_kernel(plan.device(), "logits", "")?;
        let grid = [blocks(self.sizes.vocabulary, LARGE), blocks(self.batch, LARGE), 1];
        plan.launch_in(&self.scope, &logits, Launch::new_3d(grid, [LARGE_THREADS, 1, 1]), [])
    }

    /// In how many parts V is cut, so that each multiprocessor has two blocks, and tokens of a part.
    fn split_vocabulary(&self, device: &Device) -> [usize; 2] {
        let Sizes { vocabulary, hidden, .. } = self.sizes;
        let tiles = self.batch.div_ceil(LARGE) * hidden.div_ceil(LARGE);
        let wanted = 2 * device.facts().multiprocessors as usize / tiles;
        let span = vocabulary.div_ceil(wanted.clamp(1, MOST_PARTS)).next_multiple_of(DEPTH);
        [vocabulary.div_ceil(span), span]
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
    pub(crate) fn launch_hidden_gradient(
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
        let launch = Launch::new(blocks(count, GRADIENT_THREADS as usize), GRADIENT_THREADS);
        plan.launch_in(&self.scope, &kernel, launch, arguments![parts, da, splits, count])?;
        Ok(HiddenGradients { da, dx })
    }

    /// Blocks for the tiles of dx, which come before those of w2.
    pub(crate) fn input_tiles(&self) -> usize {
        self.batch.div_ceil(LARGE) * self.sizes.embedding.div_ceil(LARGE)
    }

    /// Adds the launches of the way back, from dz, and of what is done with the gradients.
    ///
    /// # Errors
    /// A kernel does not compile on this device.
    ///
    /// # Panics
    /// Gradients are to be kept, of logits that are not stored.
    pub fn launch_backward(&self, plan: &mut Plan, gradients: Use) -> Result<(), Error> {
        let HiddenGradients { da, dx } = match (self.left, gradients) {
            (Left::F32 { .. }, _) => self.launch_back_in_f32(plan, gradients)?,
            (Left::Halves(halves), _) => self.launch_back_in_halves(plan, halves, gradients)?,
            (Left::Recomputed(recomputed), Use::Descend) => {
                self.launch_back_recomputed(plan, recomputed)?
            }
            (Left::Recomputed(_), Use::Keep(_)) => unreachable!("training stores its logits"),
        };
        let Sizes { embedding, hidden, .. } = self.sizes;
        let (gradient_use, [emb, w1, b1, _, _]) = self.destination(gradients);
        let kernel = self.load_kernel(plan.device(), "input_weights", gradient_use)?;
        let tiles = hidden.div_ceil(SMALL) * embedding.div_ceil(SMALL);
        let launch = Launch::new(blocks(self.batch + tiles, 1), SMALL_THREADS);
        plan.launch_in(&self.scope, &kernel, launch, arguments![da, dx, emb, w1, b1])
    }

    /// Adds the products that have to do with w2.
    fn launch_back_in_f32(
        &self,
        plan: &mut Plan,
        gradients: Use,
    ) -> Result<HiddenGradients, Error> {
        let Sizes { vocabulary, hidden, .. } = self.sizes;
        let (gradient_use, [_, _, _, w2, b2]) = self.destination(gradients);
        let output_input = self.load_kernel(plan.device(), "output_input", "")?;
        let output_weights = self.load_kernel(plan.device(), "output_weights", gradient_use)?;
        let [splits, span] = self.split_vocabulary(plan.device());
        let parts = self.gradient_parts(plan, splits);
        let grid = [blocks(self.batch, LARGE), blocks(hidden, LARGE), blocks(splits, 1)];
        let launch = Launch::new_3d(grid, [LARGE_THREADS, 1, 1]);
        plan.launch_in(&self.scope, &output_input, launch, arguments![parts, span])?;
        let back = self.launch_hidden_gradient(plan, parts, splits)?;
        let HiddenGradients { da, dx } = back;
        let tiles = vocabulary.div_ceil(LARGE) * hidden.div_ceil(LARGE);
        let launch = Launch::new(blocks(self.input_tiles() + tiles, 1), LARGE_THREADS);
        plan.launch_in(&self.scope, &output_weights, launch, arguments![da, dx, w2, b2])?;
        Ok(back)
    }
}

/// Adds the launches of all steps of a family's run.
pub(crate) fn launch_steps(run: &mut StepsPlan, products: Products) -> Result<(), Error> {
    let StepsPlan { steps, batch, sizes, .. } = *run;
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
    plan.copy(run.initial, run.parameters);
    plan.zero(pairs.counts);
    let parameters = run.layout.parts(run.parameters);
    let step = Batch::new(plan, sizes, batch, pairs, parameters, products);
    step.launch_rounding(plan)?;
    let before = plan.len();
    step.launch_logits(plan)?;
    step.launch_loss(plan)?;
    step.launch_backward(plan, Use::Descend)?;
    plan.repeat(before, steps - 1);
    Ok(())
}

//! The launches of a step of B pairs.

use lab_device::{DType, Device, Kernel, Launch};
use lab_harness::program::{Argument, Program, Slot, scalar};
use lab_harness::progress::{COUNTS, NUMBERS};
use lab_harness::{Error, Tensor};
use lab_reference::mlp::Sizes;

use crate::kernels::V1_BATCH;
use crate::recomputed::Recomputed;
use crate::steps::{Posed, blocks, int, kernel};
use crate::tensor::{Halves, slices};

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
    /// Of elements of this type.
    pub fn of(dtype: DType) -> Self {
        if dtype == DType::BF16 { Self::Halves } else { Self::F32 }
    }

    pub(crate) fn dtype(self) -> DType {
        if self == Self::Halves { DType::BF16 } else { DType::F32 }
    }
}

/// The logits of a step where they are stored.
#[derive(Clone, Copy, Debug)]
pub struct Logits {
    /// Rows of V rounded up to four: the logits, then dz.
    pub z: Slot,
    /// Of each slice of a row the largest, and the sum of the exponentials.
    pub(crate) stats: Slot,
}

/// What the products leave for each other.
#[derive(Clone, Copy, Debug)]
enum Left {
    F32(Logits),
    Halves(Logits, Halves),
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
    /// What it reads.
    pub pairs: Pairs,
    /// emb, w1, b1, w2, b2.
    pub(crate) parameters: [Slot; 5],
    pub(crate) ids: Slot,
    pub(crate) x: Slot,
    pub(crate) h: Slot,
    /// The loss of each pair, by B, f64.
    pub row_losses: Slot,
    /// Elements that are loaded at a time.
    pub(crate) pack: usize,
    left: Left,
}

/// What the launches of the way back leave for each other.
pub(crate) struct Back {
    pub(crate) parts: Slot,
    pub(crate) da: Slot,
    pub(crate) dx: Slot,
}

impl Batch {
    /// With room for B pairs, and no launch yet.
    ///
    /// # Errors
    /// The device has not enough memory.
    pub fn new(
        program: &mut Program,
        sizes: Sizes,
        batch: usize,
        pairs: Pairs,
        parameters: [Slot; 5],
        products: Products,
    ) -> Result<Self, Error> {
        let Sizes { vocabulary, embedding, hidden } = sizes;
        let logits = |program: &mut Program, slices: usize| -> Result<Logits, Error> {
            let mut scratch = |len| program.scratch(DType::F32, batch * len);
            Ok(Logits { z: scratch(vocabulary.next_multiple_of(4))?, stats: scratch(2 * slices)? })
        };
        let left = match products {
            Products::F32 => Left::F32(logits(program, vocabulary.div_ceil(LARGE))?),
            Products::Halves => {
                let slices = slices(program.device(), batch, vocabulary);
                Left::Halves(logits(program, slices)?, Halves::new(program, sizes, batch)?)
            }
            Products::Recomputed => Left::Recomputed(Recomputed::new(program, sizes, batch)?),
        };
        let mut scratch = |len| program.scratch(DType::F32, batch * len);
        let [x, h] = [scratch(embedding)?, scratch(hidden)?];
        Ok(Self {
            sizes,
            batch,
            pairs,
            parameters,
            ids: program.scratch(DType::I32, 2 * batch)?,
            x,
            h,
            row_losses: program.scratch(DType::F64, batch)?,
            pack: if embedding % 4 == 0 && hidden % 4 == 0 { 4 } else { 1 },
            left,
        })
    }

    /// The logits, of products that store them.
    pub fn stored(&self) -> Option<Logits> {
        match self.left {
            Left::F32(logits) | Left::Halves(logits, _) => Some(logits),
            Left::Recomputed(_) => None,
        }
    }

    fn kernel(&self, device: &Device, name: &str, arguments: &str) -> Result<Kernel, Error> {
        kernel(device, &V1_BATCH, name, &format!("{arguments}{}", self.pack))
    }

    /// What products read in place of parameters, made of them anew.
    ///
    /// # Errors
    /// A kernel does not compile on this device.
    pub fn copies(&self, program: &mut Program) -> Result<(), Error> {
        match self.left {
            Left::Halves(_, halves) => self.round(program, halves),
            Left::F32(_) | Left::Recomputed(_) => Ok(()),
        }
    }

    /// The same at once, of these w2.
    ///
    /// # Errors
    /// The device's.
    pub fn write_copies(&self, program: &mut Program, w2: &Tensor) -> Result<(), Error> {
        match self.left {
            Left::Halves(_, halves) => halves.write(program, w2),
            Left::F32(_) | Left::Recomputed(_) => Ok(()),
        }
    }

    /// The logits, or what is left of them where they are not stored.
    ///
    /// # Errors
    /// A kernel does not compile on this device.
    pub fn logits(&self, program: &mut Program) -> Result<(), Error> {
        match self.left {
            Left::F32(logits) => self.logits_f32(program, logits),
            Left::Halves(logits, halves) => self.logits_of(program, logits, halves),
            Left::Recomputed(left) => self.attend(program, left),
        }
    }

    /// The losses of the pairs of a step, of which the logits are there; these become dz.
    ///
    /// # Errors
    /// A kernel does not compile on this device.
    pub fn loss(&self, program: &mut Program) -> Result<(), Error> {
        match self.left {
            Left::F32(logits) => self.loss_f32(program, logits),
            Left::Halves(logits, halves) => self.loss_of(program, logits, halves),
            Left::Recomputed(left) => self.merge(program, left),
        }
    }

    /// x and h.
    pub(crate) fn hidden(&self, program: &mut Program) -> Result<(), Error> {
        let Sizes { embedding, hidden, .. } = self.sizes;
        let Pairs { tokens, targets, order, counts, numbers, .. } = self.pairs;
        let [emb, w1, b1, _, _] = self.parameters.map(Slot::read);
        let device = program.device().clone();
        let grid = [blocks(self.batch, SMALL), blocks(hidden, SMALL), 1];
        program.launch(
            self.kernel(&device, "hidden", "")?,
            Launch::new_3d(grid, [SMALL_THREADS, 1, 1]),
            [
                tokens.read(),
                targets.read(),
                order.read(),
                counts.write(),
                numbers.write(),
                self.ids.write(),
                emb,
                w1,
                b1,
                self.x.write(),
                self.h.write(),
                int(order.len()),
                int(self.batch),
                int(embedding),
                int(hidden),
            ],
        );
        Ok(())
    }

    fn logits_f32(&self, program: &mut Program, logits: Logits) -> Result<(), Error> {
        self.hidden(program)?;
        let [_, _, _, w2, b2] = self.parameters.map(Slot::read);
        let device = program.device().clone();
        let grid = [blocks(self.sizes.vocabulary, LARGE), blocks(self.batch, LARGE), 1];
        let [b, v, _, h, z] = self.ints();
        program.launch(
            self.kernel(&device, "logits", "")?,
            Launch::new_3d(grid, [LARGE_THREADS, 1, 1]),
            [self.h.read(), w2, b2, logits.z.write(), logits.stats.write(), b, v, h, z],
        );
        Ok(())
    }

    fn loss_f32(&self, program: &mut Program, logits: Logits) -> Result<(), Error> {
        let softmax = kernel(program.device(), &V1_BATCH, "softmax_loss", "256")?;
        let [b, v, _, _, z] = self.ints();
        program.launch(
            softmax,
            Launch::new(blocks(self.batch, 1), SOFTMAX_THREADS),
            [
                self.ids.read(),
                self.pairs.counts.read(),
                logits.stats.read(),
                logits.z.write(),
                self.row_losses.write(),
                int(self.pairs.order.len()),
                b,
                v,
                z,
                int(self.sizes.vocabulary.div_ceil(LARGE)),
            ],
        );
        Ok(())
    }

    /// B, V, E, H and the columns of z.
    pub(crate) fn ints(&self) -> [Argument; 5] {
        let Sizes { vocabulary, embedding, hidden } = self.sizes;
        let z = vocabulary.next_multiple_of(4);
        [self.batch, vocabulary, embedding, hidden, z].map(int)
    }

    /// In how many parts V is cut, so that each multiprocessor has two blocks, and tokens of a part.
    fn parts(&self, device: &Device) -> [usize; 2] {
        let Sizes { vocabulary, hidden, .. } = self.sizes;
        let tiles = self.batch.div_ceil(LARGE) * hidden.div_ceil(LARGE);
        let wanted = 2 * device.facts().multiprocessors as usize / tiles;
        let span = vocabulary.div_ceil(wanted.clamp(1, MOST_PARTS)).next_multiple_of(DEPTH);
        [vocabulary.div_ceil(span), span]
    }

    /// The template argument of what becomes of the gradients, and where they go.
    pub(crate) fn moved(&self, gradients: Use) -> (&'static str, [Slot; 5]) {
        match gradients {
            Use::Keep(to) => ("KEEP, ", to),
            Use::Descend => ("DESCEND, ", self.parameters),
        }
    }

    /// With V in so many parts.
    pub(crate) fn room(&self, program: &mut Program, splits: usize) -> Result<Back, Error> {
        let Sizes { embedding, hidden, .. } = self.sizes;
        let mut scratch = |len| program.scratch(DType::F32, self.batch * len);
        Ok(Back { parts: scratch(splits * hidden)?, da: scratch(hidden)?, dx: scratch(embedding)? })
    }

    /// da, of its parts.
    pub(crate) fn hidden_gradient(
        &self,
        program: &mut Program,
        back: &Back,
        splits: usize,
    ) -> Result<(), Error> {
        let kernel = kernel(program.device(), &V1_BATCH, "hidden_gradient", "256")?;
        let launch = Launch::new(blocks(self.h.len(), GRADIENT_THREADS as usize), GRADIENT_THREADS);
        program.launch(
            kernel,
            launch,
            [
                back.parts.read(),
                self.h.read(),
                back.da.write(),
                int(splits),
                scalar(self.h.len() as i64),
            ],
        );
        Ok(())
    }

    /// Blocks for the tiles of dx, which come before those of w2.
    pub(crate) fn input_tiles(&self) -> usize {
        self.batch.div_ceil(LARGE) * self.sizes.embedding.div_ceil(LARGE)
    }

    /// The way back, from dz, and what is done with the gradients.
    ///
    /// # Errors
    /// A kernel does not compile on this device.
    pub fn back(&self, program: &mut Program, gradients: Use) -> Result<(), Error> {
        let [da, dx] = match (self.left, gradients) {
            (Left::F32(logits), _) => self.back_f32(program, logits, gradients)?,
            (Left::Halves(_, halves), _) => self.back_of(program, halves, gradients)?,
            (Left::Recomputed(left), Use::Descend) => self.back_again(program, left)?,
            (Left::Recomputed(_), Use::Keep(_)) => unreachable!("training stores its logits"),
        };
        let Sizes { embedding, hidden, .. } = self.sizes;
        let Pairs { counts, rates, losses, .. } = self.pairs;
        let (how, [emb, w1, b1, _, _]) = self.moved(gradients);
        let [b, _, e, h, _] = self.ints();
        let tiles = hidden.div_ceil(SMALL) * embedding.div_ceil(SMALL);
        program.launch(
            self.kernel(&program.device().clone(), "input_weights", how)?,
            Launch::new(blocks(self.batch + tiles, 1), SMALL_THREADS),
            [
                self.ids.read(),
                self.x.read(),
                da.read(),
                dx.read(),
                emb.write(),
                w1.write(),
                b1.write(),
                counts.write(),
                rates.read(),
                losses.read(),
                b,
                e,
                h,
            ],
        );
        Ok(())
    }

    /// The products that have to do with w2.
    fn back_f32(
        &self,
        program: &mut Program,
        logits: Logits,
        gradients: Use,
    ) -> Result<[Slot; 2], Error> {
        let Sizes { vocabulary, hidden, .. } = self.sizes;
        let Self { batch, parameters, h, .. } = *self;
        let dz = logits.z;
        let Pairs { counts, rates, losses, .. } = self.pairs;
        let (how, [_, _, _, w2, b2]) = self.moved(gradients);
        let [b, v, e, h_size, z] = self.ints();
        let device = program.device().clone();
        let [splits, span] = self.parts(&device);
        let back = self.room(program, splits)?;
        let grid = [blocks(batch, LARGE), blocks(hidden, LARGE), blocks(splits, 1)];
        program.launch(
            self.kernel(&device, "output_input", "")?,
            Launch::new_3d(grid, [LARGE_THREADS, 1, 1]),
            [
                dz.read(),
                parameters[3].read(),
                self.row_losses.read(),
                counts.read(),
                back.parts.write(),
                losses.write(),
                b,
                v,
                h_size,
                z,
                int(span),
            ],
        );
        self.hidden_gradient(program, &back, splits)?;
        let tiles = vocabulary.div_ceil(LARGE) * hidden.div_ceil(LARGE);
        program.launch(
            self.kernel(&device, "output_weights", how)?,
            Launch::new(blocks(self.input_tiles() + tiles, 1), LARGE_THREADS),
            [
                dz.read(),
                h.read(),
                back.da.read(),
                parameters[1].read(),
                back.dx.write(),
                w2.write(),
                b2.write(),
                counts.read(),
                rates.read(),
                losses.read(),
                b,
                v,
                e,
                h_size,
                z,
            ],
        );
        Ok([back.da, back.dx])
    }
}

/// Adds the launches of all steps of a family's run.
pub(crate) fn launches(posed: &mut Posed, products: Products) -> Result<(), Error> {
    let Posed { steps, batch, sizes, lr, .. } = *posed;
    let program = &mut posed.program;
    let order: Vec<i32> = (0..steps * batch).map(|pair| pair as i32).collect();
    let pairs = Pairs {
        tokens: posed.tokens,
        targets: posed.targets,
        order: program.input(&Tensor::new(&[order.len()], &order))?,
        counts: program.zeros(DType::I64, 2 * COUNTS)?,
        numbers: program.zeros(DType::F64, 2 * NUMBERS)?,
        rates: program.input(&Tensor::new(&[steps], &vec![lr; steps]))?,
        losses: posed.losses,
    };
    program.copy(posed.before, posed.parameters);
    program.zero(pairs.counts);
    let parameters = posed.layout.parts(posed.parameters);
    let step = Batch::new(program, sizes, batch, pairs, parameters, products)?;
    step.copies(program)?;
    let before = program.len();
    step.logits(program)?;
    step.loss(program)?;
    step.back(program, Use::Descend)?;
    program.repeat(before, steps - 1);
    Ok(())
}

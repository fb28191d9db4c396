//! The launches of a step of B pairs.

use lab_device::{DType, Device, Kernel, Launch};
use lab_harness::program::{Argument, Program, Slot, scalar};
use lab_harness::{Error, Tensor};
use lab_reference::mlp::Sizes;

use crate::kernels::V1_BATCH;
use crate::steps::{Posed, blocks, int, kernel};
use crate::tensor::{Halves, slices};

/// As `Count` and `Number` in `lab/progress.cuh`.
pub(crate) const COUNTS: usize = 6;
pub(crate) const NUMBERS: usize = 3;

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

/// What becomes of the gradients.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    /// They are written into these, emb, w1, b1, w2, b2.
    Keep([Slot; 5]),
    /// The parameters move by −lr times them.
    Descend,
}

/// Where the data are, and where a step stands in them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pairs {
    pub(crate) tokens: Slot,
    pub(crate) targets: Slot,
    /// Of an epoch, the pairs in their order.
    pub(crate) order: Slot,
    pub(crate) counts: Slot,
    pub(crate) numbers: Slot,
    /// Learning rates and losses, one a step of an epoch.
    pub(crate) rates: Slot,
    pub(crate) losses: Slot,
}

/// The launches of a step, and what they leave for each other.
pub(crate) struct Batch {
    pub(crate) sizes: Sizes,
    pub(crate) batch: usize,
    pub(crate) pairs: Pairs,
    /// emb, w1, b1, w2, b2.
    pub(crate) parameters: [Slot; 5],
    pub(crate) ids: Slot,
    pub(crate) x: Slot,
    pub(crate) h: Slot,
    /// Rows of V rounded up to four: the logits, then dz.
    pub(crate) z: Slot,
    pub(crate) stats: Slot,
    pub(crate) row_losses: Slot,
    /// Elements that are loaded at a time.
    pub(crate) pack: usize,
    /// What is in bf16, where products are.
    halves: Option<Halves>,
}

/// What the launches of the way back leave for each other.
pub(crate) struct Back {
    pub(crate) parts: Slot,
    pub(crate) da: Slot,
    pub(crate) dx: Slot,
}

impl Batch {
    pub(crate) fn new(
        program: &mut Program,
        sizes: Sizes,
        batch: usize,
        pairs: Pairs,
        parameters: [Slot; 5],
        arithmetic: DType,
    ) -> Result<Self, Error> {
        let Sizes { vocabulary, embedding, hidden } = sizes;
        let halves = match arithmetic {
            DType::BF16 => Some(Halves::new(program, sizes, batch)?),
            _ => None,
        };
        let slices = match halves {
            Some(_) => slices(program.device(), batch, vocabulary),
            None => vocabulary.div_ceil(LARGE),
        };
        let mut scratch = |len| program.scratch(DType::F32, len);
        let [x, h] = [scratch(batch * embedding)?, scratch(batch * hidden)?];
        let z = scratch(batch * vocabulary.next_multiple_of(4))?;
        let stats = scratch(2 * batch * slices)?;
        Ok(Self {
            sizes,
            batch,
            pairs,
            parameters,
            ids: program.scratch(DType::I32, 2 * batch)?,
            x,
            h,
            z,
            stats,
            row_losses: program.scratch(DType::F64, batch)?,
            pack: if embedding % 4 == 0 && hidden % 4 == 0 { 4 } else { 1 },
            halves,
        })
    }

    fn kernel(&self, device: &Device, name: &str, arguments: &str) -> Result<Kernel, Error> {
        kernel(device, &V1_BATCH, name, &format!("{arguments}{}", self.pack))
    }

    /// What products read in place of parameters, made of them anew.
    pub(crate) fn copies(&self, program: &mut Program) -> Result<(), Error> {
        self.halves.map_or(Ok(()), |halves| self.round(program, halves))
    }

    /// The same at once, of these w2.
    pub(crate) fn write_copies(&self, program: &mut Program, w2: &Tensor) -> Result<(), Error> {
        self.halves.map_or(Ok(()), |halves| halves.write(program, w2))
    }

    /// The logits.
    pub(crate) fn logits(&self, program: &mut Program) -> Result<(), Error> {
        if let Some(halves) = self.halves {
            return self.logits_of(program, halves);
        }
        let Sizes { vocabulary, embedding, hidden } = self.sizes;
        let Pairs { tokens, targets, order, counts, numbers, .. } = self.pairs;
        let [emb, w1, b1, w2, b2] = self.parameters.map(Slot::read);
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
        let grid = [blocks(vocabulary, LARGE), blocks(self.batch, LARGE), 1];
        let [b, v, _, h, z] = self.ints();
        program.launch(
            self.kernel(&device, "logits", "")?,
            Launch::new_3d(grid, [LARGE_THREADS, 1, 1]),
            [self.h.read(), w2, b2, self.z.write(), self.stats.write(), b, v, h, z],
        );
        Ok(())
    }

    /// The losses of the pairs of a step, of which the logits are there; these become dz.
    pub(crate) fn loss(&self, program: &mut Program) -> Result<(), Error> {
        if let Some(halves) = self.halves {
            return self.loss_of(program, halves);
        }
        let softmax = kernel(program.device(), &V1_BATCH, "softmax_loss", "256")?;
        let [b, v, _, _, z] = self.ints();
        program.launch(
            softmax,
            Launch::new(blocks(self.batch, 1), SOFTMAX_THREADS),
            [
                self.ids.read(),
                self.pairs.counts.read(),
                self.stats.read(),
                self.z.write(),
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
    pub(crate) fn back(&self, program: &mut Program, gradients: Use) -> Result<(), Error> {
        let Back { da, dx, .. } = match self.halves {
            Some(halves) => self.back_of(program, halves, gradients)?,
            None => self.back_output(program, gradients)?,
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
    fn back_output(&self, program: &mut Program, gradients: Use) -> Result<Back, Error> {
        let Sizes { vocabulary, hidden, .. } = self.sizes;
        let Self { batch, parameters, h, z: dz, .. } = *self;
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
        Ok(back)
    }
}

/// Adds the launches of all steps of a family's run.
pub(crate) fn launches(posed: &mut Posed, arithmetic: DType) -> Result<(), Error> {
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
    let step = Batch::new(program, sizes, batch, pairs, parameters, arithmetic)?;
    step.copies(program)?;
    let before = program.len();
    step.logits(program)?;
    step.loss(program)?;
    step.back(program, Use::Descend)?;
    program.repeat(before, steps - 1);
    Ok(())
}

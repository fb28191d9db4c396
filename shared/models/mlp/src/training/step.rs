//! The launches of a training step.

use lab_device::{DType, Device, Launch};
use lab_harness::program::{Program, Slot, scalar};
use lab_harness::{Tensor, Tensors};

use super::{Config, Data, Error, Model, Position};
use lab_harness::progress::{COUNTS, NUMBERS};
use lab_training::EpochSlots;
use mlp_fused::kernels::UPDATE;
use mlp_fused::launches::{Batch, Layout, Pairs, Products, Use, blocks, kernel};

const THREADS: u32 = 256;

/// Parameters of a block of the optimizer, and its most blocks, each of which adds up what all have
/// left.
const OF_BLOCK: usize = 4096;
const MOST_BLOCKS: u32 = 256;

/// A program with what the host reads and writes of it.
pub struct Step {
    program: Program,
    pairs: Pairs,
    layout: Layout,
    parameters: Slot,
    kept: Option<Kept>,
}

/// What a step keeps where the optimizer needs more than a gradient once: the gradients, and both
/// moments.
struct Kept {
    gradient: Slot,
    m: Slot,
    v: Slot,
}

impl Step {
    fn update(&mut self, config: &Config) -> Result<(), Error> {
        let Some(Kept { gradient, m, v }) = &self.kept else { return Ok(()) };
        let p = &mut self.program;
        let len = self.layout.len;
        let grid = blocks(len, OF_BLOCK).min(MOST_BLOCKS);
        let squares = p.scratch(DType::F64, grid as usize)?;
        let none = p.scratch(DType::F32, 1)?;
        let sums = kernel(p.device(), &UPDATE, "gradient_squares", "float")?;
        let rule = format!("float, {}", config.optimizer.rule());
        let update = kernel(p.device(), &UPDATE, "update", &rule)?;
        let launch = Launch::new(grid, THREADS);
        p.launch(sums, launch, [gradient.read(), squares.write(), scalar(len as i64)]);
        let [beta1, beta2, eps, decay] = config.optimizer.numbers();
        p.launch(
            update,
            launch,
            [
                self.parameters.write(),
                none.write(),
                gradient.read(),
                m.write(),
                v.write(),
                squares.read(),
                self.pairs.rates.read(),
                self.pairs.losses.read(),
                self.pairs.counts.write(),
                self.pairs.numbers.write(),
                scalar(beta1),
                scalar(beta2),
                scalar(eps),
                scalar(decay),
                scalar(config.clip.unwrap_or(0.0)),
                scalar(0i32), // the loss is not scaled
                scalar(grid as i32),
                scalar(len as i64),
            ],
        );
        Ok(())
    }
}

impl lab_training::Step for Step {
    type Model = Model;
    type Data = Data;
    const SAMPLES: &'static str = "pairs";

    fn check(model: &Model, config: &Config, data: &Data, starts: &[usize]) -> Result<(), Error> {
        model.check()?;
        config.check()?;
        data.check(model)?;
        Ok(data.check_starts(starts)?)
    }

    fn initial(model: &Model, config: &Config) -> Tensors {
        model.initial(config.seed)
    }

    fn first_scale(_config: &Config) -> f64 {
        1.0
    }

    fn digest(data: &Data, starts: &[usize]) -> String {
        data.digest(starts)
    }

    fn new(
        device: &Device,
        model: &Model,
        config: &Config,
        data: &Data,
        count: usize,
        parameters: &Tensors,
    ) -> Result<Self, Error> {
        model.check_parameters(parameters)?;
        let layout = Layout::of(&model.sizes(), &model.sizes());
        let mut p = Program::new(device);
        let (tokens, steps) = (data.tokens.len(), count.div_ceil(config.batch));
        let all = p.input(&Tensor::new(&[tokens], &data.tokens))?;
        let pairs = Pairs {
            tokens: all,
            targets: all.part(1, tokens - 1),
            order: p.zeros(DType::I32, count)?,
            counts: p.zeros(DType::I64, 2 * COUNTS)?,
            numbers: p.zeros(DType::F64, 2 * NUMBERS)?,
            rates: p.zeros(DType::F64, steps)?,
            losses: p.zeros(DType::F64, steps)?,
        };
        let first = parameters;
        let parameters = p.input(&layout.pack(DType::F32, first))?;
        let mut zeros = || p.zeros(DType::F32, layout.len);
        let kept = match config.descends() {
            true => None,
            false => Some(Kept { gradient: zeros()?, m: zeros()?, v: zeros()? }),
        };
        let parts = layout.parts(parameters);
        let products = Products::of(config.dtype);
        let batch = Batch::new(&mut p, model.sizes(), config.batch, pairs, parts, products)?;
        match kept {
            // Whatever moves the parameters moves their copies.
            None => batch.write_copies(&mut p, &first["w2"])?,
            Some(_) => batch.copies(&mut p)?,
        }
        batch.logits(&mut p)?;
        batch.loss(&mut p)?;
        let mut step = Self { program: p, pairs, layout, parameters, kept };
        match &step.kept {
            None => batch.back(&mut step.program, Use::Descend)?,
            Some(Kept { gradient, .. }) => {
                let gradient = *gradient;
                // Of embeddings of other tokens.
                step.program.zero(gradient);
                let parts = step.layout.parts(gradient);
                batch.back(&mut step.program, Use::Keep(parts))?;
                step.update(config)?;
            }
        }
        Ok(step)
    }

    fn program(&self) -> &Program {
        &self.program
    }

    fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    fn slots(&self) -> EpochSlots {
        let Pairs { order, counts, numbers, rates, losses, .. } = self.pairs;
        EpochSlots { order, counts, numbers, rates, losses }
    }

    fn parameters(&self) -> Result<Tensors, Error> {
        Ok(self.layout.unpack(&self.program.read(self.parameters)?))
    }

    fn gradients(&self) -> Result<Tensors, Error> {
        match &self.kept {
            Some(Kept { gradient, .. }) => Ok(self.layout.unpack(&self.program.read(*gradient)?)),
            None => Ok(Tensors::new()),
        }
    }

    fn moments(&self) -> Result<[Tensors; 2], Error> {
        let Some(Kept { m, v, .. }) = &self.kept else {
            return Ok([Tensors::new(), Tensors::new()]);
        };
        let read = |slot: &Slot| Ok::<_, Error>(self.layout.unpack(&self.program.read(*slot)?));
        Ok([read(m)?, read(v)?])
    }

    fn write_moments(&mut self, [first, second]: [&Tensors; 2]) -> Result<(), Error> {
        let Self { program, layout, kept, .. } = self;
        if let Some(Kept { m, v, .. }) = kept {
            program.write(*m, &layout.pack(DType::F32, first))?;
            program.write(*v, &layout.pack(DType::F32, second))?;
        }
        Ok(())
    }

    fn first_bad(&self, position: Position, _samples: &[usize]) -> Result<Error, Error> {
        let Position { epoch, step, .. } = position;
        let named = |all: Tensors, prefix: &str| -> Vec<(String, Vec<f64>)> {
            all.into_iter().map(|(n, t)| (format!("{prefix}{n}"), t.values())).collect()
        };
        let mut all = named(self.parameters()?, "");
        let loss = self.program.read(self.pairs.losses)?.values()[step];
        all.push(("the loss".into(), vec![loss]));
        all.extend(named(self.gradients()?, "the gradient by "));
        let found = all.into_iter().find_map(|(tensor, values)| {
            let index = values.iter().position(|v| !v.is_finite())?;
            Some((tensor, index, values[index]))
        });
        // Gradients may all be finite, and the sum of their squares not.
        let (tensor, index, value) = found.unwrap_or(("the norm".into(), 0, f64::INFINITY));
        Ok(Error::NotFinite { epoch, step, tensor, index, value })
    }
}

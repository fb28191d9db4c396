//! The launches of a training step.

use lab_device::{DType, Device};
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::{Binding, Tensor, Tensors, arguments};

use super::{Config, Data, Error, Model, Position};
use crate::kernels::PROMISE;
use lab_harness::progress::{COUNTS, NUMBERS};
use lab_training::{EpochSlots, Update};
use mlp_fused::kernels::UPDATE;
use mlp_fused::launches::{Batch, Layout, Pairs, Products, Use};

/// The launches, bound, with what the host reads and writes of them.
pub struct Step {
    binding: Binding,
    pairs: Pairs,
    layout: Layout,
    parameters: Slot,
    kept: Option<Kept>,
}

/// What a step keeps where the optimizer needs more than a gradient once: the gradients, and both
/// moments.
#[derive(Clone, Copy)]
struct Kept {
    gradient: Slot,
    m: Slot,
    v: Slot,
}

impl Kept {
    /// Of the slots.
    const NAMES: [&str; 3] = ["gradient", "m", "v"];

    /// Adds the slots, each of so many elements.
    fn new(plan: &mut Plan, len: usize) -> Self {
        let [gradient, m, v] = Self::NAMES.map(|name| plan.state(name, DType::F32, &[len]));
        Self { gradient, m, v }
    }
}

/// Adds the launches of the optimizer, which moves the parameters by the gradients.
fn add_optimizer(
    plan: &mut Plan,
    config: &Config,
    pairs: &Pairs,
    parameters: Slot,
    Kept { gradient, m, v }: Kept,
) -> Result<(), Error> {
    // The network reads the parameters themselves.
    let copy = plan.scratch(DType::F32, 1);
    let Pairs { counts, numbers, rates, losses, .. } = *pairs;
    let scope = Scope::new()
        .with(arguments![p: parameters, copy, m, v])
        // The loss is not scaled.
        .with(arguments![rates, losses, counts, numbers, every: 0]);
    let Config { optimizer, clip, .. } = *config;
    let (promise, dtype) = (PROMISE, DType::F32);
    let update = Update { source: &UPDATE, promise, dtype, optimizer, clip, few: 0 };
    Ok(update.add(plan, &scope, gradient)?)
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
        let layout = Layout::new(&model.sizes(), &model.sizes());
        let (tokens, steps) = (data.tokens.len(), count.div_ceil(config.batch));
        let mut plan = Plan::new(device);
        let text = plan.input("tokens", DType::I32, &[tokens]);
        let pairs = Pairs {
            tokens: text,
            targets: text.part(1, tokens - 1),
            order: plan.state("order", DType::I32, &[count]),
            counts: plan.state("counts", DType::I64, &[2 * COUNTS]),
            numbers: plan.state("numbers", DType::F64, &[2 * NUMBERS]),
            rates: plan.state("rates", DType::F64, &[steps]),
            losses: plan.state("losses", DType::F64, &[steps]),
        };
        let flat = plan.state("parameters", DType::F32, &[layout.len]);
        let kept = (!config.descends()).then(|| Kept::new(&mut plan, layout.len));
        let products = Products::for_dtype(config.dtype);
        let parts = layout.parts(flat);
        let (sizes, count) = (model.sizes(), config.batch);
        let batch = Batch::new(&mut plan, PROMISE, sizes, count, pairs, parts, products);
        if kept.is_some() {
            batch.add_rounding(&mut plan)?;
        }
        batch.add_logits(&mut plan)?;
        batch.add_loss(&mut plan)?;
        match kept {
            None => batch.add_backward(&mut plan, Use::Descend)?,
            Some(kept) => {
                // Of embeddings of other tokens.
                plan.zero(kept.gradient);
                let parts = layout.parts(kept.gradient);
                batch.add_backward(&mut plan, Use::Keep(parts))?;
                add_optimizer(&mut plan, config, &pairs, flat, kept)?;
            }
        }

        let text = Tensor::new(&[tokens], &data.tokens);
        let packed = layout.pack(DType::F32, parameters);
        let zeros = Tensor::new(&[layout.len], &vec![0f32; layout.len]);
        let mut binder = plan.bind().upload("tokens", &text)?.upload("parameters", &packed)?;
        for name in kept.iter().flat_map(|_| Kept::NAMES) {
            binder = binder.upload(name, &zeros)?;
        }
        let mut binding = binder.finish()?;
        // Whatever moves the parameters moves their copies.
        if let (None, Some((copy, rounded))) = (kept, batch.rounded_weights(&parameters["w2"])) {
            binding.write(copy, &rounded)?;
        }
        Ok(Self { binding, pairs, layout, parameters: flat, kept })
    }

    fn binding(&self) -> &Binding {
        &self.binding
    }

    fn binding_mut(&mut self) -> &mut Binding {
        &mut self.binding
    }

    fn slots(&self) -> EpochSlots {
        let Pairs { order, counts, numbers, rates, losses, .. } = self.pairs;
        EpochSlots { order, counts, numbers, rates, losses }
    }

    fn parameters(&self) -> Result<Tensors, Error> {
        Ok(self.layout.unpack(&self.binding.read(self.parameters)?))
    }

    fn gradients(&self) -> Result<Tensors, Error> {
        match &self.kept {
            Some(Kept { gradient, .. }) => Ok(self.layout.unpack(&self.binding.read(*gradient)?)),
            None => Ok(Tensors::new()),
        }
    }

    fn moments(&self) -> Result<[Tensors; 2], Error> {
        let Some(Kept { m, v, .. }) = &self.kept else {
            return Ok([Tensors::new(), Tensors::new()]);
        };
        let read = |slot: &Slot| Ok::<_, Error>(self.layout.unpack(&self.binding.read(*slot)?));
        Ok([read(m)?, read(v)?])
    }

    fn write_moments(&mut self, [first, second]: [&Tensors; 2]) -> Result<(), Error> {
        let Self { binding, layout, kept, .. } = self;
        if let Some(Kept { m, v, .. }) = kept {
            binding.write(*m, &layout.pack(DType::F32, first))?;
            binding.write(*v, &layout.pack(DType::F32, second))?;
        }
        Ok(())
    }

    fn first_bad(&self, position: Position, _samples: &[usize]) -> Result<Error, Error> {
        let Position { epoch, step, .. } = position;
        let named = |all: Tensors, prefix: &str| -> Vec<(String, Vec<f64>)> {
            all.into_iter().map(|(n, t)| (format!("{prefix}{n}"), t.values())).collect()
        };
        let mut all = named(self.parameters()?, "");
        let loss = self.binding.read(self.pairs.losses)?.values()[step];
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

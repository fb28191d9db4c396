//! A training step, or the outputs alone: its slots, and what it launches.

mod diagnose;
mod launches;
mod tensor_head;

use lab_device::{DType, Device};
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::{Binding, Error, Tensor, Tensors, arguments};
use lab_layers::Parameters;

use super::data::read_rows;
use super::flat::arena_of;
use super::{Config, Data, Model};
use lab_training::{self as training, EpochSlots, Position};
use launches::Builder;

pub(crate) use lab_harness::progress::*;

/// A binding with what the host reads and writes of it.
pub struct Step {
    pub(crate) binding: Binding,
    pub(crate) arena: Parameters,
    pub(crate) slots: Slots,
    config: Config,
    /// Of the data on the device.
    rows: usize,
}

/// What the host reads and writes, and several launches share.
pub(crate) struct Slots {
    /// The data.
    pub(crate) values: Slot,
    pub(crate) order: Slot,
    pub(crate) counts: Slot,
    pub(crate) numbers: Slot,
    /// What the network reads.
    pub(crate) weights: Slot,
    pub(crate) x: Slot,
    /// Of each layer.
    pub(crate) ys: Vec<Slot>,
    pub(crate) z: Slot,
    pub(crate) row_losses: Slot,
    pub(crate) training: Option<Training>,
}

/// What only training has.
#[derive(Clone, Copy)]
pub(crate) struct Training {
    /// In the arithmetic's type: `weights` itself where that is the network's.
    pub(crate) master: Slot,
    pub(crate) gradient: Slot,
    pub(crate) m: Slot,
    pub(crate) v: Slot,
    pub(crate) rates: Slot,
    pub(crate) losses: Slot,
}

impl Step {
    /// The outputs and losses of B windows, without parameters yet.
    pub(crate) fn outputs(
        device: &Device,
        model: &Model,
        config: &Config,
        data: &Data,
    ) -> Result<Self, Error> {
        Self::build(device, model, config, data, config.batch, None)
    }

    fn build(
        device: &Device,
        model: &Model,
        config: &Config,
        data: &Data,
        windows: usize,
        parameters: Option<&Tensors>,
    ) -> Result<Self, Error> {
        let Config { dtype, window, batch, .. } = *config;
        let (master, train) = (config.master(), parameters.is_some());
        let arena = arena_of(model);
        let z_rows = read_rows(model, config);
        let steps = windows.div_ceil(batch);
        let mut uploads = Uploads { plan: Plan::new(device), tensors: Vec::new() };
        let u = &mut uploads;
        let values = u.input("values", data.padded(master));
        let order = u.zero_state("order", DType::I32, windows);
        let counts = u.zero_state("counts", DType::I64, 2 * COUNTS);
        let numbers = u.state("numbers", Tensor::new(&[2 * NUMBERS], &[1f64; 2 * NUMBERS]));
        let weights = match parameters {
            Some(all) => u.state("weights", arena.pack(dtype, all)),
            None => u.zero_state("weights", dtype, arena.len()),
        };
        let training = parameters.map(|all| Training {
            master: if master == dtype {
                weights
            } else {
                u.state("master", arena.pack(master, all))
            },
            gradient: u.zero_state("gradient", dtype, arena.len()),
            m: u.zero_state("m", master, arena.len()),
            v: u.zero_state("v", master, arena.len()),
            rates: u.zero_state("rates", DType::F64, steps),
            losses: u.zero_state("losses", DType::F64, steps),
        });
        let Uploads { mut plan, tensors } = uploads;
        let lengths = plan.scratch(DType::I32, batch);
        let x = plan.output("x", dtype, &[window, batch, model.network.inputs]);
        let y = plan.output("y", dtype, &[window, batch, model.features()]);
        let z = plan.output("z", master, &[z_rows, model.outputs]);
        let row_losses = plan.output("row_losses", DType::F64, &[z_rows]);
        let ys = Vec::new();
        let mut slots =
            Slots { values, order, counts, numbers, weights, x, ys, z, row_losses, training };
        let scope = Scope::new()
            .with(arguments![values, tokens: values, data: values, order, counts, numbers])
            .with(arguments![lengths, x, y, z, row_losses])
            .with(arguments![windows, steps: window, B: batch, C: data.columns()]);
        let mut builder = Builder { model, config, data, arena: &arena, scope, plan };
        builder.add_gather()?;
        builder.add_network(&mut slots, lengths, y, train)?;
        if let Some(training) = &slots.training {
            builder.add_update(weights, training)?;
        }
        let mut binder = builder.plan.bind();
        for (name, tensor) in &tensors {
            binder = binder.upload(name, tensor)?;
        }
        let binding = binder.finish()?;
        Ok(Self { binding, arena, slots, config: *config, rows: data.len() + 1 })
    }
}

/// A plan, with tensors for slots of it.
struct Uploads {
    plan: Plan,
    tensors: Vec<(&'static str, Tensor)>,
}

impl Uploads {
    fn input(&mut self, name: &'static str, tensor: Tensor) -> Slot {
        let slot = self.plan.input(name, tensor.dtype, &tensor.shape);
        self.tensors.push((name, tensor));
        slot
    }

    fn state(&mut self, name: &'static str, tensor: Tensor) -> Slot {
        let slot = self.plan.state(name, tensor.dtype, &tensor.shape);
        self.tensors.push((name, tensor));
        slot
    }

    fn zero_state(&mut self, name: &'static str, dtype: DType, len: usize) -> Slot {
        let bytes = vec![0; len * dtype.size()];
        self.state(name, Tensor { dtype, shape: vec![len], bytes })
    }
}

/// What a trainer needs of a step that has it.
impl Step {
    fn training(&self) -> &Training {
        self.slots.training.as_ref().expect("a step of a trainer")
    }

    fn read_unpacked(&self, slot: Slot) -> Result<Tensors, training::Error> {
        Ok(self.arena.unpack(&self.binding.read(slot)?))
    }
}

impl training::Step for Step {
    type Model = Model;
    type Data = Data;
    const SAMPLES: &'static str = "windows";

    fn check(
        model: &Model,
        config: &Config,
        data: &Data,
        starts: &[usize],
    ) -> Result<(), training::Error> {
        model.check()?;
        config.check(&model.network)?;
        data.check(model)?;
        Ok(data.check_starts(starts, config.window, true)?)
    }

    fn initial(model: &Model, config: &Config) -> Tensors {
        model.initial(config.master(), config.seed)
    }

    fn first_scale(config: &Config) -> f64 {
        config.loss_scale.first()
    }

    fn digest(data: &Data, starts: &[usize]) -> String {
        data.digest(starts)
    }

    fn new(
        device: &Device,
        model: &Model,
        config: &Config,
        data: &Data,
        windows: usize,
        parameters: &Tensors,
    ) -> Result<Self, training::Error> {
        Ok(Self::build(device, model, config, data, windows, Some(parameters))?)
    }

    fn binding(&self) -> &Binding {
        &self.binding
    }

    fn binding_mut(&mut self) -> &mut Binding {
        &mut self.binding
    }

    fn slots(&self) -> EpochSlots {
        let Slots { order, counts, numbers, .. } = self.slots;
        let Training { rates, losses, .. } = *self.training();
        EpochSlots { order, counts, numbers, rates, losses }
    }

    fn parameters(&self) -> Result<Tensors, training::Error> {
        self.read_unpacked(self.training().master)
    }

    fn gradients(&self) -> Result<Tensors, training::Error> {
        self.read_unpacked(self.training().gradient)
    }

    fn moments(&self) -> Result<[Tensors; 2], training::Error> {
        let Training { m, v, .. } = *self.training();
        Ok([self.read_unpacked(m)?, self.read_unpacked(v)?])
    }

    fn write_moments(&mut self, [first, second]: [&Tensors; 2]) -> Result<(), training::Error> {
        let (Training { m, v, .. }, master) = (*self.training(), self.config.master());
        let Self { binding, arena, .. } = self;
        binding.write(m, &arena.pack(master, first))?;
        Ok(binding.write(v, &arena.pack(master, second))?)
    }

    fn first_bad(
        &self,
        position: Position,
        samples: &[usize],
    ) -> Result<training::Error, training::Error> {
        self.find_first_bad(position, samples)
    }
}

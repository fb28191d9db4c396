//! A training step, or the outputs alone: its buffers, and what it launches.

mod diagnose;
mod launches;

use lab_device::{DType, Device};
use lab_harness::program::{Program, Slot};
use lab_harness::{Error, Tensor, Tensors};

use super::data::read_rows;
use super::flat::Layout;
use super::{Config, Data, Model};
use lab_training::{self as training, EpochSlots, Position};
use launches::Builder;

pub(crate) use lab_harness::progress::*;

/// A program with what the host reads and writes of it.
pub struct Step {
    pub(crate) program: Program,
    pub(crate) layout: Layout,
    config: Config,
    /// Of the data on the device.
    rows: usize,
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
        let layout = Layout::of(model);
        let mut p = Program::new(device);
        let (values, lengths) = (data.upload(&mut p, master)?, p.scratch(DType::I32, batch)?);
        let order = p.zeros(DType::I32, windows)?;
        let counts = p.zeros(DType::I64, 2 * COUNTS)?;
        let numbers = p.input(&Tensor::new(&[2 * NUMBERS], &[1f64; 2 * NUMBERS]))?;
        let weights = match parameters {
            Some(all) => p.input(&layout.pack(dtype, all))?,
            None => p.zeros(dtype, layout.len)?,
        };
        let x = p.scratch(dtype, window * batch * model.network.inputs)?;
        let y = p.scratch(dtype, window * batch * model.features())?;
        let z = p.scratch(master, read_rows(model, config) * model.outputs)?;
        let row_losses = p.scratch(DType::F64, read_rows(model, config))?;
        let training = match parameters {
            None => None,
            Some(all) => Some(Training {
                master: match master == dtype {
                    true => weights,
                    false => p.input(&layout.pack(master, all))?,
                },
                gradient: p.zeros(dtype, layout.len)?,
                m: p.zeros(master, layout.len)?,
                v: p.zeros(master, layout.len)?,
                rates: p.zeros(DType::F64, windows.div_ceil(batch))?,
                losses: p.zeros(DType::F64, windows.div_ceil(batch))?,
            }),
        };
        let ys = Vec::new();
        let mut step = Self {
            program: Program::new(device),
            layout,
            config: *config,
            rows: data.len() + 1,
            values,
            order,
            counts,
            numbers,
            weights,
            x,
            ys,
            z,
            row_losses,
            training,
        };
        let mut builder = Builder { model, config, data, windows, p, lengths };
        builder.gather(&step)?;
        builder.network(&mut step, y, train)?;
        if let Some(training) = &step.training {
            builder.update(&step, training)?;
        }
        step.program = builder.p;
        Ok(step)
    }
}

/// What a trainer needs of a step that has it.
impl Step {
    fn trained(&self) -> &Training {
        self.training.as_ref().expect("of a trainer")
    }

    fn unpacked(&self, slot: Slot) -> Result<Tensors, training::Error> {
        Ok(self.layout.unpack(&self.program.read(slot)?))
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

    fn program(&self) -> &Program {
        &self.program
    }

    fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    fn slots(&self) -> EpochSlots {
        let Self { order, counts, numbers, .. } = *self;
        let Training { rates, losses, .. } = *self.trained();
        EpochSlots { order, counts, numbers, rates, losses }
    }

    fn parameters(&self) -> Result<Tensors, training::Error> {
        self.unpacked(self.trained().master)
    }

    fn gradients(&self) -> Result<Tensors, training::Error> {
        self.unpacked(self.trained().gradient)
    }

    fn moments(&self) -> Result<[Tensors; 2], training::Error> {
        let Training { m, v, .. } = *self.trained();
        Ok([self.unpacked(m)?, self.unpacked(v)?])
    }

    fn write_moments(&mut self, [first, second]: [&Tensors; 2]) -> Result<(), training::Error> {
        let (Training { m, v, .. }, master) = (*self.trained(), self.config.master());
        let Self { program, layout, .. } = self;
        program.write(m, &layout.pack(master, first))?;
        Ok(program.write(v, &layout.pack(master, second))?)
    }

    fn first_bad(
        &self,
        position: Position,
        samples: &[usize],
    ) -> Result<training::Error, training::Error> {
        self.find_first_bad(position, samples)
    }
}

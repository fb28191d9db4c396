//! A training step, or the outputs alone: its buffers, and what it launches.

mod launches;

use lab_device::{DType, Device};
use lab_harness::program::{Program, Slot};
use lab_harness::{Error, Tensor, Tensors};

use super::data::read_rows;
use super::flat::Layout;
use super::{Config, Data, Model};
use launches::Builder;

pub(crate) use lab_harness::progress::*;

/// A program with what the host reads and writes of it.
pub(crate) struct Step {
    pub(crate) program: Program,
    pub(crate) layout: Layout,
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
    /// Of an epoch of so many windows. Parameters of the master's type.
    pub(crate) fn training(
        device: &Device,
        model: &Model,
        config: &Config,
        data: &Data,
        windows: usize,
        parameters: &Tensors,
    ) -> Result<Self, Error> {
        Self::new(device, model, config, data, windows, Some(parameters))
    }

    /// The outputs and losses of B windows, without parameters yet.
    pub(crate) fn outputs(
        device: &Device,
        model: &Model,
        config: &Config,
        data: &Data,
    ) -> Result<Self, Error> {
        Self::new(device, model, config, data, config.batch, None)
    }

    fn new(
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

//! The launches of a training step, and those of the outputs alone.

use lab_device::{DType, Device, Launch};
use lab_harness::program::{Program, Slot, math_scalar, scalar};
use lab_harness::{Error, Tensor, Tensors};
use lab_reference::lstm::{Cell, Parameter};

use super::data::read_rows;
use super::flat::Layout;
use super::{Config, Data, Model};
use crate::direction::{Common, CommonGradients, int, kernel};
use crate::kernels;

const THREADS: u32 = 256;
const SUM_THREADS: u32 = 128;

/// Outputs and columns up to which a warp has a row of the head, and beyond which four have.
const NARROW: usize = 64;

/// Parameters of a block of the optimizer, and its most blocks, each of which adds up what all have
/// left; parameters that one block does alone, at one launch instead of two.
const OF_BLOCK: usize = 4096;
const MOST_BLOCKS: u32 = 256;
const OF_ONE_BLOCK: usize = 8192;

/// As `Count` and `Number` in `lab/progress.cuh`.
pub(crate) const COUNTS: usize = 6;
pub(crate) const NUMBERS: usize = 3;
pub(crate) const STEP: usize = 0;
pub(crate) const TAKEN: usize = 1;
pub(crate) const UPDATES: usize = 2;
pub(crate) const SKIPPED: usize = 4;
pub(crate) const STOPPED: usize = 5;
pub(crate) const SCALE: usize = 0;
pub(crate) const POWERS: usize = 1;

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

fn blocks(size: usize, each: usize) -> u32 {
    u32::try_from(size.div_ceil(each)).expect("sizes that were checked")
}

/// What the launches are made of.
struct Builder<'a> {
    model: &'a Model,
    config: &'a Config,
    data: &'a Data,
    /// Windows of an epoch, of which each step takes B.
    windows: usize,
    p: Program,
    lengths: Slot,
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

impl Builder<'_> {
    fn gather(&mut self, step: &Step) -> Result<(), Error> {
        let Config { dtype, window, batch, .. } = *self.config;
        let columns = self.data.columns();
        let name = if self.data.is_text() { "gather_text" } else { "gather_series" };
        let gather = kernel(self.p.device(), &kernels::GATHER, name, dtype, "")?;
        let arguments = [
            step.values.read(),
            step.order.read(),
            step.counts.write(),
            step.numbers.write(),
            self.lengths.write(),
            step.x.write(),
            int(self.windows),
            int(window),
            int(batch),
            int(columns),
        ];
        let elements = (window * batch * columns).max(batch);
        self.p.launch(gather, Launch::new(blocks(elements, THREADS as usize), THREADS), arguments);
        Ok(())
    }

    /// The network and the head, forward, and where it is trained backward.
    fn network(&mut self, step: &mut Step, y: Slot, train: bool) -> Result<(), Error> {
        let Config { dtype, window, batch, .. } = *self.config;
        let network = &self.model.network;
        let lstm = self.config.lstm(self.p.device(), *network)?;
        let sizes = lstm.sizes(dtype, window, batch);
        let of_states = network.layers * sizes.directions * batch * network.hidden;
        let is_lstm = network.cell == Cell::Lstm;
        // Zero before the first step, and no gradient behind the last.
        let zeros = self.p.zeros(dtype, of_states)?;
        let mut state = || self.p.scratch(dtype, of_states);
        let [hn, cn] = [state()?, state()?];
        let c = is_lstm.then_some([zeros, cn]);
        let common = Common { h0: zeros, hn, c, lengths: self.lengths };

        let (layout, weights) = (step.layout.clone(), step.weights);
        let own = |_: &mut Program, of: &Parameter| Ok(layout.part(weights, &of.name));
        let (config, counts) = (self.config, step.counts);
        let mut ys = Vec::new();
        let between = |p: &mut Program, layer, y: Slot| {
            ys.push(y);
            if train { dropout(p, config, counts, layer, y) } else { Ok(y) }
        };
        let layers = lstm.forward(&mut self.p, sizes, &common, [step.x, y], train, own, between)?;
        ys.push(y);
        step.ys = ys;

        let dy = match train {
            // Where no z is read there is no gradient.
            true => self.p.zeros(dtype, window * batch * self.model.features())?,
            false => self.p.scratch(dtype, 1)?,
        };
        self.head(step, y, dy, train)?;
        let Some(training) = &step.training else { return Ok(()) };
        let gradient = training.gradient;
        let mut state = || self.p.scratch(dtype, of_states);
        let [dh0, dc0] = [state()?, state()?];
        let c = is_lstm.then_some([zeros, dc0]);
        let states = CommonGradients { dhn: zeros, dh0, c };
        let by = |_: &mut Program, of: &Parameter| Ok(layout.part(gradient, &of.name));
        let between = |p: &mut Program, layer, dx| dropout(p, config, counts, layer, dx);
        lstm.backward(&mut self.p, &layers, dy, None, &states, by, between)
    }

    fn head(&mut self, step: &Step, y: Slot, dy: Slot, train: bool) -> Result<(), Error> {
        let Config { dtype, window, batch, .. } = *self.config;
        let Model { outputs, .. } = *self.model;
        let (features, rows) = (self.model.features(), read_rows(self.model, self.config));
        let (from, text) = (self.model.from(window), self.data.is_text());
        let dz = self.p.scratch(self.config.master(), rows * outputs)?;
        let device = self.p.device();
        let threads = if outputs.max(features) <= NARROW { 32 } else { 128 };
        let data = if text { "int" } else { self.config.master().cpp() };
        let arguments = format!("{data}, {text}, {threads}");
        let loss = kernel(device, &kernels::HEAD, "head_loss", dtype, &arguments)?;
        let weight = |name| step.layout.part(step.weights, name);
        let sizes = [batch, self.data.columns(), outputs, features].map(int);
        self.p.launch(
            loss,
            Launch::new(blocks(rows, 1), threads),
            [
                y.read(),
                weight("head_weight").read(),
                weight("head_bias").read(),
                step.values.read(),
                step.order.read(),
                step.counts.read(),
                step.numbers.read(),
                step.z.write(),
                dz.write(),
                dy.write(),
                step.row_losses.write(),
                int(self.windows),
                int(window),
                int(from),
                sizes[0],
                sizes[1],
                sizes[2],
                sizes[3],
                scalar(i32::from(train)),
            ],
        );
        let Some(training) = &step.training else { return Ok(()) };
        let gradient = |name| step.layout.part(training.gradient, name);
        let sums = kernel(self.p.device(), &kernels::HEAD, "head_gradient", dtype, "")?;
        let all = outputs * (features + 1);
        self.p.launch(
            sums,
            Launch::new(blocks(all, SUM_THREADS as usize) + 1, SUM_THREADS),
            [
                y.part(from * batch * features, rows * features).read(),
                dz.read(),
                step.row_losses.read(),
                step.counts.read(),
                gradient("head_weight").write(),
                gradient("head_bias").write(),
                training.losses.write(),
                int(rows),
                int(outputs),
                int(features),
            ],
        );
        Ok(())
    }

    fn update(&mut self, step: &Step, training: &Training) -> Result<(), Error> {
        let Config { dtype, optimizer, clip, loss_scale, .. } = *self.config;
        let len = step.layout.len;
        let alone = len <= OF_ONE_BLOCK;
        let grid = if alone { 1 } else { blocks(len, OF_BLOCK).min(MOST_BLOCKS) };
        let squares = self.p.scratch(DType::F64, grid as usize)?;
        let copy = match training.master == step.weights {
            true => self.p.scratch(dtype, 1)?,
            false => step.weights,
        };
        let device = self.p.device();
        let sums = kernel(device, &kernels::UPDATE, "gradient_squares", dtype, "")?;
        let update = kernel(device, &kernels::UPDATE, "update", dtype, optimizer.rule())?;
        let launch = Launch::new(grid, THREADS);
        let all = [training.gradient.read(), squares.write(), scalar(len as i64)];
        if !alone {
            self.p.launch(sums, launch, all);
        }
        let [beta1, beta2, eps, decay] = optimizer.numbers();
        self.p.launch(
            update,
            launch,
            [
                training.master.write(),
                copy.write(),
                training.gradient.read(),
                training.m.write(),
                training.v.write(),
                squares.read(),
                training.rates.read(),
                training.losses.read(),
                step.counts.write(),
                step.numbers.write(),
                scalar(beta1),
                scalar(beta2),
                scalar(eps),
                scalar(decay),
                scalar(clip.unwrap_or(0.0)),
                int(loss_scale.every()),
                scalar(if alone { 0 } else { grid as i32 }),
                scalar(len as i64),
            ],
        );
        Ok(())
    }
}

/// What reaches the other side of dropout between a layer and the next.
fn dropout(
    p: &mut Program,
    config: &Config,
    counts: Slot,
    layer: usize,
    from: Slot,
) -> Result<Slot, Error> {
    if config.dropout == 0.0 {
        return Ok(from);
    }
    let len = from.len();
    let to = p.scratch(config.dtype, len)?;
    let dropout = kernel(p.device(), &kernels::DROPOUT, "dropout", config.dtype, "")?;
    let threshold = (config.dropout * 4_294_967_296.0) as u32;
    p.launch(
        dropout,
        Launch::new(blocks(len, THREADS as usize), THREADS),
        [
            from.read(),
            to.write(),
            counts.read(),
            scalar(config.seed),
            scalar(threshold),
            math_scalar(config.dtype, 1.0 / (1.0 - config.dropout)),
            int(layer),
            scalar(len as i64),
        ],
    );
    Ok(to)
}

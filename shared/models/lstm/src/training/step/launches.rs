//! The launches of a step, one after the other.

use lab_device::{DType, Launch};
use lab_harness::Error;
use lab_harness::program::{Program, Slot, math_scalar, scalar};
use lab_reference::lstm::{Cell, Parameter};

use super::super::data::read_rows;
use super::super::{Config, Data, Model};
use super::{Step, Training};
use lstm_fused::launches::{Common, CommonGradients, HeadSums, Upstream, blocks, int, kernel};
use lstm_fused::{Pass, kernels};

const THREADS: u32 = 256;

/// Outputs and columns up to which a warp has a row of the head, and beyond which four have.
const NARROW: usize = 64;

/// Parameters of a block of the optimizer, and its most blocks, each of which adds up what all have
/// left. So few parameters that each block squares all gradients itself, at one launch instead of two; a
/// thread has one to update then.
const OF_BLOCK: usize = 4096;
const MOST_BLOCKS: u32 = 256;
const FEW: usize = 8192;

/// What the launches are made of.
pub(super) struct Builder<'a> {
    pub(super) model: &'a Model,
    pub(super) config: &'a Config,
    pub(super) data: &'a Data,
    /// Windows of an epoch, of which each step takes B.
    pub(super) windows: usize,
    pub(super) p: Program,
    pub(super) lengths: Slot,
}

impl Builder<'_> {
    pub(super) fn gather(&mut self, step: &Step) -> Result<(), Error> {
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
    pub(super) fn network(&mut self, step: &mut Step, y: Slot, train: bool) -> Result<(), Error> {
        let Config { dtype, window, batch, .. } = *self.config;
        let network = &self.model.network;
        let lstm = self.config.lstm(self.p.device(), *network)?;
        let pass = if train { Pass::ForwardBackward } else { Pass::Forward };
        let sizes = lstm.sizes(dtype, window, batch, pass);
        let of_states = network.layers * network.directions() * batch * network.hidden;
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
        let layers = lstm.forward(&mut self.p, sizes, &common, [step.x, y], own, between)?;
        ys.push(y);
        step.ys = ys;

        let dy = match train {
            // Where no z is read there is no gradient.
            true => self.p.zeros(dtype, window * batch * self.model.features())?,
            false => self.p.scratch(dtype, 1)?,
        };
        let dz = self.head(step, y, dy, train)?;
        let Some(training) = &step.training else { return Ok(()) };
        let head = self.head_sums(step, training, dz);
        let gradient = training.gradient;
        let mut state = || self.p.scratch(dtype, of_states);
        let [dh0, dc0] = [state()?, state()?];
        let c = is_lstm.then_some([zeros, dc0]);
        let states = CommonGradients { dhn: zeros, dh0, c };
        let by = |_: &mut Program, of: &Parameter| Ok(layout.part(gradient, &of.name));
        let between = |p: &mut Program, layer, dx| dropout(p, config, counts, layer, dx);
        let upstream = Upstream { dy, states: &states };
        lstm.backward(&mut self.p, &layers, upstream, None, Some(head), by, between)
    }

    /// z and the losses of all rows; where it is trained also dy, and dz, which it gives.
    fn head(&mut self, step: &Step, y: Slot, dy: Slot, train: bool) -> Result<Slot, Error> {
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
        Ok(dz)
    }

    /// What is summed over all rows that the head has.
    fn head_sums(&self, step: &Step, training: &Training, dz: Slot) -> HeadSums {
        let gradient = |name| step.layout.part(training.gradient, name);
        HeadSums {
            dz,
            row_losses: step.row_losses,
            counts: step.counts,
            weight: gradient("head_weight"),
            bias: gradient("head_bias"),
            losses: training.losses,
            from: self.model.from(self.config.window) * self.config.batch,
            rows: read_rows(self.model, self.config),
            outputs: self.model.outputs,
        }
    }

    pub(super) fn update(&mut self, step: &Step, training: &Training) -> Result<(), Error> {
        let Config { dtype, optimizer, clip, loss_scale, .. } = *self.config;
        let len = step.layout.len;
        let few = len <= FEW;
        let grid = match few {
            true => blocks(len, THREADS as usize),
            false => blocks(len, OF_BLOCK).min(MOST_BLOCKS),
        };
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
        if !few {
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
                scalar(if few { 0 } else { grid as i32 }),
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

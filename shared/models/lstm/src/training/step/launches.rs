//! The launches of a step, one after the other.

use lab_device::DType;
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::{Error, arguments};
use lab_layers::Parameters;
use lab_reference::lstm::Parameter;

use super::super::data::read_rows;
use super::super::flat::part_of;
use super::super::{Config, Data, Head, Model};
use super::tensor_head::{MOST_TENSOR_OUTPUTS, TensorHead};
use super::{Slots, Training};
use crate::kernels::{self, PROMISE};
use lab_training::Update;
use lstm_fused::launches::{HeadSums, States, Upstream, blocks, kernel};
use lstm_fused::{Pass, Way};

/// Outputs and columns up to which a warp has a row of the head, and beyond which four have.
const NARROW: usize = 64;

/// So few parameters that one launch updates them.
const FEW: usize = 8192;

/// What the launches are made of.
pub(super) struct Builder<'a> {
    pub(super) model: &'a Model,
    pub(super) config: &'a Config,
    pub(super) data: &'a Data,
    pub(super) arena: &'a Parameters,
    /// What several kernels take.
    pub(super) scope: Scope,
    pub(super) plan: Plan,
}

impl Builder<'_> {
    /// The launch that takes a batch of windows to x. It also begins the step: the counts and numbers that
    /// the last one left become those of this one.
    pub(super) fn add_gather(&mut self) -> Result<(), Error> {
        let Config { dtype, window, batch, .. } = *self.config;
        let name = if self.data.is_text() { "gather_text" } else { "gather_series" };
        let gather = kernel(self.plan.device(), &kernels::GATHER, name, dtype, "")?;
        let elements = (window * batch * self.data.columns()).max(batch);
        self.plan.launch_in(&self.scope, &gather, gather.grid_over(elements)?, arguments![])
    }

    /// The network and the head, forward, and where it is trained backward.
    pub(super) fn add_network(
        &mut self,
        slots: &mut Slots,
        lengths: Slot,
        y: Slot,
        train: bool,
    ) -> Result<(), Error> {
        let Config { dtype, window, batch, .. } = *self.config;
        let network = &self.model.network;
        let lstm = self.config.lstm(self.plan.device(), *network)?;
        let pass = if train { Pass::ForwardBackward } else { Pass::Forward };
        let sizes = lstm.sizes(dtype, window, batch, pass);
        let states_len = network.layers * network.directions() * batch * network.hidden;
        // Zero before the first step, and no gradient behind the last.
        let (zeros, mut of_f32) = (self.plan.zeros(dtype, states_len), None);
        let mut zeros = |plan: &mut Plan, own: DType| {
            if own == dtype {
                zeros
            } else {
                *of_f32.get_or_insert_with(|| plan.zeros(own, states_len))
            }
        };
        let plan = &mut self.plan;
        let states = States::new(PROMISE, network.cell, dtype, lengths, |name, dtype| {
            if name.ends_with('0') { zeros(plan, dtype) } else { plan.scratch(dtype, states_len) }
        });

        let (arena, weights) = (self.arena, slots.weights);
        let parameter = |_: &mut Plan, of: &Parameter| part_of(arena, weights, &of.name);
        let (config, counts) = (self.config, slots.counts);
        let ys = &mut slots.ys;
        let between = |plan: &mut Plan, layer, y: Slot| {
            plan.keep(y); // the host reads it where a step was not finite
            ys.push(y);
            if train { add_dropout(plan, config, counts, layer, y) } else { Ok(y) }
        };
        let ends = [slots.x, y];
        let layers = lstm.forward(&mut self.plan, sizes, &states, ends, parameter, between)?;
        slots.ys.push(y);

        let dy = if train {
            // Where no z is read there is no gradient.
            self.plan.zeros(dtype, window * batch * self.model.features())
        } else {
            self.plan.scratch(dtype, 1)
        };
        let head = match &slots.training {
            Some(training) if self.has_tensor_head(lstm.way()) => {
                self.add_tensor_head(slots, training, [y, dy])?
            }
            training => {
                let dz = self.add_head(weights, dy, train)?;
                let Some(training) = training else { return Ok(()) };
                self.head_sums(slots, training, dz)
            }
        };
        let Some(training) = &slots.training else { return Ok(()) };
        let by_parameters = training.gradient;
        let plan = &mut self.plan;
        let upstream = Upstream::new(PROMISE, network.cell, dtype, dy, |name, dtype| {
            if name.ends_with('0') { plan.scratch(dtype, states_len) } else { zeros(plan, dtype) }
        });
        let gradient = |_: &mut Plan, of: &Parameter| part_of(arena, by_parameters, &of.name);
        let between = |plan: &mut Plan, layer, dx| add_dropout(plan, config, counts, layer, dx);
        lstm.backward(&mut self.plan, &layers, upstream, None, Some(head), gradient, between)
    }

    /// z and the losses of all rows; where it is trained also dy, and dz, which it gives.
    fn add_head(&mut self, weights: Slot, dy: Slot, train: bool) -> Result<Slot, Error> {
        let Config { dtype, window, .. } = *self.config;
        let Model { outputs, .. } = *self.model;
        let (features, rows) = (self.model.features(), read_rows(self.model, self.config));
        let (from, text) = (self.model.from(window), self.data.is_text());
        let dz = self.plan.scratch(self.config.master(), rows * outputs);
        let threads = if outputs.max(features) <= NARROW { 32 } else { 128 };
        let data = if text { "int" } else { self.config.master().cpp() };
        let template = format!("{data}, {text}, {threads}");
        let loss = kernel(self.plan.device(), &kernels::HEAD, "head_loss", dtype, &template)?;
        let [weight, bias] =
            ["head_weight", "head_bias"].map(|name| part_of(self.arena, weights, name));
        let arguments = arguments![
            weight, bias, dz, dy, from, O: outputs, K: features, back: train,
        ];
        let launch = loss.grid([blocks(rows, 1), 1, 1])?;
        self.plan.launch_in(&self.scope, &loss, launch, arguments)?;
        Ok(dz)
    }

    /// Whether the products of the head are on tensor cores.
    fn has_tensor_head(&self, way: Way) -> bool {
        let Model { outputs, head, .. } = *self.model;
        way.has_products()
            && self.data.is_text()
            && matches!(head, Head::EveryStep)
            && outputs <= MOST_TENSOR_OUTPUTS
            && self.model.network.hidden.is_multiple_of(8)
    }

    /// z, the losses, dy and the gradient by the weight; what is left is the sum of what it gives.
    fn add_tensor_head(
        &mut self,
        slots: &Slots,
        training: &Training,
        [y, dy]: [Slot; 2],
    ) -> Result<HeadSums, Error> {
        let part = |of, name| part_of(self.arena, of, name);
        let head = TensorHead {
            dtype: self.config.dtype,
            rows: read_rows(self.model, self.config),
            outputs: self.model.outputs,
            features: self.model.features(),
            y,
            dy,
            weight: part(slots.weights, "head_weight"),
            dweight: part(training.gradient, "head_weight"),
        };
        let scope = self.scope.clone().with(arguments![bias: part(slots.weights, "head_bias")]);
        let dz = head.add(&mut self.plan, &scope)?;
        Ok(HeadSums { by_weight: false, ..self.head_sums(slots, training, dz) })
    }

    /// What is summed over all rows that the head has.
    fn head_sums(&self, slots: &Slots, training: &Training, dz: Slot) -> HeadSums {
        let gradient = |name| part_of(self.arena, training.gradient, name);
        HeadSums {
            dz,
            dz_rows: dz.len() / self.model.outputs,
            row_losses: slots.row_losses,
            counts: slots.counts,
            weight: gradient("head_weight"),
            by_weight: true,
            bias: gradient("head_bias"),
            losses: training.losses,
            from: self.model.from(self.config.window) * self.config.batch,
            rows: read_rows(self.model, self.config),
            outputs: self.model.outputs,
        }
    }

    /// The optimizer's launches, over all parameters at once.
    pub(super) fn add_update(&mut self, weights: Slot, training: &Training) -> Result<(), Error> {
        let Config { dtype, optimizer, clip, loss_scale, .. } = *self.config;
        let Training { master, gradient, m, v, rates, losses } = *training;
        let copy = if master == weights { self.plan.scratch(dtype, 1) } else { weights };
        let arguments = arguments![p: master, copy, m, v, rates, losses, every: loss_scale.every()];
        let scope = self.scope.clone().with(arguments);
        let (source, promise) = (&kernels::UPDATE, PROMISE);
        let update = Update { source, promise, dtype, optimizer, clip, few: FEW };
        update.add(&mut self.plan, &scope, gradient)
    }
}

/// Adds what takes a layer's output, or the gradient by it, through dropout; without dropout nothing.
fn add_dropout(
    plan: &mut Plan,
    config: &Config,
    counts: Slot,
    layer: usize,
    from: Slot,
) -> Result<Slot, Error> {
    if config.dropout == 0.0 {
        return Ok(from);
    }
    let len = from.len();
    let to = plan.scratch(config.dtype, len);
    let dropout = kernel(plan.device(), &kernels::DROPOUT, "dropout", config.dtype, "")?;
    let threshold = (config.dropout * 4_294_967_296.0) as u32;
    let factor = 1.0 / (1.0 - config.dropout);
    let arguments =
        arguments![from, to, counts, seed: config.seed, threshold, factor, layer, N: len];
    plan.launch(&dropout, dropout.grid_over(len)?, arguments)?;
    Ok(to)
}

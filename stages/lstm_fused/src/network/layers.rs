//! The launches of a run, layer by layer.

use lab_device::{DType, Device};
use lab_harness::plan::{Plan, Slot};
use lab_harness::{Error, Shapes, Tensor};
use lab_reference::lstm::Parameter;

use super::data::check_shapes;
use super::{Lstm, Pass};
use crate::direction::{
    Direction, HeadSums, LayerSlots, Sizes, States, Upstream, Weights, add_input_gradient,
};
use crate::kernels::PROMISE;

/// The layers of a forward pass, each with its directions.
pub type Layers = Vec<Vec<Direction>>;

impl Lstm {
    /// Slots and launches of a run on tensors of these shapes. Slots have the tensors' names; a tensor that
    /// may be left out and is has none. `lengths`, where they are given, are i32 in the plan: see
    /// [`Lstm::prepare`].
    ///
    /// # Errors
    /// A tensor is missing, of another type or another shape; a kernel does not load.
    pub fn plan(&self, device: &Device, shapes: &Shapes, pass: Pass) -> Result<Plan, Error> {
        let network = &self.network;
        let ragged = shapes.contains_key("lengths");
        let sizes = Sizes { ragged, ..check_shapes(self, shapes, pass)? };
        let Sizes { dtype, steps, batch, hidden, directions, .. } = sizes;
        let input = |plan: &mut Plan, name: &str, dtype: DType, shape: &[usize]| {
            if shapes.contains_key(name) {
                plan.input(name, dtype, shape)
            } else {
                plan.zeros(dtype, shape.iter().product())
            }
        };
        let mut plan = Plan::new(device);
        let p = &mut plan;

        let state_shape = [network.layers * directions, batch, hidden];
        let lengths = if shapes.contains_key("lengths") {
            p.input("lengths", DType::I32, &[batch])
        } else {
            p.constant(&Tensor::new(&[batch], &vec![steps as i32; batch]))
        };
        let states = States::new(PROMISE, network.cell, dtype, lengths, |name, dtype| {
            if name.ends_with('0') {
                input(p, name, dtype, &state_shape)
            } else {
                p.output(name, dtype, &state_shape)
            }
        });

        let y_shape = [steps, batch, hidden * directions];
        let x_shape = [steps, batch, network.inputs];
        let x = p.input("x", dtype, &x_shape);
        let y = p.output("y", dtype, &y_shape);
        let parameter = |p: &mut Plan, of: &Parameter| p.input(&of.name, dtype, &of.shape);
        let layers = self.forward(p, sizes, &states, [x, y], parameter, |_, _, y| Ok(y))?;
        if !sizes.keep {
            return Ok(plan);
        }

        let dy = input(p, "dy", dtype, &y_shape);
        let upstream = Upstream::new(PROMISE, network.cell, dtype, dy, |name, dtype| {
            if name.ends_with('0') {
                p.output(name, dtype, &state_shape)
            } else {
                input(p, name, dtype, &state_shape)
            }
        });
        let dx = p.output("dx", dtype, &x_shape);
        let gradient =
            |p: &mut Plan, of: &Parameter| p.output(&format!("d{}", of.name), dtype, &of.shape);
        self.backward(p, &layers, upstream, Some(dx), None, gradient, |_, _, dx| Ok(dx))?;
        Ok(plan)
    }

    /// Adds the launches of the forward pass from x to y. `parameter` gives the slot of a parameter;
    /// `between` what a layer reads of the output of the one before, whose number it gets.
    ///
    /// # Errors
    /// A kernel does not load.
    pub fn forward(
        &self,
        plan: &mut Plan,
        sizes: Sizes,
        states: &States,
        [x, last_y]: [Slot; 2],
        mut parameter: impl FnMut(&mut Plan, &Parameter) -> Slot,
        mut between: impl FnMut(&mut Plan, usize, Slot) -> Result<Slot, Error>,
    ) -> Result<Layers, Error> {
        let Sizes { dtype, hidden, directions, .. } = sizes;
        let mut layers = Vec::new();
        let shares_gates = sizes.keep && sizes.recompute;
        let gates_len = sizes.rows() * 4 * hidden;
        let shared_gates: Vec<Option<Slot>> = (0..directions)
            .map(|_| shares_gates.then(|| plan.scratch(sizes.arithmetic(), gates_len)))
            .collect();
        let (mut x, mut columns) = (x, self.network.inputs);
        for layer in 0..self.network.layers {
            let is_last = layer + 1 == self.network.layers;
            let y = if is_last {
                last_y
            } else {
                plan.scratch(dtype, sizes.rows() * hidden * directions)
            };
            let mut layer_directions = Vec::new();
            for (direction, &gates) in shared_gates.iter().enumerate() {
                let weights = self.weights(layer, direction, |of| parameter(plan, of));
                let state = layer * directions + direction;
                let slots = LayerSlots { x, columns, y };
                let built = Direction::new(plan, sizes, states, &weights, slots, state, gates);
                built.add_forward(plan)?;
                layer_directions.push(built);
            }
            layers.push(layer_directions);
            (x, columns) = (y, hidden * directions);
            if !is_last {
                x = between(plan, layer, y)?;
            }
        }
        Ok(layers)
    }

    /// Adds the launches of the way back, from dy to dx where that is wanted, with the sums of a head on
    /// the last layer among its own, where there is one. `gradient` gives the slot of the gradient by a
    /// parameter; `between` the gradient by the output of a layer, whose number it gets, from that by what
    /// the next one has read.
    ///
    /// # Errors
    /// As [`Lstm::forward`].
    #[allow(clippy::too_many_arguments)] // each of another kind
    pub fn backward(
        &self,
        plan: &mut Plan,
        layers: &Layers,
        mut upstream: Upstream,
        first_dx: Option<Slot>,
        head: Option<HeadSums>,
        mut gradient: impl FnMut(&mut Plan, &Parameter) -> Slot,
        mut between: impl FnMut(&mut Plan, usize, Slot) -> Result<Slot, Error>,
    ) -> Result<(), Error> {
        let none = HeadSums::none(plan, layers[0][0].sizes);
        for (layer, directions) in layers.iter().enumerate().rev() {
            let is_last = layer + 1 == layers.len();
            for (number, direction) in directions.iter().enumerate() {
                let gradients = self.weights(layer, number, |of| gradient(plan, of));
                if self.recompute && !is_last {
                    direction.add_gates_again(plan)?;
                }
                let head = head.as_ref().filter(|_| is_last && number == 0);
                direction.add_backward(plan, &upstream, &gradients, head.unwrap_or(&none))?;
            }
            let sizes = directions[0].sizes;
            let dx = match layer {
                0 => first_dx,
                _ => Some(plan.scratch(sizes.dtype, sizes.rows() * directions[0].columns)),
            };
            if let Some(dx) = dx {
                add_input_gradient(plan, directions, dx)?;
                upstream.dy = dx;
            }
            if layer > 0 {
                upstream.dy = between(plan, layer - 1, upstream.dy)?;
            }
        }
        Ok(())
    }

    /// Of a run of T steps and B rows.
    pub fn sizes(&self, dtype: DType, steps: usize, batch: usize, pass: Pass) -> Sizes {
        let network = &self.network;
        Sizes {
            dtype,
            steps,
            batch,
            hidden: network.hidden,
            directions: network.directions(),
            peephole: network.peephole,
            way: self.way,
            cell: network.cell,
            layer_norm: network.layer_norm,
            keep: pass == Pass::ForwardBackward,
            recompute: self.recompute,
            ragged: false,
        }
    }

    /// A slot for each parameter of a direction.
    fn weights(
        &self,
        layer: usize,
        direction: usize,
        mut slot: impl FnMut(&Parameter) -> Slot,
    ) -> Weights {
        let all = self.network.parameters();
        let each = all.len() / (self.network.layers * self.network.directions());
        let first = (layer * self.network.directions() + direction) * each;
        let without_layer = |name: &str| {
            let (name, _) = name.rsplit_once("_l").expect("a name with its layer");
            name.to_owned()
        };
        all[first..][..each].iter().map(|p| (without_layer(&p.name), slot(p))).collect()
    }
}

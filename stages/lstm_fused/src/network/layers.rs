//! The launches of a run, layer by layer.

use lab_device::{DType, Device};
use lab_harness::program::{Program, Slot};
use lab_harness::{Error, Tensors};
use lab_reference::lstm::{Cell, Parameter};

use super::data::Data;
use super::{Lstm, Pass};
use crate::direction::{
    Common, CommonGradients, Direction, Ends, HeadSums, Sizes, Upstream, Weights, input_gradient,
};

impl Lstm {
    /// Buffers and launches of a run.
    pub(crate) fn program(
        &self,
        device: &Device,
        tensors: &Tensors,
        pass: Pass,
    ) -> Result<Program, Error> {
        let network = &self.network;
        let data = Data::of(self, tensors, pass)?;
        let sizes = data.sizes;
        let Sizes { dtype, steps, batch, hidden, directions, .. } = sizes;
        let mut program = Program::new(device);
        let p = &mut program;

        let of_states = [network.layers * directions, batch, hidden];
        let lengths = p.input(&data.lengths)?;
        let h0 = data.input(p, "h0", &of_states)?;
        let hn = p.output("hn", dtype, &of_states)?;
        let c = match network.cell {
            Cell::Lstm => {
                Some([data.input(p, "c0", &of_states)?, p.output("cn", dtype, &of_states)?])
            }
            Cell::Gru => None,
        };
        let common = Common { h0, hn, c, lengths };

        let of_y = [steps, batch, hidden * directions];
        let x = p.input(&tensors["x"])?;
        let y = p.output("y", dtype, &of_y)?;
        let own = |p: &mut Program, of: &Parameter| p.input(&tensors[&of.name]);
        let layers = self.forward(p, sizes, &common, [x, y], own, |_, _, y| Ok(y))?;
        if !sizes.keep {
            return Ok(program);
        }

        let dy = data.input(p, "dy", &of_y)?;
        let dhn = data.input(p, "dhn", &of_states)?;
        let dh0 = p.output("dh0", dtype, &of_states)?;
        let c = match network.cell {
            Cell::Lstm => {
                Some([data.input(p, "dcn", &of_states)?, p.output("dc0", dtype, &of_states)?])
            }
            Cell::Gru => None,
        };
        let states = CommonGradients { dhn, dh0, c };
        let dx = p.output("dx", dtype, &[steps, batch, network.inputs])?;
        let by =
            |p: &mut Program, of: &Parameter| p.output(format!("d{}", of.name), dtype, &of.shape);
        let upstream = Upstream { dy, states: &states };
        self.backward(p, &layers, upstream, Some(dx), None, by, |_, _, dx| Ok(dx))?;
        Ok(program)
    }

    /// Adds the launches of the forward pass from x to y. `own` gives the slot of a parameter;
    /// `between` what a layer reads of the output of the one before, whose number it gets.
    ///
    /// # Errors
    /// The device has not enough memory, or a kernel does not compile.
    pub fn forward<'a>(
        &self,
        p: &mut Program,
        sizes: Sizes,
        common: &'a Common,
        [x, last_y]: [Slot; 2],
        mut own: impl FnMut(&mut Program, &Parameter) -> Result<Slot, Error>,
        mut between: impl FnMut(&mut Program, usize, Slot) -> Result<Slot, Error>,
    ) -> Result<Vec<Vec<Direction<'a>>>, Error> {
        let Sizes { dtype, hidden, directions, .. } = sizes;
        let mut layers = Vec::new();
        let shared_gates: Vec<Option<Slot>> = (0..directions)
            .map(|_| match sizes.keep && sizes.recompute {
                true => p.scratch(sizes.arithmetic(), sizes.rows() * 4 * hidden).map(Some),
                false => Ok(None),
            })
            .collect::<Result<_, _>>()?;
        let (mut input, mut columns) = (x, self.network.inputs);
        for layer in 0..self.network.layers {
            let last = layer + 1 == self.network.layers;
            let y = match last {
                true => last_y,
                false => p.scratch(dtype, sizes.rows() * hidden * directions)?,
            };
            let mut of_layer = Vec::new();
            for (direction, &gates) in shared_gates.iter().enumerate() {
                let weights = self.weights(layer, direction, |of| own(p, of))?;
                let (state, ends) = (layer * directions + direction, Ends { x: input, columns, y });
                let of = Direction::new(p, sizes, common, weights, ends, state, gates)?;
                of.forward(p)?;
                of_layer.push(of);
            }
            layers.push(of_layer);
            (input, columns) = (y, hidden * directions);
            if !last {
                input = between(p, layer, y)?;
            }
        }
        Ok(layers)
    }

    /// Adds the launches of the way back, from dy to dx where that is wanted, with the sums of a head on
    /// the last layer among its own, where there is one. `by` gives the slot of the gradient by a
    /// parameter; `between` the gradient by the output of a layer, whose number it gets, from that by what
    /// the next one has read.
    ///
    /// # Errors
    /// As [`Lstm::forward`].
    #[allow(clippy::too_many_arguments)] // each of another kind
    pub fn backward(
        &self,
        p: &mut Program,
        layers: &[Vec<Direction<'_>>],
        mut upstream: Upstream<'_>,
        first_dx: Option<Slot>,
        head: Option<HeadSums>,
        mut by: impl FnMut(&mut Program, &Parameter) -> Result<Slot, Error>,
        mut between: impl FnMut(&mut Program, usize, Slot) -> Result<Slot, Error>,
    ) -> Result<(), Error> {
        let none = HeadSums::none(p, layers[0][0].sizes)?;
        for (layer, of_layer) in layers.iter().enumerate().rev() {
            let last = layer + 1 == layers.len();
            for (direction, of) in of_layer.iter().enumerate() {
                let gradients = self.weights(layer, direction, |of| by(p, of))?;
                if self.recompute && !last {
                    of.gates_again(p)?;
                }
                let head = head.as_ref().filter(|_| last && direction == 0);
                of.backward(p, upstream, &gradients, head.unwrap_or(&none))?;
            }
            let sizes = of_layer[0].sizes;
            let dx = match layer {
                0 => first_dx,
                _ => Some(p.scratch(sizes.dtype, sizes.rows() * of_layer[0].columns)?),
            };
            if let Some(dx) = dx {
                input_gradient(p, of_layer, dx)?;
                upstream.dy = dx;
            }
            if layer > 0 {
                upstream.dy = between(p, layer - 1, upstream.dy)?;
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
        }
    }

    /// A slot for each parameter of a direction.
    fn weights(
        &self,
        layer: usize,
        direction: usize,
        mut slot: impl FnMut(&Parameter) -> Result<Slot, Error>,
    ) -> Result<Weights, Error> {
        let all = self.network.parameters();
        let each = all.len() / (self.network.layers * self.network.directions());
        let own = &all[(layer * self.network.directions() + direction) * each..][..each];
        let mut of = |name: &str| {
            slot(own.iter().find(|p| p.name.starts_with(name)).expect("a parameter's name"))
        };
        let biases = match self.network.bias {
            true => Some([of("bias_ih")?, of("bias_hh")?]),
            false => None,
        };
        let peepholes = match self.network.peephole {
            true => Some([of("peephole_i")?, of("peephole_f")?, of("peephole_o")?]),
            false => None,
        };
        let norms = match self.network.layer_norm {
            Some(_) => {
                let gates = [of("ln_weight")?, of("ln_bias")?];
                Some([gates[0], gates[1], of("ln_c_weight")?, of("ln_c_bias")?])
            }
            None => None,
        };
        Ok(Weights { ih: of("weight_ih")?, hh: of("weight_hh")?, biases, peepholes, norms })
    }
}

//! An LSTM, or a GRU, of several layers and directions on a device.

use lab_device::{DType, Device};
use lab_harness::program::{Program, Slot};
use lab_harness::{Error, Prepared, Tensor, Tensors};
use lab_reference::lstm::{Cell, Network, Parameter};

use crate::direction::{
    Common, CommonGradients, Direction, HeadSums, Sizes, Weights, input_gradient,
};
use crate::sequence::MOST_UNITS;
use crate::spread::MOST_SPREAD_UNITS;

/// How the forward pass goes through the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A launch a step. In halves each h is rounded to the type before the next step reads it.
    Cell,
    /// A launch for all steps, with the weights in registers and shared memory; up to 256 units, with
    /// layer norm or without.
    Sequence,
    /// A launch for all steps, with the units of a row spread over a cluster of blocks, which up to 256
    /// units keep all weights in registers; up to 768. On a device without clusters as [`Way::Grid`].
    Cluster,
    /// The same with blocks that exchange h through device memory and flags.
    Grid,
}

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// y, hn and cn. [`Way::Cell`] keeps c of two steps and no gates, with layer norm what the way back
    /// needs of the norms; [`Way::Sequence`] has the products of x with the weights, 4 H numbers for each
    /// row of each step, layer and direction.
    Forward,
    /// Also the gradients by all that goes in: 5 H numbers for each row of each step, layer and
    /// direction are kept, gates and c, in f32 (in runs of f64, in f64). Of a GRU it is 4 H, with
    /// layer norm 15 H + 5. [`Lstm::recompute`] keeps fewer, [`Lstm::bytes`] counts all.
    ForwardBackward,
}

impl Way {
    /// The most units; of [`Way::Cell`] as many as a network may have.
    fn most_units(self) -> usize {
        match self {
            Self::Cell => LARGEST[2].1,
            Self::Sequence => MOST_UNITS,
            Self::Cluster | Self::Grid => MOST_SPREAD_UNITS,
        }
    }
}

/// An LSTM on a device, or a GRU: layers, directions and options as its [`Network`] says.
///
/// Tensors go by PyTorch's names, row-major, all of one type:
///
/// | | | |
/// |---|---|---|
/// | `x` | \[T, B, I\] | |
/// | each of [`Network::parameters`] | its shape | `weight_ih_l0`, `weight_hh_l1_reverse`, … |
/// | `h0`, `c0` | \[L·dirs, B, H\] | zero where they are left out; a GRU has no c |
/// | `lengths` | \[B\], i64 | steps of each row, 0 to T; all T where it is left out |
/// | `dy` | \[T, B, H·dirs\] | the gradient by y; zero where it is left out |
/// | `dhn`, `dcn` | \[L·dirs, B, H\] | those by hn and cn; zero where they are left out |
///
/// Out come `y`, `hn` and `cn`, and on the way back `dx`, `dh0`, `dc0` and `d` with each parameter's
/// name. Nothing is read of a row past its length; y and dx are zero there.
///
/// ```
/// use lab_harness::{Tensor, tensor::tensors};
/// use lstm_fused::{Lstm, Network, Pass};
/// // One unit that keeps everything: i, f and o are open, and g is about x where x is small.
/// let lstm = Lstm::new(Network { bias: false, ..Network::lstm(1, 1) })?;
/// let all = tensors([
///     ("x", Tensor::new(&[2, 1, 1], &[1e-4f32, 2e-4])),
///     ("weight_ih_l0", Tensor::new(&[4, 1], &[1e9f32, 1e9, 1.0, 1e9])),
///     ("weight_hh_l0", Tensor::new(&[4, 1], &[0f32; 4])),
/// ]);
/// let out = lstm.run(&lab_device::Device::emulator()?, &all, Pass::Forward)?;
/// assert!((out["cn"].values()[0] - 3e-4).abs() < 1e-9);
/// # Ok::<(), lab_harness::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lstm {
    network: Network,
    way: Way,
    recompute: bool,
}

/// The most of each size: products of two fit 32 bits where kernels count in them.
const LARGEST: [(&str, usize); 4] =
    [("layers", 1024), ("inputs", 1 << 20), ("hidden", 1 << 15), ("B", 1 << 15)];

/// Rows of all steps.
const MOST_ROWS: usize = 1 << 30;

fn refuse(name: &str, expected: impl Into<String>, got: impl Into<String>) -> Error {
    Error::Tensor { name: name.to_owned(), expected: expected.into(), got: got.into() }
}

/// Refuses a size of 0, and one past the largest of that name.
fn check_size(name: &str, size: usize) -> Result<(), Error> {
    let largest = LARGEST.iter().find(|l| l.0 == name).expect("a size that is listed").1;
    if (1..=largest).contains(&size) {
        return Ok(());
    }
    Err(Error::bad(name, format!("1 to {largest}"), size))
}

impl Lstm {
    /// Of these sizes and options: by [`Way::Sequence`] up to 64 units, whose weights a block has room
    /// for, and with layer norm up to 256; by [`Way::Cluster`] up to 768; what those do not take by
    /// [`Way::Cell`].
    ///
    /// # Errors
    /// As [`Lstm::by`].
    pub fn new(network: Network) -> Result<Self, Error> {
        let way = match (network.cell, network.layer_norm, network.hidden) {
            (Cell::Lstm, Some(_), 0..=MOST_UNITS) | (Cell::Lstm, None, 0..=64) => Way::Sequence,
            (Cell::Lstm, None, 65..=MOST_SPREAD_UNITS) => Way::Cluster,
            _ => Way::Cell,
        };
        Self::by(way, network)
    }

    /// Of these sizes and options.
    ///
    /// # Errors
    /// A size is 0 or too large, or ε negative; a GRU has peepholes or layer norm; a GRU or too many units
    /// in a launch for all steps; layer norm where a row's units are spread over blocks.
    pub fn by(way: Way, network: Network) -> Result<Self, Error> {
        check_size("layers", network.layers)?;
        check_size("inputs", network.inputs)?;
        check_size("hidden", network.hidden)?;
        let one_launch = way != Way::Cell;
        if one_launch && network.hidden > way.most_units() {
            let expected = format!("1 to {} in a launch for all steps", way.most_units());
            return Err(Error::bad("hidden", expected, network.hidden));
        }
        if network.cell == Cell::Gru {
            if one_launch {
                return Err(Error::bad("cell", "Lstm in a launch for all steps", "Gru"));
            }
            if network.peephole {
                return Err(Error::bad("peephole", "false in a GRU, which has no c", true));
            }
        }
        if let Some(epsilon) = network.layer_norm {
            if !epsilon.is_finite() || epsilon < 0.0 {
                let expected = "none, or a number that is not negative";
                return Err(Error::bad("layer_norm", expected, epsilon));
            }
            if network.cell == Cell::Gru || matches!(way, Way::Cluster | Way::Grid) {
                let expected = "none in a GRU, or where a row's units are spread over blocks";
                return Err(Error::bad("layer_norm", expected, epsilon));
            }
        }
        Ok(Self { network, way, recompute: false })
    }

    /// The same with fewer numbers kept for the way back: h and c of all layers, and the gates of one,
    /// whose place they take in turn. Before its turn a layer's gates are computed again, by a product over
    /// all steps at once.
    ///
    /// In f32 and f64 the gradients are the same but for roundings. In halves they are those of an h that
    /// was rounded to the type, as [`Way::Cell`] rounds it.
    ///
    /// # Errors
    /// A GRU, or layer norm, which keep other numbers.
    pub fn recompute(self) -> Result<Self, Error> {
        if self.network.cell == Cell::Gru || self.network.layer_norm.is_some() {
            let expected = "false, but in an LSTM without layer norm";
            return Err(Error::bad("recompute", expected, true));
        }
        Ok(Self { recompute: true, ..self })
    }

    /// Bytes on the device of a run of T steps and B rows with [`Pass::ForwardBackward`], of an LSTM
    /// without layer norm. With e bytes an element, m one in arithmetic (4, of f64 8), P parameters, L
    /// layers and D directions:
    ///
    /// | | bytes |
    /// |---|---|
    /// | x, dx | 2 e T B I |
    /// | y and the gradient by it, of each layer | 2 e L T B H D |
    /// | h0, c0, hn, cn and their gradients | 8 e L D B H |
    /// | parameters and theirs | 2 e P |
    /// | c of all steps | m L D T B H |
    /// | gates of all steps, later da | 4 m L D T B H; with [`Lstm::recompute`] 4 m D T B H |
    /// | lengths | 4 B |
    ///
    /// and what is left over: m L D B H for the dc of [`Way::Cell`], a few numbers a direction else.
    /// The boxes of [`Way::Grid`], whose number is a matter of the device, are not among them.
    pub fn bytes(&self, dtype: DType, steps: usize, batch: usize) -> usize {
        let Network { inputs, hidden, layers, bias, .. } = self.network;
        let sizes = self.sizes(dtype, steps, batch);
        let (e, m) = (dtype.size(), sizes.arithmetic().size());
        let (rows, of_all) = (sizes.rows(), layers * sizes.directions);
        let parameters: usize =
            self.network.parameters().iter().map(|p| p.shape.iter().product::<usize>()).sum();
        let data = 2 * e * (rows * (inputs + of_all * hidden) + parameters)
            + 8 * e * of_all * batch * hidden
            + 4 * batch;
        let of_gates = if self.recompute { sizes.directions } else { of_all };
        let kept = m * rows * hidden * (of_all + 4 * of_gates);
        let own = match self.way {
            Way::Cell => m * of_all * batch * hidden,
            Way::Sequence => 0,
            Way::Cluster | Way::Grid => 2 * of_all * (m + 4),
        };
        let without_bias = if bias { 0 } else { 2 * e * of_all };
        data + kept + own + without_bias + HeadSums::none_bytes(dtype)
    }

    /// How it goes through the steps.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Its sizes and options.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Runs it once.
    ///
    /// # Errors
    /// As [`Lstm::prepare`], and what the device reports.
    pub fn run(&self, device: &Device, tensors: &Tensors, pass: Pass) -> Result<Tensors, Error> {
        let mut program = self.prepare(device, tensors, pass)?;
        program.launch()?;
        program.outputs()
    }

    /// Uploads the tensors and lists the launches.
    ///
    /// # Errors
    /// A tensor is missing, of another type or another shape; a length is past T; the device has
    /// not enough memory. Nothing has been launched then.
    pub fn prepare(
        &self,
        device: &Device,
        tensors: &Tensors,
        pass: Pass,
    ) -> Result<Box<dyn Prepared>, Error> {
        Ok(Box::new(self.program(device, tensors, pass)?))
    }

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
        let keep = pass == Pass::ForwardBackward;
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
        let layers = self.forward(p, sizes, &common, [x, y], keep, own, |_, _, y| Ok(y))?;
        if !keep {
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
        self.backward(p, &layers, dy, Some(dx), None, &states, by, |_, _, dx| Ok(dx))?;
        Ok(program)
    }

    /// Adds the launches of the forward pass from x to y. `own` gives the slot of a parameter;
    /// `between` what a layer reads of the output of the one before, whose number it gets.
    #[allow(clippy::too_many_arguments)] // each of another kind
    pub(crate) fn forward<'a>(
        &self,
        p: &mut Program,
        sizes: Sizes,
        common: &'a Common,
        [x, last_y]: [Slot; 2],
        keep: bool,
        mut own: impl FnMut(&mut Program, &Parameter) -> Result<Slot, Error>,
        mut between: impl FnMut(&mut Program, usize, Slot) -> Result<Slot, Error>,
    ) -> Result<Vec<Vec<Direction<'a>>>, Error> {
        let Sizes { dtype, hidden, directions, .. } = sizes;
        let mut layers = Vec::new();
        let shared_gates: Vec<Option<Slot>> = (0..directions)
            .map(|_| match keep && sizes.recompute {
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
                let (state, ends) = (layer * directions + direction, [input, y]);
                let of =
                    Direction::new(p, sizes, common, weights, ends, columns, state, keep, gates)?;
                of.forward(p, keep)?;
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
    /// the last layer among its own, where there is one. `by` gives the slot of the gradient by a parameter; `between` the gradient by the output of a layer, whose number it
    /// gets, from that by what the next one has read.
    #[allow(clippy::too_many_arguments)] // each of another kind
    pub(crate) fn backward(
        &self,
        p: &mut Program,
        layers: &[Vec<Direction<'_>>],
        mut dy: Slot,
        first_dx: Option<Slot>,
        head: Option<HeadSums>,
        states: &CommonGradients,
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
                of.backward(p, dy, states, &gradients, head.unwrap_or(&none))?;
            }
            let sizes = of_layer[0].sizes;
            let dx = match layer {
                0 => first_dx,
                _ => Some(p.scratch(sizes.dtype, sizes.rows() * of_layer[0].columns)?),
            };
            if let Some(dx) = dx {
                input_gradient(p, of_layer, dx)?;
                dy = dx;
            }
            if layer > 0 {
                dy = between(p, layer - 1, dy)?;
            }
        }
        Ok(())
    }

    pub(crate) fn sizes(&self, dtype: DType, steps: usize, batch: usize) -> Sizes {
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

/// The tensors of a run, checked.
struct Data<'a> {
    tensors: &'a Tensors,
    sizes: Sizes,
    /// i32, filled in where there are none.
    lengths: Tensor,
}

impl<'a> Data<'a> {
    fn of(lstm: &Lstm, tensors: &'a Tensors, pass: Pass) -> Result<Self, Error> {
        let network = &lstm.network;
        let Some(x) = tensors.get("x") else {
            return Err(refuse("x", "a tensor [T, B, I]", "none"));
        };
        let dtype = x.dtype;
        if ![DType::F32, DType::F64, DType::F16, DType::BF16].contains(&dtype) {
            return Err(refuse("x", "f32, f64, f16 or bf16", dtype.to_string()));
        }
        let [steps, batch, columns] = x.shape[..] else {
            return Err(refuse("x", "shape [T, B, I]", x.describe()));
        };
        let fits = |size: usize| size > 0 && size <= MOST_ROWS;
        if !fits(steps) || !fits(batch) || !fits(steps.saturating_mul(batch)) {
            let expected = format!("at least one step and one row, T B up to {MOST_ROWS}");
            return Err(refuse("x", expected, x.describe()));
        }
        check_size("B", batch).map_err(|e| refuse("x", e.to_string(), x.describe()))?;
        if columns != network.inputs {
            let expected = format!("I={}, the network's inputs", network.inputs);
            return Err(refuse("x", expected, x.describe()));
        }
        let directions = network.directions();
        let sizes = lstm.sizes(dtype, steps, batch);

        let check = |name: &str, shape: &[usize], needed: bool| match tensors.get(name) {
            None if needed => Err(refuse(name, format!("a tensor {shape:?}"), "none")),
            Some(t) if t.dtype != dtype => {
                Err(refuse(name, format!("{dtype} as 'x'"), t.dtype.to_string()))
            }
            Some(t) if t.shape != shape => Err(refuse(name, format!("{shape:?}"), t.describe())),
            _ => Ok(()),
        };
        for parameter in network.parameters() {
            check(&parameter.name, &parameter.shape, true)?;
        }
        let of_states = [network.layers * directions, batch, network.hidden];
        let has_c = network.cell == Cell::Lstm;
        check("h0", &of_states, false)?;
        if has_c {
            check("c0", &of_states, false)?;
        }
        if pass == Pass::ForwardBackward {
            check("dy", &[steps, batch, network.hidden * directions], false)?;
            check("dhn", &of_states, false)?;
            if has_c {
                check("dcn", &of_states, false)?;
            }
        }
        Ok(Self { tensors, sizes, lengths: lengths(tensors, steps, batch)? })
    }

    /// A tensor that may be left out: zeros then.
    fn input(&self, program: &mut Program, name: &str, shape: &[usize]) -> Result<Slot, Error> {
        match self.tensors.get(name) {
            Some(tensor) => program.input(tensor),
            None => {
                let zeros = program.scratch(self.sizes.dtype, shape.iter().product())?;
                program.zero(zeros);
                Ok(zeros)
            }
        }
    }
}

/// The rows' lengths as the kernels read them.
fn lengths(tensors: &Tensors, steps: usize, batch: usize) -> Result<Tensor, Error> {
    let all = match tensors.get("lengths") {
        None => vec![steps as i32; batch],
        Some(t) if t.dtype != DType::I64 => {
            return Err(refuse("lengths", "i64", t.dtype.to_string()));
        }
        Some(t) if t.shape != [batch] => {
            return Err(refuse("lengths", format!("[{batch}], one a row"), t.describe()));
        }
        Some(t) => {
            let values = t.values();
            let fits = |v: &f64| (0.0..=steps as f64).contains(v);
            if let Some(row) = values.iter().position(|v| !fits(v)) {
                let got = format!("{} of row {row}", values[row]);
                return Err(refuse("lengths", format!("0 to {steps}, the steps of 'x'"), got));
            }
            values.iter().map(|&v| v as i32).collect()
        }
    };
    Ok(Tensor::new(&[batch], &all))
}

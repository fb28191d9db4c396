//! One step at a time.

use lab_device::{DType, Device};
use lab_harness::plan::{Plan, Slot};
use lab_harness::{Binding, Tensor, Tensors};
use lab_reference::lstm::Parameter;

use super::flat::{arena_of, part_of};
use super::{Error, Model};
use crate::kernels::PROMISE;
use lstm_fused::launches::States;
use lstm_fused::{Lstm, Pass, Way};

/// A model that is given one row after the other and keeps its state: a forecast fed with itself, text a
/// letter at a time. It runs in f32, the linear layer on the host in f64.
///
/// ```
/// use lab_device::{DType, Device};
/// use lstm_fused::Network;
/// use lab_lstm::training::{Model, Stream};
/// let model = Model::forecast(Network::lstm(1, 4));
/// let mut stream = Stream::new(&Device::emulator()?, model, &model.initial(DType::F32, 7))?;
/// let first = stream.step(&[0.5])?;
/// let second = stream.step(&first)?; // its own forecast
/// assert_ne!(first, second);
/// stream.reset()?;
/// assert_eq!(stream.step(&[0.5])?, first);
/// # Ok::<(), lab_lstm::training::Error>(())
/// ```
pub struct Stream {
    model: Model,
    binding: Binding,
    x: Slot,
    y: Slot,
    /// What the next step goes on from: each run ends with a copy of its last state.
    states: Vec<(String, Slot)>,
    weight: Vec<f64>,
    bias: Vec<f64>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("model", &self.model).finish_non_exhaustive()
    }
}

impl Stream {
    /// With these parameters, in f32, and a state of zeros.
    ///
    /// # Errors
    /// The network has two directions, of which one would have to wait for the end; a parameter is
    /// missing, or of another shape or type; the device has not enough memory.
    pub fn new(device: &Device, model: Model, parameters: &Tensors) -> Result<Self, Error> {
        model.check()?;
        if model.network.bidirectional {
            let error = lab_harness::Error::bad("bidirectional", "false in a stream", true);
            return Err(error.into());
        }
        model.check_parameters(parameters, DType::F32)?;
        let lstm = Lstm::by(Way::Cell, model.network)?;
        let sizes = lstm.sizes(DType::F32, 1, 1, Pass::Forward);
        let mut plan = Plan::new(device);
        let p = &mut plan;
        let arena = arena_of(&model);
        let packed = arena.pack(DType::F32, parameters);
        let weights = p.input("weights", DType::F32, &[arena.len()]);
        let lengths = p.constant(&Tensor::new(&[1], &[1i32]));
        let x = p.state("x", DType::F32, &[model.network.inputs]);
        let y = p.output("y", DType::F32, &[model.features()]);
        let shape = [model.network.layers, 1, model.network.hidden];
        let cell = model.network.cell;
        let states = States::new(PROMISE, cell, DType::F32, lengths, |name, dtype| {
            p.state(name, dtype, &shape)
        });
        let parameter = |_: &mut Plan, of: &Parameter| part_of(&arena, weights, &of.name);
        lstm.forward(p, sizes, &states, [x, y], parameter, |_, _, y| Ok(y))?;
        let carried = |of: &&str| {
            let (before, behind) = (states.slot(&format!("{of}0")), format!("{of}n"));
            p.copy(states.slot(&behind), before);
            (behind, before)
        };
        let states = cell.states().iter().map(carried).collect();
        let binding = plan.bind().upload("weights", &packed)?.finish()?;
        let [weight, bias] = ["head_weight", "head_bias"].map(|name| parameters[name].values());
        let mut stream = Self { model, binding, x, y, states, weight, bias };
        stream.reset()?;
        Ok(stream)
    }

    /// z after one more row x `[I]`: `[O]`.
    ///
    /// # Errors
    /// x has another length; what the device reports.
    pub fn step(&mut self, x: &[f64]) -> Result<Vec<f64>, Error> {
        let inputs = self.model.network.inputs;
        if x.len() != inputs {
            return Err(lab_harness::Error::bad("columns of x", inputs.to_string(), x.len()).into());
        }
        self.binding.write(self.x, &Tensor::rounded(DType::F32, &[inputs], x))?;
        self.binding.run()?;
        let y = self.binding.read(self.y)?.values();
        let z = |(row, bias): (&[f64], &f64)| -> f64 {
            bias + row.iter().zip(&y).map(|(w, y)| w * y).sum::<f64>()
        };
        Ok(self.weight.chunks(y.len()).zip(&self.bias).map(z).collect())
    }

    /// Back to a state of zeros.
    ///
    /// # Errors
    /// The device's.
    pub fn reset(&mut self) -> Result<(), Error> {
        for (_, state) in &self.states {
            let zeros = vec![0f32; state.len()];
            self.binding.write(*state, &Tensor::new(&[zeros.len()], &zeros))?;
        }
        Ok(())
    }

    /// `hn`, of an LSTM also `cn`, of an sLSTM also `cn`, `nn` and `mn`, `[L, 1, H]` each: what the next step goes on from.
    ///
    /// # Errors
    /// The device's.
    pub fn state(&self) -> Result<Tensors, Error> {
        let read = |(name, state): &(String, Slot)| Ok((name.clone(), self.binding.read(*state)?));
        self.states.iter().map(read).collect()
    }
}

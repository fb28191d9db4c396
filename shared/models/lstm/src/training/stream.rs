//! One step at a time.

use lab_device::{DType, Device};
use lab_harness::program::{Program, Slot};
use lab_harness::{Tensor, Tensors};
use lab_reference::lstm::{Cell, Parameter};

use super::flat::Layout;
use super::{Error, Model};
use lstm_fused::launches::Common;
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
    program: Program,
    x: Slot,
    y: Slot,
    /// Before and after a step.
    states: Vec<(&'static str, [Slot; 2])>,
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
        let mut p = Program::new(device);
        let layout = Layout::of(&model);
        let weights = p.input(&layout.pack(DType::F32, parameters))?;
        let lengths = p.input(&Tensor::new(&[1], &[1i32]))?;
        let x = p.zeros(DType::F32, model.network.inputs)?;
        let y = p.zeros(DType::F32, model.features())?;
        let of_states = model.network.layers * model.network.hidden;
        let mut state = || p.zeros(DType::F32, of_states);
        let [h0, hn, c0, cn] = [state()?, state()?, state()?, state()?];
        let is_lstm = model.network.cell == Cell::Lstm;
        let common = Common { h0, hn, c: is_lstm.then_some([c0, cn]), lengths };
        let own = |_: &mut Program, of: &Parameter| Ok(layout.part(weights, &of.name));
        lstm.forward(&mut p, sizes, &common, [x, y], own, |_, _, y| Ok(y))?;
        let mut states = vec![("hn", [h0, hn])];
        if is_lstm {
            states.push(("cn", [c0, cn]));
        }
        let [weight, bias] = ["head_weight", "head_bias"].map(|name| parameters[name].values());
        Ok(Self { model, program: p, x, y, states, weight, bias })
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
        self.program.write(self.x, &Tensor::rounded(DType::F32, &[inputs], x))?;
        self.program.run()?;
        for (_, [before, after]) in &self.states {
            let state = self.program.read(*after)?;
            self.program.write(*before, &state)?;
        }
        let y = self.program.read(self.y)?.values();
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
        for (_, [before, _]) in &self.states {
            let zeros = vec![0f32; before.len()];
            self.program.write(*before, &Tensor::new(&[zeros.len()], &zeros))?;
        }
        Ok(())
    }

    /// `hn`, and of an LSTM `cn`, `[L, 1, H]` each: what the next step goes on from.
    ///
    /// # Errors
    /// The device's.
    pub fn state(&self) -> Result<Tensors, Error> {
        let shape = [self.model.network.layers, 1, self.model.network.hidden];
        let state = |(name, [before, _]): &(&str, [Slot; 2])| {
            let values = self.program.read(*before)?;
            Ok(((*name).to_owned(), Tensor { shape: shape.to_vec(), ..values }))
        };
        self.states.iter().map(state).collect()
    }
}

//! Outputs and losses without training.

use lab_device::Device;
use lab_harness::plan::Slot;
use lab_harness::{Tensor, Tensors};

use super::step::{Slots, Step};
use super::{Config, Data, Error, Head, Model};

/// A model on data of its own, without gradients and dropout; B windows at a time. Of the configuration
/// it takes the window, the batch, the type and the way.
///
/// ```
/// use lab_device::{DType, Device};
/// use lstm_fused::Network;
/// use lab_lstm::training::{Config, Data, Evaluator, Model};
/// let model = Model::forecast(Network::lstm(1, 4));
/// let data = Data::Series { values: vec![0.1, 0.2, 0.3, 0.4, 0.5], columns: 1 };
/// let config = Config { window: 3, batch: 2, ..Config::default() };
/// let mut evaluator = Evaluator::new(&Device::emulator()?, model, config, &data)?;
/// evaluator.load(&model.initial(DType::F32, 7))?;
/// // The window at 2 has no target in the data, and a forecast all the same.
/// assert_eq!(evaluator.predict(&[0, 1, 2])?.len(), 3);
/// assert!(evaluator.loss(&[0, 1])? > 0.0);
/// assert!(evaluator.loss(&[2]).is_err());
/// # Ok::<(), lab_lstm::training::Error>(())
/// ```
pub struct Evaluator {
    model: Model,
    config: Config,
    data: Data,
    step: Step,
}

impl std::fmt::Debug for Evaluator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { model, config, .. } = self;
        f.debug_struct("Evaluator")
            .field("model", model)
            .field("config", config)
            .finish_non_exhaustive()
    }
}

impl Evaluator {
    /// With all parameters zero.
    ///
    /// # Errors
    /// An option or the data is not what it may be; the device has not enough memory.
    pub fn new(device: &Device, model: Model, config: Config, data: &Data) -> Result<Self, Error> {
        model.check()?;
        let config = Config { dropout: 0.0, ..config };
        config.check(&model.network)?;
        data.check(&model)?;
        data.check_starts(&[0], config.window, false)?;
        let step = Step::outputs(device, &model, &config, data)?;
        Ok(Self { model, config, data: data.clone(), step })
    }

    /// Takes these parameters, in f32 (of an f64 run in f64).
    ///
    /// # Errors
    /// One is missing, or of another shape or type.
    pub fn load(&mut self, parameters: &Tensors) -> Result<(), Error> {
        self.model.check_parameters(parameters, self.config.master())?;
        let Step { binding, arena, slots, .. } = &mut self.step;
        Ok(binding.write(slots.weights, &arena.pack(self.config.dtype, parameters))?)
    }

    /// z of the windows that begin at `starts`: `[n, O]`, or of a head on every step `[n, T, O]`.
    ///
    /// # Errors
    /// A window ends past the data; what the device reports.
    pub fn predict(&mut self, starts: &[usize]) -> Result<Vec<f64>, Error> {
        let steps = match self.model.head {
            Head::Last => 1,
            Head::EveryStep => self.config.window,
        };
        let outputs = self.model.outputs;
        self.each_window(starts, steps, outputs, |slots| slots.z)
    }

    /// h of the last layer at every step of the windows that begin at `starts`, `[n, T, H·dirs]`.
    ///
    /// # Errors
    /// As [`Evaluator::predict`].
    pub fn hidden(&mut self, starts: &[usize]) -> Result<Vec<f64>, Error> {
        let (steps, features) = (self.config.window, self.model.features());
        self.each_window(starts, steps, features, |slots| *slots.ys.last().expect("a layer"))
    }

    /// The mean loss of the windows that begin at `starts`.
    ///
    /// # Errors
    /// As [`Evaluator::predict`]; also a window without its target.
    pub fn loss(&mut self, starts: &[usize]) -> Result<f64, Error> {
        self.data.check_starts(starts, self.config.window, true)?;
        let mut sum = 0.0;
        let batch = self.config.batch;
        for chunk in starts.chunks(batch) {
            self.launch(chunk)?;
            let of_rows = self.step.binding.read(self.step.slots.row_losses)?.values();
            let own = of_rows.chunks(batch).flat_map(|step| &step[..chunk.len()]);
            sum += own.sum::<f64>() * batch as f64; // each was divided by the rows of a batch
        }
        Ok(sum / starts.len() as f64)
    }

    fn launch(&mut self, chunk: &[usize]) -> Result<(), Error> {
        let last = chunk.last().expect("chunks are not empty");
        let padded = chunk.iter().chain(std::iter::repeat(last)).take(self.config.batch);
        let order: Vec<i32> = padded.map(|&s| s as i32).collect();
        let Step { binding, slots, .. } = &mut self.step;
        binding.write(slots.order, &Tensor::new(&[order.len()], &order))?;
        Ok(binding.run()?)
    }

    /// Of the tensor `[steps, B, columns]` in that slot, with the windows first.
    fn each_window(
        &mut self,
        starts: &[usize],
        steps: usize,
        columns: usize,
        slot: impl Fn(&Slots) -> Slot,
    ) -> Result<Vec<f64>, Error> {
        self.data.check_starts(starts, self.config.window, false)?;
        let batch = self.config.batch;
        let mut all = Vec::with_capacity(starts.len() * steps * columns);
        for chunk in starts.chunks(batch) {
            self.launch(chunk)?;
            let values = self.step.binding.read(slot(&self.step.slots))?.values();
            for row in 0..chunk.len() {
                for t in 0..steps {
                    all.extend(&values[(t * batch + row) * columns..][..columns]);
                }
            }
        }
        Ok(all)
    }
}

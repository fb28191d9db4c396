//! Losses without training.

use lab_device::{DType, Device};
use lab_harness::plan::{Plan, Slot};
use lab_harness::progress::COUNTS;
use lab_harness::{Binding, Error, Tensor, Tensors};
use lab_layers::{CrossEntropyLoss, Memory, Tape};

use crate::model::LOGIT_CAP;
use crate::step::add_windows;
use crate::{Model, Tokens};

/// A model that gives losses of windows, and its logits.
pub struct Evaluator {
    binding: Binding,
    model: Model,
    dtype: DType,
    batch: usize,
    window: usize,
    order: Slot,
    weights: Slot,
    row_losses: Slot,
    logits: Slot,
}

impl Evaluator {
    /// Of windows of so many tokens, so many at once, from `data`.
    ///
    /// # Errors
    /// Sizes that no kernel takes; parameters that are not the model's; what the device says.
    pub fn new(
        device: &Device,
        model: Model,
        parameters: &Tensors,
        dtype: DType,
        [batch, window]: [usize; 2],
        data: &Tokens,
    ) -> Result<Self, Error> {
        model.check()?;
        let own = model.parameters();
        own.check(parameters)?;
        data.check(model.vocabulary, &[0], window)?;
        let mut plan = Plan::new(device);
        let tokens = plan.input("tokens", DType::I32, &[data.ids.len()]);
        let order = plan.state("order", DType::I32, &[batch]);
        let counts = plan.zeros(DType::I64, 2 * COUNTS);
        let weights = plan.state("weights", dtype, &[own.len()]);
        let rows = batch * window;
        let row_losses = plan.output("row_losses", DType::F32, &[rows]);
        let windows = add_windows(&mut plan, tokens, order, counts, [batch, window])?;
        let mut tape = Tape::new(&mut plan, dtype, &own, weights, None);
        let logits =
            model.forward(&mut tape, windows.inputs, [batch, window], |_| Memory::Fresh)?;
        let entropy = CrossEntropyLoss {
            targets: windows.targets,
            vocabulary: model.vocabulary,
            cap: Some(LOGIT_CAP),
            row_losses: Some(row_losses),
            loss: None,
            loss_scale: None,
        };
        tape.cross_entropy(logits, entropy)?;
        plan.keep(logits);
        let tokens = Tensor::new(&[data.ids.len()], &data.ids);
        let all = own.pack(dtype, parameters);
        let empty = Tensor::new(&[batch], &vec![0i32; batch]);
        let binder = plan.bind().upload("tokens", &tokens)?.upload("weights", &all)?;
        let binding = binder.upload("order", &empty)?.finish()?;
        Ok(Self { binding, model, dtype, batch, window, order, weights, row_losses, logits })
    }

    /// Takes other parameters.
    ///
    /// # Errors
    /// They are not the model's; the device's.
    pub fn set_parameters(&mut self, parameters: &Tensors) -> Result<(), Error> {
        let own = self.model.parameters();
        own.check(parameters)?;
        self.binding.write(self.weights, &own.pack(self.dtype, parameters))
    }

    /// The mean over all targets of these windows, in nats.
    ///
    /// # Errors
    /// The device's.
    ///
    /// # Panics
    /// There are no windows.
    pub fn mean_loss(&mut self, starts: &[usize]) -> Result<f64, Error> {
        assert!(!starts.is_empty(), "windows");
        let mut sum = 0.0;
        for some in starts.chunks(self.batch) {
            self.run(some)?;
            let losses = self.binding.read(self.row_losses)?.values();
            sum += losses[..some.len() * self.window].iter().sum::<f64>();
        }
        Ok(sum / (starts.len() * self.window) as f64)
    }

    /// The logits behind each token of these windows, at most a batch of them, with their cap: \[windows, S, V\] in f32.
    ///
    /// # Errors
    /// More windows than a batch; the device's.
    pub fn logits(&mut self, starts: &[usize]) -> Result<Tensor, Error> {
        if starts.is_empty() || starts.len() > self.batch {
            return Err(Error::bad("windows", format!("1 to {}", self.batch), starts.len()));
        }
        self.run(starts)?;
        let all = self.binding.read(self.logits)?.values();
        let (rows, vocabulary) = (starts.len() * self.window, self.model.vocabulary);
        let stride = all.len() / (self.batch * self.window);
        let cap = f64::from(LOGIT_CAP);
        let rows = all.chunks(stride).take(rows).flat_map(|row| &row[..vocabulary]);
        let values: Vec<f32> = rows.map(|x| (cap * (x / cap).tanh()) as f32).collect();
        Ok(Tensor::new(&[starts.len(), self.window, vocabulary], &values))
    }

    /// Of at most a batch; the others are the first of them once more.
    fn run(&mut self, starts: &[usize]) -> Result<(), Error> {
        let order = (0..self.batch).map(|n| starts[if n < starts.len() { n } else { 0 }] as i32);
        let order: Vec<i32> = order.collect();
        self.binding.write(self.order, &Tensor::new(&[self.batch], &order))?;
        Ok(self.binding.run()?)
    }
}

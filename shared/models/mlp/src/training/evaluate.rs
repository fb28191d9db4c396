//! Losses and forecasts without training.

use lab_device::{DType, Device};
use lab_harness::program::{Program, Slot};
use lab_harness::{Tensor, Tensors};
use lab_reference::mlp::Parameters;
use lab_reference::playg::softmax;

use super::data::check_tokens;
use super::{Config, Data, Error, Model};
use lab_harness::progress::{COUNTS, NUMBERS};
use mlp_fused::launches::{Batch, Pairs, Products};

/// A model on data of its own, without gradients; B pairs at a time. Of the configuration it takes the
/// batch and, for the losses, the type.
pub struct Evaluator {
    model: Model,
    batch: usize,
    data: Data,
    program: Program,
    parameters: [Slot; 5],
    order: Slot,
    row_losses: Slot,
    /// The logits of one x, which takes the place of the embeddings.
    context: Program,
    /// x, w1, b1, w2, b2.
    of_context: [Slot; 5],
    z: Slot,
    emb: Vec<f64>,
}

impl std::fmt::Debug for Evaluator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evaluator").field("model", &self.model).finish_non_exhaustive()
    }
}

/// The forward pass of so many pairs, with parameters of zeros; and these, and the pairs' order.
fn forward(
    p: &mut Program,
    model: &Model,
    batch: usize,
    rows: usize,
    [tokens, targets]: [Slot; 2],
    dtype: DType,
) -> Result<(Batch, [Slot; 5]), Error> {
    let mut lens = model.sizes().shapes().map(|shape| shape.iter().product::<usize>());
    lens[0] = rows * model.embedding;
    let mut slots = Vec::new();
    for len in lens {
        slots.push(p.zeros(DType::F32, len)?);
    }
    let parameters: [Slot; 5] = slots.try_into().expect("five of them");
    let pairs = Pairs {
        tokens,
        targets,
        order: p.zeros(DType::I32, batch)?,
        counts: p.zeros(DType::I64, 2 * COUNTS)?,
        numbers: p.zeros(DType::F64, 2 * NUMBERS)?,
        rates: p.zeros(DType::F64, 1)?,
        losses: p.zeros(DType::F64, 1)?,
    };
    let step = Batch::new(p, model.sizes(), batch, pairs, parameters, Products::of(dtype))?;
    step.copies(p)?;
    step.logits(p)?;
    Ok((step, parameters))
}

impl Evaluator {
    /// With all parameters zero.
    ///
    /// # Errors
    /// An option or the data is not what it may be; the device has not enough memory.
    pub fn new(device: &Device, model: Model, config: Config, data: &Data) -> Result<Self, Error> {
        model.check()?;
        config.check()?;
        data.check(&model)?;
        let mut program = Program::new(device);
        let tokens = program.input(&Tensor::new(&[data.tokens.len()], &data.tokens))?;
        let ids = [tokens, tokens.part(1, data.tokens.len() - 1)];
        let (step, parameters) =
            forward(&mut program, &model, config.batch, model.vocabulary, ids, config.dtype)?;
        step.loss(&mut program)?;
        let mut context = Program::new(device);
        let zero = context.zeros(DType::I32, 1)?;
        let (one, of_context) = forward(&mut context, &model, 1, 1, [zero, zero], DType::F32)?;
        Ok(Self {
            model,
            batch: config.batch,
            data: data.clone(),
            program,
            parameters,
            order: step.pairs.order,
            row_losses: step.row_losses,
            context,
            of_context,
            z: one.stored().expect("logits that are stored").z,
            emb: vec![0.0; model.vocabulary * model.embedding],
        })
    }

    /// Takes these parameters, in f32.
    ///
    /// # Errors
    /// One is missing, or of another shape or type.
    pub fn load(&mut self, parameters: &Tensors) -> Result<(), Error> {
        self.model.check_parameters(parameters)?;
        for (at, name) in Parameters::NAMES.into_iter().enumerate() {
            let tensor = &parameters[name];
            self.program.write(self.parameters[at], tensor)?;
            if at > 0 {
                self.context.write(self.of_context[at], tensor)?;
            }
        }
        self.emb = parameters["emb"].values();
        Ok(())
    }

    /// The mean loss of the pairs at `starts`.
    ///
    /// # Errors
    /// A start that has no target; what the device reports.
    pub fn loss(&mut self, starts: &[usize]) -> Result<f64, Error> {
        self.data.check_starts(starts)?;
        let mut sum = 0.0;
        for chunk in starts.chunks(self.batch) {
            let last = chunk.last().expect("chunks are not empty");
            let padded = chunk.iter().chain(std::iter::repeat(last)).take(self.batch);
            let order: Vec<i32> = padded.map(|&s| s as i32).collect();
            self.program.write(self.order, &Tensor::new(&[order.len()], &order))?;
            self.program.run()?;
            let of_rows = self.program.read(self.row_losses)?.values();
            // Each was divided by the pairs of a batch.
            sum += of_rows[..chunk.len()].iter().sum::<f64>() * self.batch as f64;
        }
        Ok(sum / starts.len() as f64)
    }

    /// How likely each token is to come behind these, `[V]`: from the mean of their embeddings.
    ///
    /// # Errors
    /// There are none, or one is not of the vocabulary; what the device reports.
    pub fn predict(&mut self, ids: &[i32]) -> Result<Vec<f64>, Error> {
        let Model { vocabulary, embedding, .. } = self.model;
        if ids.is_empty() {
            return Err(lab_harness::Error::bad("context", "at least one token", "none").into());
        }
        check_tokens(ids, vocabulary)?;
        let mut x = vec![0.0; embedding];
        for &id in ids {
            let row = &self.emb[id as usize * embedding..][..embedding];
            x.iter_mut().zip(row).for_each(|(x, e)| *x += e / ids.len() as f64);
        }
        self.context.write(self.of_context[0], &Tensor::rounded(DType::F32, &[embedding], &x))?;
        self.context.run()?;
        let z = self.context.read(self.z)?.values();
        Ok(softmax(&z[..vocabulary], vocabulary))
    }
}

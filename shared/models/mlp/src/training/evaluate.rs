//! Losses and forecasts without training.

use lab_device::{DType, Device};
use lab_harness::plan::{Plan, Slot, SlotFacts};
use lab_harness::{Binding, Tensor, Tensors, tensor::tensors};
use lab_reference::mlp::Parameters;
use lab_reference::playg::softmax;

use super::data::check_tokens;
use super::{Config, Data, Error, Model};
use crate::kernels::PROMISE;
use lab_harness::progress::{COUNTS, NUMBERS};
use mlp_fused::launches::{Batch, Pairs, Products};

/// A model on data of its own, without gradients; B pairs at a time. Of the configuration it takes the
/// batch and, for the losses, the type.
pub struct Evaluator {
    model: Model,
    batch: usize,
    data: Data,
    of_pairs: Binding,
    parameters: [Slot; 5],
    order: Slot,
    row_losses: Slot,
    /// The logits of one x, which takes the place of the embeddings.
    of_context: Binding,
    /// x, w1, b1, w2, b2.
    context_parameters: [Slot; 5],
    context_logits: Slot,
    emb: Vec<f64>,
}

impl std::fmt::Debug for Evaluator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evaluator").field("model", &self.model).finish_non_exhaustive()
    }
}

/// The launches of a forward pass of so many pairs, and what the host writes of it.
struct Forward {
    batch: Batch,
    /// emb, w1, b1, w2, b2.
    parameters: [Slot; 5],
    order: Slot,
}

impl Forward {
    /// With `rows` embeddings.
    fn new(
        plan: &mut Plan,
        model: &Model,
        batch: usize,
        rows: usize,
        [tokens, targets]: [Slot; 2],
        dtype: DType,
    ) -> Result<Self, Error> {
        let mut shapes = model.sizes().shapes();
        shapes[0][0] = rows;
        let mut names = Parameters::NAMES.into_iter();
        let parameters = shapes
            .map(|shape| plan.state(names.next().expect("a name of each"), DType::F32, &shape));
        let order = plan.state("order", DType::I32, &[batch]);
        let pairs = Pairs {
            tokens,
            targets,
            order,
            counts: plan.zeros(DType::I64, 2 * COUNTS),
            numbers: plan.zeros(DType::F64, 2 * NUMBERS),
            rates: plan.zeros(DType::F64, 1),
            losses: plan.zeros(DType::F64, 1),
        };
        let products = Products::for_dtype(dtype);
        let batch = Batch::new(plan, PROMISE, model.sizes(), batch, pairs, parameters, products);
        batch.add_rounding(plan)?;
        batch.add_logits(plan)?;
        Ok(Self { batch, parameters, order })
    }

    /// Binds its plan to these inputs, its parameters and its order to zeros.
    fn bind(plan: Plan, inputs: &Tensors) -> Result<Binding, Error> {
        let begins_at_zero = |facts: &&SlotFacts| {
            Parameters::NAMES.contains(&facts.name.as_str()) || facts.name == "order"
        };
        let zeros = |facts: &SlotFacts| {
            let (dtype, shape) = (facts.element.dtype()?, facts.shape.clone());
            Some((facts.name.clone(), Tensor { dtype, shape, bytes: vec![0; facts.bytes()] }))
        };
        let zeros: Tensors = plan.slots().iter().filter(begins_at_zero).filter_map(zeros).collect();
        let mut binder = plan.bind().upload_inputs(inputs)?;
        for (name, tensor) in &zeros {
            binder = binder.upload(name, tensor)?;
        }
        Ok(binder.finish()?)
    }
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
        let Config { batch, dtype, .. } = config;
        let mut plan = Plan::new(device);
        let tokens = plan.input("tokens", DType::I32, &[data.tokens.len()]);
        let ids = [tokens, tokens.part(1, data.tokens.len() - 1)];
        let pairs = Forward::new(&mut plan, &model, batch, model.vocabulary, ids, dtype)?;
        pairs.batch.add_loss(&mut plan)?;
        let row_losses = plan.output("row_losses", DType::F64, &[batch]);
        plan.copy(pairs.batch.row_losses, row_losses);
        let text = Tensor::new(&[data.tokens.len()], &data.tokens);
        let of_pairs = Forward::bind(plan, &tensors([("tokens", text)]))?;

        let mut plan = Plan::new(device);
        let zero = plan.zeros(DType::I32, 1);
        let context = Forward::new(&mut plan, &model, 1, 1, [zero, zero], DType::F32)?;
        let stored = context.batch.stored_logits().expect("logits that are stored");
        let context_logits = plan.output("logits", DType::F32, &[stored.len()]);
        plan.copy(stored, context_logits);
        Ok(Self {
            model,
            batch,
            data: data.clone(),
            of_pairs,
            parameters: pairs.parameters,
            order: pairs.order,
            row_losses,
            of_context: Forward::bind(plan, &Tensors::new())?,
            context_parameters: context.parameters,
            context_logits,
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
            self.of_pairs.write(self.parameters[at], tensor)?;
            if at > 0 {
                self.of_context.write(self.context_parameters[at], tensor)?;
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
            self.of_pairs.write(self.order, &Tensor::new(&[order.len()], &order))?;
            self.of_pairs.run()?;
            let losses = self.of_pairs.read(self.row_losses)?.values();
            // Each was divided by the pairs of a batch.
            sum += losses[..chunk.len()].iter().sum::<f64>() * self.batch as f64;
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
        let x = Tensor::rounded(DType::F32, &[embedding], &x);
        self.of_context.write(self.context_parameters[0], &x)?;
        self.of_context.run()?;
        let z = self.of_context.read(self.context_logits)?.values();
        Ok(softmax(&z[..vocabulary], vocabulary))
    }
}

//! Losses without training.

use lab_device::{DType, Device};
use lab_harness::plan::{Plan, Slot};
use lab_harness::progress::COUNTS;
use lab_harness::{Binding, Error, Tensor, Tensors};
use lab_layers::{Documents, HeadLoss, Memory, Tape};
use lab_training::Step as _;

use crate::step::{Share, TARGETS, add_tokens_and_targets, add_windows};
use crate::store::{Store, WEIGHTS, upload};
use crate::{Config, Model, Tokens, Trainer};

/// A model that gives losses of windows, or its logits.
pub struct Evaluator {
    binding: Binding,
    model: Model,
    batch: usize,
    window: usize,
    order: Slot,
    out: Out,
}

/// What it gives.
#[derive(Clone, Copy)]
enum Out {
    /// Of each row.
    Losses(Slot),
    Logits(Slot),
}

/// What an evaluator is made from, beside what it gives.
#[derive(Clone, Copy)]
pub struct Evaluated<'a> {
    /// The model.
    pub model: Model,
    /// Its parameters.
    pub parameters: &'a Tensors,
    /// What it runs in.
    pub dtype: DType,
    /// Windows at once.
    pub batch: usize,
    /// Tokens of a window.
    pub window: usize,
    /// What the windows are of.
    pub data: &'a Tokens,
    /// The token that documents begin with, where a window may have several: see [`Config::document`].
    pub document: Option<i32>,
}

/// A plan that is not bound yet, and what its evaluator has of it.
struct Planned {
    plan: Plan,
    order: Slot,
    out: Out,
}

const TOKENS: &str = "tokens";
const ORDER: &str = "order";

/// The head of an evaluation: of the tape, what it reads and the targets.
type AddHead<'a> = &'a dyn Fn(&mut Tape<'_>, Slot, Slot) -> Result<Out, Error>;

impl Evaluator {
    /// That gives losses. Logits are made for some rows at a time, and are not kept.
    ///
    /// # Errors
    /// Sizes that no kernel takes; parameters that are not the model's; tokens with targets of their own; what the device says.
    pub fn of_losses(device: &Device, of: Evaluated<'_>) -> Result<Self, Error> {
        check_targets(of.data.targets.is_some())?;
        Self::new(device, of, &|tape, y, targets| add_losses(tape, &of.model, y, targets))
    }

    /// That gives losses of a model in training, always with the parameters of its last step: it reads them, and the data, where the
    /// training has them.
    ///
    /// # Errors
    /// Tokens with targets of their own; what the device says.
    pub fn beside(trainer: &Trainer, batch: usize) -> Result<Self, Error> {
        Self::beside_on(trainer, batch, None)
    }

    /// The same on other tokens than the training's, which are in memory: of a training on files, whose tokens come and go.
    ///
    /// # Errors
    /// As [`Evaluator::beside`]; tokens that the model does not know.
    pub fn beside_on(
        trainer: &Trainer,
        batch: usize,
        data: Option<&Tokens>,
    ) -> Result<Self, Error> {
        let (model, config) = (*trainer.model(), *trainer.config());
        let Config { dtype, window, document, .. } = config;
        let step = trainer.step();
        let plan = step.binding().plan();
        check_targets(plan.slot(TARGETS).is_some())?;
        if let Some(data) = data {
            data.check(model.vocabulary, &[0], window)?;
        }
        let own = data.map(|data| Tensor::new(&[data.ids.len()], &data.ids));
        let of_training = plan.slot(TOKENS).expect("those of the training").len();
        let tokens = data.map_or(of_training, |data| data.ids.len());
        let add_head: AddHead<'_> = &|tape, y, targets| add_losses(tape, &model, y, targets);
        let store = Store::new(&model, false);
        let Planned { plan, order, out } = planned(
            plan.device(),
            (&model, &store),
            (dtype, document),
            [batch, window],
            tokens,
            add_head,
        )?;
        let binder = match &own {
            Some(own) => plan.bind().upload(TOKENS, own)?,
            None => step.share_tokens(plan.bind(), TOKENS)?,
        };
        let binding = step.share_weights(binder, WEIGHTS)?.finish()?;
        Ok(Self { binding, model, batch, window, order, out })
    }

    /// That gives logits.
    ///
    /// # Errors
    /// As [`Evaluator::of_losses`].
    pub fn of_logits(device: &Device, of: Evaluated<'_>) -> Result<Self, Error> {
        Self::new(device, of, &|tape, y, _| {
            let logits = of.model.logits(tape, y)?;
            tape.plan().keep(logits);
            Ok(Out::Logits(logits))
        })
    }

    fn new(device: &Device, of: Evaluated<'_>, add_head: AddHead<'_>) -> Result<Self, Error> {
        let Evaluated { model, parameters, dtype, batch, window, data, document } = of;
        model.check()?;
        Config { document, ..Config::default() }.check_for(&model, &[])?;
        let store = Store::of(&model, parameters)?;
        data.check(model.vocabulary, &[0], window)?;
        let Planned { plan, order, out } = planned(
            device,
            (&model, &store),
            (dtype, document),
            [batch, window],
            data.ids.len(),
            add_head,
        )?;
        let tokens = Tensor::new(&[data.ids.len()], &data.ids);
        let arenas = store.pack(dtype, parameters);
        let binding = upload(plan.bind().upload(TOKENS, &tokens)?, &arenas)?.finish()?;
        Ok(Self { binding, model, batch, window, order, out })
    }

    /// The mean over all targets of these windows, in nats.
    ///
    /// # Errors
    /// It gives logits; the device's.
    ///
    /// # Panics
    /// There are no windows.
    pub fn mean_loss(&mut self, starts: &[usize]) -> Result<f64, Error> {
        assert!(!starts.is_empty(), "windows");
        let Out::Losses(row_losses) = self.out else {
            return Err(Error::bad("evaluator", "one of losses", "one of logits"));
        };
        let mut sum = 0.0;
        for some in starts.chunks(self.batch) {
            self.run(some)?;
            let losses = self.binding.read(row_losses)?.values();
            sum += losses[..some.len() * self.window].iter().sum::<f64>();
        }
        Ok(sum / (starts.len() * self.window) as f64)
    }

    /// The logits behind each token of these windows, at most a batch of them, with their cap: \[windows, S, V\] in f32.
    ///
    /// # Errors
    /// More windows than a batch; it gives losses; the device's.
    pub fn logits(&mut self, starts: &[usize]) -> Result<Tensor, Error> {
        if starts.is_empty() || starts.len() > self.batch {
            return Err(Error::bad("windows", format!("1 to {}", self.batch), starts.len()));
        }
        let Out::Logits(logits) = self.out else {
            return Err(Error::bad("evaluator", "one of logits", "one of losses"));
        };
        self.run(starts)?;
        let all = self.binding.read(logits)?.values();
        let (rows, vocabulary) = (starts.len() * self.window, self.model.vocabulary);
        let stride = all.len() / (self.batch * self.window);
        let rows = all.chunks(stride).take(rows).flat_map(|row| &row[..vocabulary]);
        let values: Vec<f32> = rows.map(|x| self.model.capped(*x) as f32).collect();
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

/// Refuses targets of their own: a mean loss is over all tokens.
fn check_targets(has_targets: bool) -> Result<(), Error> {
    if has_targets {
        Err(Error::bad("data", "tokens, each the target of the one before", "targets"))
    } else {
        Ok(())
    }
}

fn planned(
    device: &Device,
    (model, store): (&Model, &Store),
    (dtype, document): (DType, Option<i32>),
    [batch, window]: [usize; 2],
    tokens: usize,
    add_head: AddHead<'_>,
) -> Result<Planned, Error> {
    let mut plan = Plan::new(device);
    let data = add_tokens_and_targets(&mut plan, tokens, false);
    let order = plan.state_of_zeros(ORDER, DType::I32, &[batch]);
    let counts = plan.zeros(DType::I64, 2 * COUNTS);
    let (weights, int8) = store.add(&mut plan, dtype);
    let windows = add_windows(&mut plan, data, order, counts, window, Share::all(batch))?;
    let mut tape = Tape::new(&mut plan, dtype, store.unquantized(), weights, None)
        .with_int8(int8)
        .with_documents(document.map(|first| Documents { tokens: windows.inputs, first }));
    let y = model.forward(&mut tape, windows.inputs, [batch, window], |_| Memory::Fresh)?;
    let out = add_head(&mut tape, y, windows.targets)?;
    Ok(Planned { plan, order, out })
}

fn add_losses(tape: &mut Tape<'_>, model: &Model, y: Slot, targets: Slot) -> Result<Out, Error> {
    let row_losses = tape.plan().output("row_losses", DType::F32, &[targets.len()]);
    let head = HeadLoss {
        targets,
        vocabulary: model.vocabulary,
        cap: model.logit_cap(),
        z_loss: 0.0,
        // Nobody asks for their mean.
        count: tape.plan().zeros(DType::I32, 1),
        row_losses,
        loss_scale: None,
        is_tied: model.tied,
        rows_at_once: None,
    };
    tape.linear_cross_entropy(model.head(), y, head)?;
    Ok(Out::Losses(row_losses))
}

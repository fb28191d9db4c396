//! Writing on: a prompt, and then a token at a time.

use lab_device::{DType, Device};
use lab_harness::plan::{Plan, Slot};
use lab_harness::{Binder, Binding, Error, Tensor, Tensors};
use lab_layers::{Memory, State, Tape};
use lab_training::Step as _;

use crate::{Model, Trainer};

/// A model behind what it has read so far. Its memory is the same however much that is.
pub struct Writer {
    device: Device,
    model: Model,
    dtype: DType,
    step: Binding,
    token: Slot,
    logits: Slot,
    states: Vec<State>,
}

const TOKENS: &str = "tokens";
const WEIGHTS: &str = "weights";

/// Names of a block's state.
const STATES: [&str; 3] = ["c", "n", "m"];

/// Prompts from so many tokens on are read at once, where a kernel for it is there.
const LONG: usize = 16;

fn add_states(plan: &mut Plan, model: &Model) -> Vec<State> {
    let Model { heads, keys, values, .. } = *model;
    let sizes = [heads * keys * values, heads * keys, heads];
    let of_block = |n: usize| {
        let named = STATES.into_iter().zip(sizes);
        let slots: Vec<Slot> = named
            .map(|(name, len)| plan.state(&format!("state.{n}.{name}"), DType::F32, &[len]))
            .collect();
        State { slots: slots.try_into().expect("three") }
    };
    (0..model.blocks).map(of_block).collect()
}

/// The logits behind the last of so many tokens: the plan; the slots of its tokens and logits; and the states.
fn planned(
    device: &Device,
    model: &Model,
    dtype: DType,
    positions: usize,
) -> Result<(Plan, [Slot; 2], Vec<State>), Error> {
    let parameters = model.parameters();
    let mut plan = Plan::new(device);
    let token = plan.state_of_zeros(TOKENS, DType::I32, &[positions]);
    let weights = plan.input(WEIGHTS, dtype, &[parameters.len()]);
    let states = add_states(&mut plan, model);
    let mut tape = Tape::new(&mut plan, dtype, &parameters, weights, None);
    let memory = |n: usize| match positions {
        1 => Memory::Step(states[n]),
        _ => Memory::Leave(states[n]),
    };
    let y = model.forward(&mut tape, token, [1, positions], memory)?;
    let logits = model.logits(&mut tape, y)?;
    plan.keep(logits);
    Ok((plan, [token, logits], states))
}

impl Writer {
    /// A model that has read nothing.
    ///
    /// # Errors
    /// Sizes that no kernel takes; parameters that are not the model's; what the device says.
    pub fn new(
        device: &Device,
        model: Model,
        parameters: &Tensors,
        dtype: DType,
    ) -> Result<Self, Error> {
        model.check()?;
        let own = model.parameters();
        own.check(parameters)?;
        let weights = own.pack(dtype, parameters);
        Self::bound(device, model, dtype, |binder| binder.upload(WEIGHTS, &weights)?.finish())
    }

    /// A model in training, always with the parameters of its last step.
    ///
    /// # Errors
    /// What the device says.
    pub fn beside(trainer: &Trainer) -> Result<Self, Error> {
        let (model, dtype, step) = (*trainer.model(), trainer.config().dtype, trainer.step());
        let device = step.binding().plan().device().clone();
        Self::bound(&device, model, dtype, |binder| step.share_weights(binder, WEIGHTS)?.finish())
    }

    fn bound(
        device: &Device,
        model: Model,
        dtype: DType,
        bind: impl FnOnce(Binder<'_>) -> Result<Binding, Error>,
    ) -> Result<Self, Error> {
        let (plan, [token, logits], states) = planned(device, &model, dtype, 1)?;
        let step = bind(plan.bind())?;
        let mut writer = Self { device: device.clone(), model, dtype, step, token, logits, states };
        writer.forget()?;
        Ok(writer)
    }

    /// Forgets all that it has read.
    ///
    /// # Errors
    /// The device's.
    pub fn forget(&mut self) -> Result<(), Error> {
        let firsts = first_states(&self.model);
        let slots = self.states.iter().flat_map(|state| state.slots);
        for (slot, (_, tensor)) in slots.zip(&firsts) {
            self.step.write(slot, tensor)?;
        }
        Ok(())
    }

    /// Reads a prompt from the start; the logits behind its last token, with their cap.
    ///
    /// # Errors
    /// There is no token, or one that the model does not know; the device's.
    pub fn read(&mut self, prompt: &[i32]) -> Result<Vec<f64>, Error> {
        if prompt.is_empty() {
            return Err(Error::bad("prompt", "at least one token", 0));
        }
        self.check(prompt)?;
        self.forget()?;
        // In f32 no version leaves its state.
        if prompt.len() >= LONG && self.dtype != DType::F32 {
            return self.read_at_once(prompt);
        }
        let (last, first) = prompt.split_last().expect("at least one");
        for &token in first {
            self.feed(token)?;
        }
        self.next(*last)
    }

    fn read_at_once(&mut self, prompt: &[i32]) -> Result<Vec<f64>, Error> {
        let (plan, [_, logits], _) = planned(&self.device, &self.model, self.dtype, prompt.len())?;
        let tokens = Tensor::new(&[prompt.len()], prompt);
        let mut binder = plan.bind().upload(TOKENS, &tokens)?;
        let names = (0..self.model.blocks).flat_map(|n| STATES.map(|s| format!("state.{n}.{s}")));
        for name in names.chain([WEIGHTS.to_owned()]) {
            binder = binder.share(&name, &self.step, &name)?;
        }
        let mut all = binder.finish()?;
        all.run()?;
        let rows = all.read(logits)?.values();
        let stride = rows.len() / prompt.len();
        Ok(self.capped(&rows[rows.len() - stride..]))
    }

    /// The logits behind one token more, with their cap.
    ///
    /// # Errors
    /// As [`Writer::read`].
    pub fn next(&mut self, token: i32) -> Result<Vec<f64>, Error> {
        self.check(&[token])?;
        self.feed(token)?;
        let row = self.step.read(self.logits)?.values();
        Ok(self.capped(&row))
    }

    fn feed(&mut self, token: i32) -> Result<(), Error> {
        self.step.write(self.token, &Tensor::new(&[1], &[token]))?;
        Ok(self.step.run()?)
    }

    fn capped(&self, row: &[f64]) -> Vec<f64> {
        row[..self.model.vocabulary].iter().map(|x| self.model.capped(*x)).collect()
    }

    fn check(&self, tokens: &[i32]) -> Result<(), Error> {
        let vocabulary = self.model.vocabulary;
        let is_known = |&&id: &&i32| usize::try_from(id).is_ok_and(|id| id < vocabulary);
        match tokens.iter().find(|id| !is_known(id)) {
            Some(id) => Err(Error::bad("token", format!("0 to {}", vocabulary - 1), id)),
            None => Ok(()),
        }
    }
}

/// Of a model that has read nothing, in the order of its blocks.
fn first_states(model: &Model) -> Vec<(String, Tensor)> {
    let Model { heads, keys, values, .. } = *model;
    let of = |len: usize, value: f32| Tensor::new(&[len], &vec![value; len]);
    let of_block = |n: usize| {
        let all =
            [of(heads * keys * values, 0.0), of(heads * keys, 0.0), of(heads, f32::NEG_INFINITY)];
        STATES.into_iter().zip(all).map(move |(s, tensor)| (format!("state.{n}.{s}"), tensor))
    };
    (0..model.blocks).flat_map(of_block).collect()
}

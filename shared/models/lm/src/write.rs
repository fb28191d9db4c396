//! Writing on: a prompt, and then a token at a time.

use std::cell::RefCell;
use std::rc::Rc;

use lab_device::{DType, Device, Graph};
use lab_harness::plan::{Plan, Slot};
use lab_harness::{Binder, Binding, Error, Tensor, Tensors};
use lab_layers::{Memory, State, Tape};
use lab_operations::RecurrentCell;
use lab_training::Step as _;

use crate::{Mixer, Model, Trainer};

/// A model behind what it has read so far. The memory of the vLSTM is the same however much that is; attention keeps the keys and
/// values of all of it.
pub struct Writer {
    device: Device,
    model: Model,
    dtype: DType,
    /// Tokens that attention has room for, and those that were read.
    room: usize,
    read: usize,
    // Dropped before the buffers that its launches use: a token's, as one.
    graph: Graph<'static>,
    step: Rc<RefCell<Binding>>,
    token: Slot,
    logits: Slot,
    memory: Blocks,
}

const TOKENS: &str = "tokens";
const WEIGHTS: &str = "weights";
const LENGTHS: &str = "lengths";

/// Names of what a block remembers.
fn names_of_state(mixer: Mixer) -> &'static [&'static str] {
    match mixer {
        Mixer::Vlstm => &["c", "n", "m"],
        Mixer::Attention => &["keys", "values"],
        Mixer::Lstm => &["h", "c"],
        Mixer::Slstm => &["h", "c", "n", "m"],
    }
}

/// Prompts from so many tokens on are read at once, where a kernel for it is there.
const LONG: usize = 16;

/// The most tokens that attention may have room for.
const MOST_ROOM: usize = 1 << 20;

/// What the blocks remember.
struct Blocks {
    states: Vec<State>,
    /// Of attention, i32 \[1\]: the tokens that were read, with the one that comes.
    lengths: Slot,
}

impl Blocks {
    fn add(plan: &mut Plan, model: &Model, dtype: DType, room: usize) -> Self {
        let Model { heads, keys, values, .. } = *model;
        let sizes = [heads * keys * values, heads * keys, heads];
        let lengths = plan.state_of_zeros(LENGTHS, DType::I32, &[1]);
        let of_block = |n: usize| {
            let mixer = model.mixers.of_block(n);
            let (dtype, sizes) = match mixer {
                Mixer::Vlstm => (DType::F32, [sizes[0], sizes[1], sizes[2], 0]),
                // Other mixers have room for anything.
                Mixer::Attention => (dtype, [model.key_heads() * room * values; 4]),
                Mixer::Lstm | Mixer::Slstm => (dtype, [heads * values; 4]),
            };
            // Those that a mixer has, and behind them what attention reads its length from.
            let mut slots = [lengths; 4];
            for (slot, (name, len)) in slots.iter_mut().zip(names_of_state(mixer).iter().zip(sizes))
            {
                let dtype = match mixer {
                    Mixer::Slstm => RecurrentCell::Slstm.dtype_of_state(name, dtype),
                    _ => dtype,
                };
                *slot = plan.state_of_zeros(&format!("state.{n}.{name}"), dtype, &[len]);
            }
            State { slots }
        };
        Self { states: (0..model.blocks).map(of_block).collect(), lengths }
    }

    /// The names of all slots.
    fn names(model: &Model) -> Vec<String> {
        let of_block = |n: usize| {
            let own = names_of_state(model.mixers.of_block(n));
            own.iter().map(move |name| format!("state.{n}.{name}"))
        };
        (0..model.blocks).flat_map(of_block).chain([LENGTHS.to_owned()]).collect()
    }
}

/// The logits behind the last of so many tokens: the plan; the slots of its tokens and logits; and the states.
fn planned(
    device: &Device,
    model: &Model,
    dtype: DType,
    [positions, room]: [usize; 2],
) -> Result<(Plan, [Slot; 2], Blocks), Error> {
    let parameters = model.parameters();
    let mut plan = Plan::new(device);
    let token = plan.state_of_zeros(TOKENS, DType::I32, &[positions]);
    let weights = plan.input(WEIGHTS, dtype, &[parameters.len()]);
    let blocks = Blocks::add(&mut plan, model, dtype, room);
    let mut tape = Tape::new(&mut plan, dtype, &parameters, weights, None);
    let memory = |n: usize| match positions {
        1 => Memory::Step(blocks.states[n]),
        _ => Memory::Leave(blocks.states[n]),
    };
    let y = model.forward(&mut tape, token, [1, positions], memory)?;
    let logits = model.logits(&mut tape, y)?;
    plan.keep(logits);
    Ok((plan, [token, logits], blocks))
}

impl Writer {
    /// Tokens that attention has room for where nothing else is said.
    pub const ROOM: usize = 1 << 12;

    /// A model that has read nothing. Attention has room for [`Writer::ROOM`] tokens.
    ///
    /// # Errors
    /// Sizes that no kernel takes; parameters that are not the model's; what the device says.
    pub fn new(
        device: &Device,
        model: Model,
        parameters: &Tensors,
        dtype: DType,
    ) -> Result<Self, Error> {
        Self::with_room(device, model, parameters, dtype, Self::ROOM)
    }

    /// The same, where attention has room for so many tokens; other mixers need none.
    ///
    /// # Errors
    /// As [`Writer::new`]; no room, or more than 2²⁰.
    pub fn with_room(
        device: &Device,
        model: Model,
        parameters: &Tensors,
        dtype: DType,
        room: usize,
    ) -> Result<Self, Error> {
        model.check()?;
        let own = model.parameters();
        own.check(parameters)?;
        let weights = own.pack(dtype, parameters);
        let bind = |binder: Binder<'_>| binder.upload(WEIGHTS, &weights)?.finish();
        Self::bound(device, model, dtype, room, bind)
    }

    /// A model in training, always with the parameters of its last step, and room as [`Writer::with_room`] has it.
    ///
    /// # Errors
    /// What the device says.
    pub fn beside(trainer: &Trainer, room: usize) -> Result<Self, Error> {
        let (model, dtype, step) = (*trainer.model(), trainer.config().dtype, trainer.step());
        let device = step.binding().plan().device().clone();
        let bind = |binder: Binder<'_>| step.share_weights(binder, WEIGHTS)?.finish();
        Self::bound(&device, model, dtype, room, bind)
    }

    fn bound(
        device: &Device,
        model: Model,
        dtype: DType,
        room: usize,
        bind: impl FnOnce(Binder<'_>) -> Result<Binding, Error>,
    ) -> Result<Self, Error> {
        let has_attention = model.mixers.has(Mixer::Attention);
        if has_attention && !(1..=MOST_ROOM).contains(&room) {
            return Err(Error::bad("room", format!("1 to {MOST_ROOM} tokens"), room));
        }
        let room = if has_attention { room } else { usize::MAX };
        let (plan, [token, logits], memory) = planned(device, &model, dtype, [1, room])?;
        let step = Rc::new(RefCell::new(bind(plan.bind())?));
        let repeated = Rc::clone(&step);
        let graph = device.graph(move || repeated.borrow_mut().run())?;
        let device = device.clone();
        let mut writer =
            Self { device, model, dtype, room, read: 0, graph, step, token, logits, memory };
        writer.forget()?;
        Ok(writer)
    }

    /// Forgets all that it has read.
    ///
    /// # Errors
    /// The device's.
    pub fn forget(&mut self) -> Result<(), Error> {
        self.read = 0;
        let Model { heads, keys, values, mixers, .. } = self.model;
        let of = |len: usize, value: f32| Tensor::new(&[len], &vec![value; len]);
        let first =
            [of(heads * keys * values, 0.0), of(heads * keys, 0.0), of(heads, f32::NEG_INFINITY)];
        let mut step = self.step.borrow_mut();
        let zeros = of(heads * values, 0.0);
        // h is of the run's type; of the LSTM c as well.
        let h = Tensor::rounded(self.dtype, &zeros.shape, &zeros.values());
        for (n, state) in self.memory.states.iter().enumerate() {
            let first: &[&Tensor] = match mixers.of_block(n) {
                Mixer::Vlstm => &[&first[0], &first[1], &first[2]],
                // What it has read counts no more.
                Mixer::Attention => &[],
                Mixer::Lstm => &[&h, &h],
                Mixer::Slstm => &[&h, &zeros, &zeros, &zeros],
            };
            for (slot, tensor) in state.slots.into_iter().zip(first) {
                step.write(slot, tensor)?;
            }
        }
        Ok(())
    }

    /// Reads a prompt from the start; the logits behind its last token, with their cap.
    ///
    /// # Errors
    /// There is no token, one that the model does not know, or more than there is room for; the device's.
    pub fn read(&mut self, prompt: &[i32]) -> Result<Vec<f64>, Error> {
        if prompt.is_empty() {
            return Err(Error::bad("prompt", "at least one token", 0));
        }
        self.check(prompt)?;
        self.forget()?;
        // In f32 no version of the vLSTM leaves its state.
        let leaves_all = self.dtype != DType::F32 || !self.model.mixers.has(Mixer::Vlstm);
        if prompt.len() >= LONG && leaves_all {
            return self.read_at_once(prompt);
        }
        let (last, first) = prompt.split_last().expect("at least one");
        for &token in first {
            self.feed(token)?;
        }
        self.next(*last)
    }

    fn read_at_once(&mut self, prompt: &[i32]) -> Result<Vec<f64>, Error> {
        self.check_room(prompt.len())?;
        let sizes = [prompt.len(), self.room];
        let (plan, [_, logits], _) = planned(&self.device, &self.model, self.dtype, sizes)?;
        let tokens = Tensor::new(&[prompt.len()], prompt);
        let mut binder = plan.bind().upload(TOKENS, &tokens)?;
        for name in Blocks::names(&self.model).into_iter().chain([WEIGHTS.to_owned()]) {
            binder = binder.share(&name, &self.step.borrow(), &name)?;
        }
        let mut all = binder.finish()?;
        all.run()?;
        self.read = prompt.len();
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
        let row = self.step.borrow().read(self.logits)?.values();
        Ok(self.capped(&row))
    }

    fn feed(&mut self, token: i32) -> Result<(), Error> {
        self.check_room(1)?;
        self.read += 1;
        {
            let mut step = self.step.borrow_mut();
            step.write(self.token, &Tensor::new(&[1], &[token]))?;
            if self.model.mixers.has(Mixer::Attention) {
                step.write(self.memory.lengths, &Tensor::new(&[1], &[self.read as i32]))?;
            }
        }
        Ok(self.graph.launch()?)
    }

    /// Refuses more tokens than there is room for.
    fn check_room(&self, more: usize) -> Result<(), Error> {
        match self.read.checked_add(more).filter(|all| *all <= self.room) {
            Some(_) => Ok(()),
            None => {
                let expected = format!("at most {}, as there is room for", self.room);
                Err(Error::bad("tokens to read", expected, self.read + more))
            }
        }
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

//! Writing on: a prompt, and then a token at a time.

use std::cell::{Ref, RefCell};
use std::rc::Rc;

use lab_device::{DType, Device, Graph};
use lab_harness::plan::Slot;
use lab_harness::{Binder, Binding, Error, Tensor, Tensors};
use lab_training::Step as _;

use crate::decoding::{Blocks, Extent, Planned, TOKENS, planned};
use crate::sample::Drawing;
use crate::saved_state::Cache;
use crate::store::{Store, WEIGHTS, upload};
use crate::{Draw, Mixer, Model, Trainer, Types};

/// A model behind what it has read so far. The memory of the vLSTM is the same however much that is; attention keeps the keys and
/// values of all of it.
pub struct Writer {
    device: Device,
    model: Model,
    store: Store,
    types: Types,
    /// Tokens that attention has room for, and those that were read.
    room: usize,
    read: usize,
    // Dropped before the buffers that its launches use: a token's, as one.
    graph: Graph<'static>,
    step: Rc<RefCell<Binding>>,
    token: Slot,
    logits: Slot,
    drawing: Drawing,
    memory: Blocks,
}

/// Prompts from so many tokens on are read at once, where a kernel for it is there.
const LONG: usize = 16;

/// The most tokens that attention may have room for.
const MOST_ROOM: usize = 1 << 20;

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
        types: impl Into<Types>,
    ) -> Result<Self, Error> {
        Self::with_room(device, model, parameters, types, Self::ROOM)
    }

    /// The same, where attention has room for so many tokens; other mixers need none.
    ///
    /// # Errors
    /// As [`Writer::new`]; no room, or more than 2²⁰.
    pub fn with_room(
        device: &Device,
        model: Model,
        parameters: &Tensors,
        types: impl Into<Types>,
        room: usize,
    ) -> Result<Self, Error> {
        model.check()?;
        let store = Store::of(&model, parameters)?;
        let types = types.into();
        let arenas = store.pack(types.run(), parameters);
        let bind = |binder: Binder<'_>| upload(binder, &arenas)?.finish();
        Self::bound(device, model, store, types, room, bind)
    }

    /// A model in training, always with the parameters of its last step, and room as [`Writer::with_room`] has it.
    ///
    /// # Errors
    /// What the device says.
    pub fn beside(trainer: &Trainer, room: usize) -> Result<Self, Error> {
        let (model, dtype, step) = (*trainer.model(), trainer.config().dtype, trainer.step());
        let device = step.binding().plan().device().clone();
        let bind = |binder: Binder<'_>| step.share_weights(binder, WEIGHTS)?.finish();
        Self::bound(&device, model, Store::new(&model, false), dtype.into(), room, bind)
    }

    /// Of the weights of another binding of the same model.
    ///
    /// # Errors
    /// As [`Writer::with_room`].
    pub(crate) fn beside_binding(
        device: &Device,
        model: Model,
        store: &Store,
        types: Types,
        room: usize,
        of: &Binding,
    ) -> Result<Self, Error> {
        let bind = |binder: Binder<'_>| store.share(binder, of)?.finish();
        Self::bound(device, model, store.clone(), types, room, bind)
    }

    /// Whether long prompts are read at once: in f32 no version of the vLSTM leaves its state.
    pub(crate) fn reads_at_once(model: &Model, dtype: DType) -> bool {
        dtype != DType::F32 || !model.mixers.has(Mixer::Vlstm)
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn types(&self) -> Types {
        self.types
    }

    /// Tokens that it has read.
    pub(crate) fn tokens_read(&self) -> usize {
        self.read
    }

    /// What attention keeps, where there is any.
    pub(crate) fn cache(&self) -> Cache {
        let Model { values: columns, .. } = self.model;
        Cache { heads: self.model.key_heads(), room: self.room, columns }
    }

    /// Refuses a text that there is no room for.
    pub(crate) fn check_room_for(&self, tokens: usize) -> Result<(), Error> {
        if tokens <= self.room { Ok(()) } else { Err(self.no_room(tokens)) }
    }

    /// Its states become these, behind so many tokens.
    pub(crate) fn put_states(
        &mut self,
        states: &[(Slot, Tensor)],
        tokens: usize,
    ) -> Result<(), Error> {
        let mut step = self.step.borrow_mut();
        states.iter().try_for_each(|(slot, state)| step.write(*slot, state))?;
        self.read = tokens;
        Ok(())
    }

    /// What it remembers, of one sequence.
    pub(crate) fn states(&self) -> (Ref<'_, Binding>, &Blocks) {
        (self.step.borrow(), &self.memory)
    }

    fn bound(
        device: &Device,
        model: Model,
        store: Store,
        types: Types,
        room: usize,
        bind: impl FnOnce(Binder<'_>) -> Result<Binding, Error>,
    ) -> Result<Self, Error> {
        let has_attention = model.mixers.has(Mixer::Attention);
        if has_attention && !(1..=MOST_ROOM).contains(&room) {
            return Err(Error::bad("room", format!("1 to {MOST_ROOM} tokens"), room));
        }
        let room = if has_attention { room } else { usize::MAX };
        let extent = Extent { batch: 1, positions: 1, room, choices: None };
        let Planned { mut plan, tokens: token, logits, blocks: memory } =
            planned(device, &model, &store, types, extent)?;
        let drawing = Drawing::add(&mut plan, &model, types.run(), logits, 1)?;
        let step = Rc::new(RefCell::new(bind(plan.bind())?));
        let repeated = Rc::clone(&step);
        let graph = device.graph(move || repeated.borrow_mut().run())?;
        let device = device.clone();
        let read = 0;
        let mut writer = Self {
            device,
            model,
            store,
            types,
            room,
            read,
            graph,
            step,
            token,
            logits,
            drawing,
            memory,
        };
        writer.forget()?;
        Ok(writer)
    }

    /// Forgets all that it has read.
    ///
    /// # Errors
    /// The device's.
    pub fn forget(&mut self) -> Result<(), Error> {
        self.read = 0;
        self.memory.forget(&self.model, self.types, &mut self.step.borrow_mut())
    }

    /// Reads a prompt from the start; the logits behind its last token, with their cap.
    ///
    /// # Errors
    /// There is no token, one that the model does not know, or more than there is room for; the device's.
    pub fn read(&mut self, prompt: &[i32]) -> Result<Vec<f64>, Error> {
        if prompt.is_empty() {
            return Err(Error::bad("prompt", "at least one token", 0));
        }
        self.model.check_tokens(prompt)?;
        self.forget()?;
        if prompt.len() >= LONG && Self::reads_at_once(&self.model, self.types.run()) {
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
        let extent = Extent { batch: 1, positions: prompt.len(), room: self.room, choices: None };
        let Planned { plan, logits, .. } =
            planned(&self.device, &self.model, &self.store, self.types, extent)?;
        let tokens = Tensor::new(&[prompt.len()], prompt);
        let mut binder = plan.bind().upload(TOKENS, &tokens)?;
        for name in Blocks::names(&self.model) {
            binder = binder.share(&name, &self.step.borrow(), &name)?;
        }
        binder = self.store.share(binder, &self.step.borrow())?;
        let mut all = binder.finish()?;
        all.run()?;
        self.read = prompt.len();
        Ok(self.capped(&all.read(logits)?.values()))
    }

    /// The logits behind one token more, with their cap.
    ///
    /// # Errors
    /// As [`Writer::read`].
    pub fn next(&mut self, token: i32) -> Result<Vec<f64>, Error> {
        self.model.check_tokens(&[token])?;
        self.feed(token)?;
        let row = self.step.borrow().read(self.logits)?.values();
        Ok(self.capped(&row))
    }

    /// The token behind one more, drawn on the device.
    ///
    /// # Errors
    /// As [`Writer::read`].
    pub fn next_drawn(&mut self, token: i32, draw: &Draw) -> Result<i32, Error> {
        self.model.check_tokens(&[token])?;
        let (slot, asked) = self.drawing.asked(std::slice::from_ref(draw), 1);
        self.step.borrow_mut().write(slot, &asked)?;
        self.feed(token)?;
        Ok(self.step.borrow().read(self.drawing.tokens)?.values()[0] as i32)
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
            None => Err(self.no_room(self.read + more)),
        }
    }

    fn no_room(&self, tokens: usize) -> Error {
        let expected = format!("at most {}, as there is room for", self.room);
        Error::bad("tokens to read", expected, tokens)
    }

    fn capped(&self, row: &[f64]) -> Vec<f64> {
        row[..self.model.vocabulary].iter().map(|x| self.model.capped(*x)).collect()
    }
}

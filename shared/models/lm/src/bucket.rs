//! The graph of a token of so many sequences, over the first slots of a batch's states.

use std::cell::{Ref, RefCell};
use std::rc::Rc;

use lab_device::{Device, Graph};
use lab_harness::plan::Slot;
use lab_harness::{Binder, Binding, Error, Tensor};

use crate::decoding::{Blocks, Extent, Planned, planned};
use crate::sample::Drawing;
use crate::store::Store;
use crate::{Draw, Mixer, Model, Types};

/// What all buckets of a batch have in common.
#[derive(Clone, Copy)]
pub(crate) struct Of<'a> {
    pub(crate) device: &'a Device,
    pub(crate) model: &'a Model,
    pub(crate) store: &'a Store,
    pub(crate) types: Types,
    pub(crate) room: usize,
    /// Sequences of the largest bucket, by which all choose their kernels.
    pub(crate) slots: usize,
}

/// A token of so many sequences.
pub(crate) struct Bucket {
    size: usize,
    // Dropped before the buffers that its launches use.
    graph: RefCell<Graph<'static>>,
    step: Rc<RefCell<Binding>>,
    tokens: Slot,
    logits: Slot,
    drawing: Drawing,
    blocks: Blocks,
    has_attention: bool,
}

impl Bucket {
    pub(crate) fn new(
        of: Of<'_>,
        size: usize,
        bind: impl FnOnce(Binder<'_>) -> Result<Binding, Error>,
    ) -> Result<Self, Error> {
        let Of { device, model, store, types, room, slots } = of;
        let extent = Extent { batch: size, positions: 1, room, choices: Some(slots) };
        let Planned { mut plan, tokens, logits, blocks } =
            planned(device, model, store, types, extent)?;
        let drawing = Drawing::add(&mut plan, model, types.run(), logits, size)?;
        let step = Rc::new(RefCell::new(bind(plan.bind())?));
        let repeated = Rc::clone(&step);
        let graph = RefCell::new(device.graph(move || repeated.borrow_mut().run())?);
        let has_attention = model.mixers.has(Mixer::Attention);
        Ok(Self { size, graph, step, tokens, logits, drawing, blocks, has_attention })
    }

    /// Sequences.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn step(&self) -> Ref<'_, Binding> {
        self.step.borrow()
    }

    /// Lends weights, and the states of its first slots.
    pub(crate) fn lend<'a>(&self, binder: Binder<'a>, of: Of<'_>) -> Result<Binder<'a>, Error> {
        let step = self.step();
        let binder = of.store.share(binder, &step)?;
        let names = Blocks::names_of_states(of.model);
        names.iter().try_fold(binder, |binder, name| binder.share_first(name, &step, name))
    }

    /// The next token of each of the first slots; behind how many, if attention wants to know; and how the one behind it is drawn. Slots
    /// behind these read some token, too: theirs is no state of a sequence.
    pub(crate) fn run(&self, tokens: &[i32], read: &[usize], draws: &[Draw]) -> Result<(), Error> {
        let mut all = tokens.to_vec();
        all.resize(self.size, 0);
        let mut step = self.step.borrow_mut();
        step.write(self.tokens, &Tensor::new(&[self.size], &all))?;
        let (slot, asked) = self.drawing.asked(draws, self.size);
        step.write(slot, &asked)?;
        if self.has_attention {
            let mut lengths: Vec<i32> = read.iter().map(|read| *read as i32 + 1).collect();
            lengths.resize(self.size, 1);
            step.write(self.blocks.lengths, &Tensor::new(&[self.size], &lengths))?;
        }
        drop(step);
        Ok(self.graph.borrow_mut().launch()?)
    }

    /// What was drawn behind the tokens that were read last: one a slot.
    pub(crate) fn drawn(&self) -> Result<Vec<i32>, Error> {
        let tokens = self.step().read(self.drawing.tokens)?.values();
        Ok(tokens.into_iter().map(|token| token as i32).collect())
    }

    /// Of the tokens that were read last, with their cap: a row a slot.
    pub(crate) fn logits(&self, model: &Model) -> Result<Vec<Vec<f64>>, Error> {
        let all = self.step().read(self.logits)?.values();
        let row = |row: &[f64]| row[..model.vocabulary].iter().map(|x| model.capped(*x)).collect();
        Ok(all.chunks(all.len() / self.size).map(row).collect())
    }

    /// The same as they are, with what is behind each row's end.
    pub(crate) fn bytes_of_logits(&self) -> Result<Vec<u8>, Error> {
        Ok(self.step().read(self.logits)?.bytes)
    }

    /// The state of a slot becomes that of the only sequence of a binding. What attention has read stays where that has room for fewer.
    pub(crate) fn copy_state(
        &self,
        model: &Model,
        slot: usize,
        from: &Binding,
        blocks: &Blocks,
    ) -> Result<(), Error> {
        let own = self.blocks.slots(model).into_iter();
        for (to, from_slot) in own.zip(blocks.slots(model)) {
            let to = self.of_slot(to, slot);
            if to.len() == from_slot.len() {
                self.step().copy(to, from, from_slot)?;
            }
        }
        Ok(())
    }

    /// The state of a slot becomes that of another.
    pub(crate) fn move_state(&self, model: &Model, from: usize, to: usize) -> Result<(), Error> {
        let step = self.step();
        for all in self.blocks.slots(model) {
            step.copy(self.of_slot(all, to), &step, self.of_slot(all, from))?;
        }
        Ok(())
    }

    fn of_slot(&self, all: Slot, slot: usize) -> Slot {
        let len = all.len() / self.size;
        all.part(slot * len, len)
    }
}

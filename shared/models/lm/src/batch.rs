//! Sequences that join and leave between tokens.

use std::collections::VecDeque;

use lab_device::Device;
use lab_harness::{Error, Tensors};

use crate::bucket::{Bucket, Of};
use crate::fresh::Fresh;
use crate::pieces::check_piece;
use crate::reader::Reader;
use crate::store::{Store, upload};
use crate::{Draw, Mixer, Model, Types};

/// The most slots.
pub const MOST_SLOTS: usize = 256;

/// How a batch runs.
#[derive(Clone, Copy, Debug)]
pub struct Batched {
    /// The model.
    pub model: Model,
    /// What it runs in, and what it remembers in.
    pub types: Types,
    /// Sequences that it decodes at most at once.
    pub slots: usize,
    /// Tokens that attention has room for in each; other mixers need none.
    pub room: usize,
    /// Positions of a long prompt that [`Batch::read_piece`] reads at most: a power of two from [`LEAST_PIECE`](crate::LEAST_PIECE) to
    /// [`MOST_PIECE`](crate::MOST_PIECE).
    pub piece: usize,
}

/// A sequence of a batch. No other has the same one, before or after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sequence(u64);

/// Continuous batching: sequences with states of their own, of which [`Batch::advance`] reads a token of each.
///
/// A long prompt is read ahead of its first step, piece by piece ([`Batch::read_piece`]): the other sequences wait for one piece at a
/// time. In which pieces is a matter of the prompt's length alone.
///
/// The states of all slots lie one behind the other. Sequences have the first slots: where one leaves, the last one's state takes its
/// place. So a step of so many sequences as a *bucket* has, 1, 2, 4 and so on up to all slots, is a graph that is made once, over the
/// first slots of the same states.
///
/// The bits of a sequence's logits do not depend on the others. Within a bucket each row is computed by itself. Kernels that add in
/// another order would give other bits: the products of all buckets are chosen as for all slots, and a bucket is kept only if it gives
/// the bits of that of all slots, which is tried when the batch is made ([`Batch::buckets`]). With attention, whose kernel splits sequences by how many there are, all slots are one
/// bucket.
pub struct Batch {
    model: Model,
    room: usize,
    reader: Reader,
    /// Ascending; the last one owns weights and states, which it lends to the others.
    buckets: Vec<Bucket>,
    fresh: Fresh,
    /// In the order of their slots.
    sequences: Vec<Entry>,
    /// Those without a slot yet, in the order in which they joined. Only the first has read anything.
    reading: VecDeque<Reading>,
    joined: u64,
}

struct Entry {
    sequence: Sequence,
    /// What it reads next; several of a prompt.
    next: VecDeque<i32>,
    read: usize,
}

/// A sequence of whose tokens some are read ahead of its first step.
struct Reading {
    entry: Entry,
    /// Of what it reads next, tokens that are still read ahead.
    ahead: usize,
}

impl Batch {
    /// Of parameters, in f32 or [quantized](Model::quantized).
    ///
    /// # Errors
    /// Sizes that no kernel takes; parameters that are not the model's; no slot or more than [`MOST_SLOTS`]; what the device says.
    pub fn new(device: &Device, of: Batched, parameters: &Tensors) -> Result<Self, Error> {
        let Batched { model, types, slots, room, piece } = of;
        model.check()?;
        check_piece(piece)?;
        if !(1..=MOST_SLOTS).contains(&slots) {
            return Err(Error::bad("slots", format!("1 to {MOST_SLOTS}"), slots));
        }
        let has_attention = model.mixers.has(Mixer::Attention);
        let store = Store::of(&model, parameters)?;
        let arenas = store.pack(types.run(), parameters);
        let bucket = Of { device, model: &model, store: &store, types, room, slots };
        let all = Bucket::new(bucket, slots, |binder| upload(binder, &arenas)?.finish())?;
        let reader = Reader::new(bucket, piece, &all.step())?;
        let fresh = Fresh::new(device, &model, types)?;
        let room = if has_attention { room } else { usize::MAX };
        let (sequences, reading, buckets) = (Vec::new(), VecDeque::new(), vec![all]);
        let mut batch = Self { model, room, reader, buckets, fresh, sequences, reading, joined: 0 };
        if !has_attention {
            batch.add_smaller_buckets(bucket)?;
        }
        Ok(batch)
    }

    /// Those of powers of two that give the bits of all slots' bucket.
    fn add_smaller_buckets(&mut self, of: Of<'_>) -> Result<(), Error> {
        let slots = self.slots();
        let mut smaller = Vec::new();
        let mut expected = None;
        for size in (0..).map(|n| 1 << n).take_while(|size| *size < slots) {
            let all = self.buckets.last().expect("that of all slots");
            let bucket = Bucket::new(of, size, |binder| all.lend(binder, of)?.finish())?;
            let expected = match &expected {
                Some(expected) => expected,
                None => expected.insert(self.probe(all)?),
            };
            let found = self.probe(&bucket)?;
            let mut pairs = found.iter().zip(expected);
            if pairs.all(|(found, expected)| expected.starts_with(found)) {
                smaller.push(bucket);
            }
        }
        self.buckets.splice(0..0, smaller);
        Ok(())
    }

    /// The bytes of the logits behind some tokens, of as many fresh sequences as a bucket has.
    fn probe(&self, bucket: &Bucket) -> Result<Vec<Vec<u8>>, Error> {
        const STEPS: usize = 3;
        for slot in 0..bucket.size() {
            self.put_fresh(slot)?;
        }
        let token = |step: usize, slot: usize| (7 * slot + 3 * step + 1) % self.model.vocabulary;
        let of_step = |step| {
            let tokens: Vec<i32> = (0..bucket.size()).map(|b| token(step, b) as i32).collect();
            bucket.run(&tokens, &[], &[])?;
            bucket.bytes_of_logits()
        };
        (0..STEPS).map(of_step).collect()
    }

    /// The state of a slot becomes that of a sequence that has read nothing.
    fn put_fresh(&self, slot: usize) -> Result<(), Error> {
        let all = self.buckets.last().expect("that of all slots");
        let (binding, blocks) = self.fresh.states();
        all.copy_state(&self.model, slot, binding, blocks)
    }

    /// The numbers of sequences that a step has a graph for, ascending; the last one is that of all slots.
    pub fn buckets(&self) -> Vec<usize> {
        self.buckets.iter().map(Bucket::size).collect()
    }

    /// Sequences that there may be at once.
    pub fn slots(&self) -> usize {
        self.buckets.last().map_or(0, Bucket::size)
    }

    /// Lengths of the pieces that long prompts are read in, from the longest. None where a prompt is read a token a step, as in f32 with the
    /// vLSTM; or at once, as with attention.
    pub fn piece_lengths(&self) -> Vec<usize> {
        self.reader.lengths()
    }

    /// Sequences that there are.
    pub fn len(&self) -> usize {
        self.sequences.len() + self.reading.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sequences of these that steps leave out: those with tokens that [`Batch::read_piece`] has still to read.
    pub fn reading(&self) -> usize {
        self.reading.len()
    }

    /// The one whose prompt the next piece is of.
    pub fn next_to_read(&self) -> Option<Sequence> {
        self.reading.front().map(|first| first.entry.sequence)
    }

    /// The bucket that the next step takes, by its sequences.
    pub fn bucket(&self) -> usize {
        self.smallest_fitting().size()
    }

    fn smallest_fitting(&self) -> &Bucket {
        let fits = |bucket: &&Bucket| bucket.size() >= self.sequences.len();
        self.buckets.iter().find(fits).expect("all slots have one")
    }

    /// Adds a sequence. Of a prompt of 64 tokens and more [`Batch::read_piece`] reads all but the last ones first, where a kernel for it is
    /// there: in halves, or without the vLSTM.
    ///
    /// # Errors
    /// No slot is free; the prompt has no token, one that the model does not know, or more than there is room for; the device's.
    pub fn join(&mut self, prompt: &[i32]) -> Result<Sequence, Error> {
        if self.len() == self.slots() {
            let expected = format!("fewer than {}, as there are slots", self.slots());
            return Err(Error::bad("sequences before another joins", expected, self.len()));
        }
        if prompt.is_empty() {
            return Err(Error::bad("prompt", "at least one token", 0));
        }
        self.model.check_tokens(prompt)?;
        if prompt.len() > self.room {
            let expected = format!("at most {}, as there is room for", self.room);
            return Err(Error::bad("tokens of a prompt", expected, prompt.len()));
        }
        let sequence = Sequence(self.joined);
        let entry = Entry { sequence, next: prompt.iter().copied().collect(), read: 0 };
        match self.reader.ahead(prompt.len()) {
            0 => {
                self.put_fresh(self.sequences.len())?;
                self.sequences.push(entry);
            }
            ahead => self.reading.push_back(Reading { entry, ahead }),
        }
        self.joined += 1;
        Ok(sequence)
    }

    /// Reads a piece of the prompt of [`Batch::next_to_read`], while all others wait; with attention all of it but the last token. How many
    /// tokens it was: 0 where no prompt is to be read ahead. Behind its last piece a sequence takes part in the steps.
    ///
    /// # Errors
    /// The device's. That sequence can only leave then.
    pub fn read_piece(&mut self) -> Result<usize, Error> {
        let Some(Reading { entry, ahead }) = self.reading.front_mut() else { return Ok(0) };
        let begins = (entry.read == 0).then_some(&self.fresh);
        let count = self.reader.read(&entry.next.make_contiguous()[..*ahead], begins)?;
        entry.next.drain(..count);
        entry.read += count;
        *ahead -= count;
        if *ahead == 0 {
            self.give_slot_to_first()?;
        }
        Ok(count)
    }

    /// The first of those that were read ahead gets a slot.
    fn give_slot_to_first(&mut self) -> Result<(), Error> {
        let all = self.buckets.last().expect("that of all slots");
        if let Some((binding, blocks)) = self.reader.states() {
            all.copy_state(&self.model, self.sequences.len(), &binding, blocks)?;
        }
        self.sequences.extend(self.reading.pop_front().map(|first| first.entry));
        Ok(())
    }

    fn reading_at(&self, sequence: Sequence) -> Option<usize> {
        self.reading.iter().position(|reading| reading.entry.sequence == sequence)
    }

    fn slot_of(&self, sequence: Sequence) -> Result<usize, Error> {
        let found = self.sequences.iter().position(|entry| entry.sequence == sequence);
        found.ok_or_else(|| Error::bad("sequence", "one of the batch", format!("{sequence:?}")))
    }

    /// Says which token a sequence reads next, behind what it still has to read.
    ///
    /// # Errors
    /// The sequence is none of the batch's; the model does not know the token; attention has no more room.
    pub fn put(&mut self, sequence: Sequence, token: i32) -> Result<(), Error> {
        self.model.check_tokens(&[token])?;
        let room = self.room;
        let Entry { next, read, .. } = match self.reading_at(sequence) {
            Some(at) => &mut self.reading[at].entry,
            None => {
                let slot = self.slot_of(sequence)?;
                &mut self.sequences[slot]
            }
        };
        if *read + next.len() >= room {
            let expected = format!("at most {room}, as there is room for");
            return Err(Error::bad("tokens to read", expected, *read + next.len() + 1));
        }
        next.push_back(token);
        Ok(())
    }

    /// Takes a sequence out. The state of the last one moves into its slot.
    ///
    /// # Errors
    /// The sequence is none of the batch's; the device's.
    pub fn leave(&mut self, sequence: Sequence) -> Result<(), Error> {
        if let Some(at) = self.reading_at(sequence) {
            // Whose prompt is read next begins anew: it has read nothing.
            self.reading.remove(at);
            return Ok(());
        }
        let (slot, last) = (self.slot_of(sequence)?, self.sequences.len() - 1);
        if slot < last {
            self.buckets.last().expect("that of all slots").move_state(&self.model, last, slot)?;
        }
        self.sequences.swap_remove(slot);
        Ok(())
    }

    /// Reads the next token of each sequence but those whose prompts are read ahead. Of those that have nothing more to read, the logits behind it, with their cap.
    ///
    /// # Errors
    /// A sequence has no token to read ([`Batch::put`]); the device's.
    pub fn advance(&mut self) -> Result<Vec<(Sequence, Vec<f64>)>, Error> {
        let ready = self.read_one_of_each(&[])?;
        let rows = if ready.is_empty() {
            Vec::new()
        } else {
            self.smallest_fitting().logits(&self.model)?
        };
        Ok(self.of_ready(&ready, rows))
    }

    /// The same, but what it gives is the token behind, drawn on the device as `draw` has it of each. Only that goes to the host.
    ///
    /// # Errors
    /// As [`Batch::advance`].
    // ANCHOR: advance
    pub fn advance_drawing(
        &mut self,
        mut draw: impl FnMut(Sequence) -> Draw,
    ) -> Result<Vec<(Sequence, i32)>, Error> {
        let of_entry = |entry: &Entry| match entry.next.len() {
            1 => draw(entry.sequence),
            _ => Draw::likeliest(self.model.vocabulary),
        };
        let draws: Vec<Draw> = self.sequences.iter().map(of_entry).collect();
        let ready = self.read_one_of_each(&draws)?;
        let drawn = if ready.is_empty() { Vec::new() } else { self.smallest_fitting().drawn()? };
        Ok(self.of_ready(&ready, drawn))
    }

    /// The slots of those that have nothing more to read.
    fn read_one_of_each(&mut self, draws: &[Draw]) -> Result<Vec<usize>, Error> {
        if self.sequences.is_empty() {
            return Ok(Vec::new());
        }
        let next = |entry: &Entry| {
            let token = entry.next.front().copied();
            token.ok_or_else(|| Error::bad("tokens to read", "one of each sequence", "none of one"))
        };
        let tokens: Vec<i32> = self.sequences.iter().map(next).collect::<Result<_, _>>()?;
        let read: Vec<usize> = self.sequences.iter().map(|entry| entry.read).collect();
        self.smallest_fitting().run(&tokens, &read, draws)?;
        let mut ready = Vec::new();
        for (slot, entry) in self.sequences.iter_mut().enumerate() {
            entry.next.pop_front();
            entry.read += 1;
            ready.extend(entry.next.is_empty().then_some(slot));
        }
        Ok(ready)
    }
    // ANCHOR_END: advance

    /// What rows of all slots have of some.
    fn of_ready<V>(&self, ready: &[usize], rows: Vec<V>) -> Vec<(Sequence, V)> {
        let of_slot =
            |(slot, row)| ready.contains(&slot).then(|| (self.sequences[slot].sequence, row));
        rows.into_iter().enumerate().filter_map(of_slot).collect()
    }
}

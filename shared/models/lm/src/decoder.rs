//! Many sequences at once: a token of each, with a state of each.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use lab_device::{DType, Device, Graph};
use lab_harness::binding::StepTime;
use lab_harness::plan::{Plan, Slot};
use lab_harness::{Binder, Binding, Error, Tensor, Tensors, arguments};

use crate::decoding::{Blocks, Extent, Planned, TOKENS, planned};
use crate::store::{Store, upload};
use crate::{Mixer, Model, Types, Writer, fill, kernels};

/// Sequences that are decoded together, greedily: a token of each is one CUDA graph, whose last launch writes the likeliest tokens
/// where its first reads them. Each has a state of its own. Of two
/// sequences each has the bits that it has alone, whatever the other is; with more of them other kernels add in another order.
pub struct Decoder {
    device: Device,
    model: Model,
    store: Store,
    types: Types,
    batch: usize,
    bytes: Bytes,
    // Dropped before the buffers that its launches use.
    graph: Graph<'static>,
    step: Rc<RefCell<Binding>>,
    tokens: Slot,
    logits: Slot,
    memory: Blocks,
    /// Tokens that each sequence has read.
    read: usize,
    room: usize,
}

/// What a token of all sequences moves at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// Each weight once; of the embedding a row a sequence.
    pub weights: usize,
    /// Of states what is read and what is written.
    pub states: usize,
}

/// The longest prompt that is timed.
const MOST_PROMPT: usize = 1 << 20;

/// The most sequences.
pub const MOST_SEQUENCES: usize = 1024;

/// How a decoder runs.
#[derive(Clone, Copy, Debug)]
pub struct Decoded {
    /// The model.
    pub model: Model,
    /// What it runs in, and what it remembers in.
    pub types: Types,
    /// Sequences.
    pub batch: usize,
    /// Tokens that attention has room for in each; other mixers need none.
    pub room: usize,
}

impl Decoder {
    /// Of parameters, in f32 or [quantized](Model::quantized). All sequences have read nothing, and token 0 comes.
    ///
    /// # Errors
    /// Sizes that no kernel takes; parameters that are not the model's; what the device says.
    pub fn new(device: &Device, of: Decoded, parameters: &Tensors) -> Result<Self, Error> {
        of.model.check()?;
        let store = Store::of(&of.model, parameters)?;
        let arenas = store.pack(of.types.run(), parameters);
        Self::bound(device, of, &store, |binder| upload(binder, &arenas)?.finish())
    }

    /// Of random weights that no host has seen; some matrices as int8.
    ///
    /// # Errors
    /// As [`Decoder::new`].
    pub fn random(device: &Device, of: Decoded, int8: bool) -> Result<Self, Error> {
        of.model.check()?;
        let store = Store::new(&of.model, int8);
        let filled = fill::random(device, &store, of.types.run())?;
        Self::bound(device, of, &store, |binder| store.share(binder, &filled)?.finish())
    }

    fn bound(
        device: &Device,
        of: Decoded,
        store: &Store,
        bind: impl FnOnce(Binder<'_>) -> Result<Binding, Error>,
    ) -> Result<Self, Error> {
        let Decoded { model, types, batch, room } = of;
        let dtype = types.run();
        if !(1..=MOST_SEQUENCES).contains(&batch) {
            return Err(Error::bad("sequences", format!("1 to {MOST_SEQUENCES}"), batch));
        }
        let room = if model.mixers.has(Mixer::Attention) { room } else { usize::MAX };
        let extent = Extent { batch, positions: 1, room, choices: None };
        let Planned { mut plan, tokens, logits, blocks: memory } =
            planned(device, &model, store, types, extent)?;
        add_likeliest(&mut plan, &model, dtype, logits, tokens)?;
        let embedding = if model.tied { 0 } else { model.vocabulary * model.width };
        let arenas = store.arenas(dtype).into_iter();
        let all: usize = arenas.map(|(_, dtype, all)| all.count() * dtype.size()).sum();
        let rows = batch * model.width * dtype.size();
        let weights = all - embedding * dtype.size() + if model.tied { 0 } else { rows };
        let states = 2 * batch * model.bytes_of_memory(types)[0];
        let mut bound = bind(plan.bind())?;
        memory.begin(&model, batch, &mut bound)?;
        let step = Rc::new(RefCell::new(bound));
        let repeated = Rc::clone(&step);
        let graph = device.graph(move || repeated.borrow_mut().run())?;
        let (device, bytes) = (device.clone(), Bytes { weights, states });
        let read = 0;
        Ok(Self {
            device,
            model,
            store: store.clone(),
            types,
            batch,
            bytes,
            graph,
            step,
            tokens,
            logits,
            memory,
            read,
            room,
        })
    }

    /// What a token of all sequences moves at least. Keys and values of attention are not counted: they grow.
    pub fn bytes_moved(&self) -> Bytes {
        self.bytes
    }

    /// Launches of a token.
    pub fn launches(&self) -> usize {
        self.step.borrow().plan().len()
    }

    /// Bytes of device memory.
    pub fn memory(&self) -> usize {
        self.step.borrow().plan().peak_bytes()
    }

    /// Says which token of each sequence comes, in place of the likeliest.
    ///
    /// # Errors
    /// Another number of them, or one that the model does not know.
    pub fn put(&mut self, tokens: &[i32]) -> Result<(), Error> {
        if tokens.len() != self.batch {
            return Err(Error::bad(
                "tokens",
                format!("{}, one a sequence", self.batch),
                tokens.len(),
            ));
        }
        self.model.check_tokens(tokens)?;
        self.step.borrow_mut().write(self.tokens, &Tensor::new(&[self.batch], tokens))
    }

    /// All sequences forget what they have read.
    ///
    /// # Errors
    /// The device's.
    pub fn forget(&mut self) -> Result<(), Error> {
        self.read = 0;
        let mut step = self.step.borrow_mut();
        self.memory.clear(&self.model, self.types, &mut step)?;
        self.memory.begin(&self.model, self.batch, &mut step)
    }

    /// All sequences have read so many tokens: for a timing, which asks for no more than that attention reads as many keys and values. They are
    /// what was there, zeros at first.
    ///
    /// # Errors
    /// Attention has no room for them.
    pub fn pretend_read(&mut self, tokens: usize) -> Result<(), Error> {
        if tokens > self.room {
            let expected = format!("at most {}, as there is room for", self.room);
            return Err(Error::bad("tokens that were read", expected, tokens));
        }
        self.read = tokens;
        Ok(())
    }

    /// Reads the tokens that are to come; the likeliest behind them, which come next.
    ///
    /// # Errors
    /// Attention has no more room; the device's.
    pub fn advance(&mut self) -> Result<Vec<i32>, Error> {
        self.launch()?;
        let tokens = self.step.borrow().read(self.tokens)?.values();
        Ok(tokens.into_iter().map(|token| token as i32).collect())
    }

    /// The logits behind the tokens that were read last, with their cap: a row a sequence.
    ///
    /// # Errors
    /// The device's.
    pub fn logits(&self) -> Result<Vec<Vec<f64>>, Error> {
        let all = self.step.borrow().read(self.logits)?.values();
        let row = |row: &[f64]| {
            row[..self.model.vocabulary].iter().map(|x| self.model.capped(*x)).collect()
        };
        Ok(all.chunks(all.len() / self.batch).map(row).collect())
    }

    fn launch(&mut self) -> Result<(), Error> {
        if self.read >= self.room {
            let expected = format!("at most {}, as there is room for", self.room);
            return Err(Error::bad("tokens to read", expected, self.read + 1));
        }
        self.read += 1;
        if self.model.mixers.has(Mixer::Attention) {
            let lengths = vec![self.read as i32; self.batch];
            let mut step = self.step.borrow_mut();
            step.write(self.memory.lengths, &Tensor::new(&[self.batch], &lengths))?;
        }
        Ok(self.graph.launch()?)
    }

    /// The time of so many tokens of each sequence, one behind the other, in some runs.
    ///
    /// # Errors
    /// As [`Decoder::advance`].
    pub fn time(&mut self, tokens: usize, runs: usize) -> Result<Vec<Duration>, Error> {
        let device = self.device.clone();
        let mut failed = None;
        let times = device.time(runs, || {
            for _ in 0..tokens {
                if let Err(error) = self.launch() {
                    failed.get_or_insert(error);
                }
            }
            Ok(())
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(times?),
        }
    }

    /// The time of a prompt of so many tokens in some runs: all are read at once, up to the logits behind the last one. Tokens are any, and
    /// each run goes on behind the run before.
    ///
    /// # Errors
    /// There is more than one sequence; no token, or more than attention has room for; a type in which no kernel reads a prompt at once; the
    /// device's.
    pub fn time_prompt(&mut self, tokens: usize, runs: usize) -> Result<Vec<Duration>, Error> {
        if self.batch != 1 {
            return Err(Error::bad("sequences with a prompt", "1", self.batch));
        }
        if !(1..=self.room.min(MOST_PROMPT)).contains(&tokens) {
            let expected = format!("1 to {} tokens", self.room.min(MOST_PROMPT));
            return Err(Error::bad("prompt", expected, tokens));
        }
        if !Writer::reads_at_once(&self.model, self.types.run()) {
            return Err(Error::bad("type of a prompt", "f16 or bf16", self.types.run()));
        }
        let extent = Extent { batch: 1, positions: tokens, room: self.room, choices: None };
        let Planned { plan, .. } =
            planned(&self.device, &self.model, &self.store, self.types, extent)?;
        let any = |n: usize| (n * 7919 % self.model.vocabulary) as i32;
        let prompt = Tensor::new(&[tokens], &(0..tokens).map(any).collect::<Vec<_>>());
        let mut binder = plan.bind().upload(TOKENS, &prompt)?;
        for name in Blocks::names(&self.model) {
            binder = binder.share(&name, &self.step.borrow(), &name)?;
        }
        let mut all = self.store.share(binder, &self.step.borrow())?.finish()?;
        Ok(self.device.time(runs, || all.run())?)
    }

    /// The time of each launch of a token, alone and with a cold L2 cache.
    ///
    /// # Errors
    /// The device's.
    pub fn time_launches(&mut self, runs: usize) -> Result<Vec<StepTime>, Error> {
        Ok(self.step.borrow_mut().time_steps(runs)?)
    }
}

/// Writes the likeliest token of each sequence.
fn add_likeliest(
    plan: &mut Plan,
    model: &Model,
    dtype: DType,
    logits: Slot,
    tokens: Slot,
) -> Result<(), Error> {
    let kernel =
        plan.device().kernel(&kernels::LIKELIEST, &format!("likeliest<{}>", dtype.cpp()))?;
    let launch = kernel.grid([tokens.len() as u32, 1, 1])?;
    let stride = logits.len() / tokens.len();
    plan.launch(&kernel, launch, arguments![logits, tokens, V: model.vocabulary, stride])
}

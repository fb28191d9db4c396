//! What a model remembers of a text, in a file: a prompt is read once, and continued many times.

use std::collections::BTreeMap;
use std::path::Path;

use lab_device::DType;
use lab_harness::{Error, Tensor, Tensors, tensor};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{Mixer, Model, Writer};

/// The states behind a text, as safetensors: `tokens` i32, the `logits` behind the last of them, f64 with their cap, and `state.N.NAME`
/// of each block N, flat; of attention the keys and the values of the tokens, \[NKV, tokens, D\]. The metadata say of which model, and of
/// which weights.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedState {
    of: Identity,
    tokens: Vec<i32>,
    logits: Vec<f64>,
    states: Tensors,
}

/// What a state belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    format: u32,
    model: Model,
    dtype: String,
    /// Of the vLSTM's C, where it is not f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    states: Option<String>,
    weights: String,
}

/// What the metadata call it.
const NOTE: &str = "lm.state";
const FORMAT: u32 = 1;
const TOKENS: &str = "tokens";
const LOGITS: &str = "logits";

impl Identity {
    fn of(writer: &Writer, parameters: &Tensors) -> Self {
        let (model, types) = (*writer.model(), writer.types());
        let narrow = Some(types.states()).filter(|states| *states != DType::F32);
        let (dtype, states) = (types.run().to_string(), narrow.map(|states| states.to_string()));
        Self { format: FORMAT, model, dtype, states, weights: digest(parameters) }
    }
}

/// Of names and shapes, and of the bytes where each tensor begins and ends: a training changes all of them, and to hash many gigabytes
/// takes longer than to read the prompt again.
fn digest(parameters: &Tensors) -> String {
    const EACH: usize = 1 << 16;
    let mut hash = Sha256::new();
    for (name, tensor) in parameters {
        hash.update(format!("{name} {}\n", tensor.describe()));
        let bytes = &tensor.bytes;
        hash.update(&bytes[..bytes.len().min(EACH)]);
        hash.update(&bytes[bytes.len().saturating_sub(EACH)..]);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl SavedState {
    /// Of a writer that has read `tokens` of these parameters, with the logits behind the last of them.
    ///
    /// # Errors
    /// It has read another number of tokens; the device's.
    pub fn of(
        writer: &Writer,
        parameters: &Tensors,
        tokens: &[i32],
        logits: &[f64],
    ) -> Result<Self, Error> {
        let states = writer.read_states(tokens.len())?;
        let (tokens, logits) = (tokens.to_vec(), logits.to_vec());
        Ok(Self { of: Identity::of(writer, parameters), tokens, logits, states })
    }

    /// The text.
    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// Lets a writer of the same parameters go on behind the text; the logits behind its last token.
    ///
    /// # Errors
    /// It is of another model, type or other weights; the writer has too little room; a tensor is missing or of another size; the device's.
    pub fn resume(&self, writer: &mut Writer, parameters: &Tensors) -> Result<Vec<f64>, Error> {
        let wanted = Identity::of(writer, parameters);
        let told = |of: &Identity| {
            let weights = of.weights.get(..8).unwrap_or(&of.weights);
            let states = of.states.as_ref().map(|states| format!(", states of {states}"));
            let states = states.unwrap_or_default();
            format!("one of {}{states}, weights {weights}, model {}", of.dtype, json(&of.model))
        };
        if self.of != wanted {
            return Err(Error::bad("state", told(&wanted), told(&self.of)));
        }
        writer.model().check_tokens(&self.tokens)?;
        let vocabulary = writer.model().vocabulary;
        if self.tokens.is_empty() || self.logits.len() != vocabulary {
            let expected = format!("at least one token, and {vocabulary} logits");
            let got = format!("{} and {}", self.tokens.len(), self.logits.len());
            return Err(Error::bad("state", expected, got));
        }
        writer.write_states(&self.states, self.tokens.len())?;
        Ok(self.logits.clone())
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let mut all = self.states.clone();
        all.insert(TOKENS.into(), Tensor::new(&[self.tokens.len()], &self.tokens));
        all.insert(LOGITS.into(), Tensor::new(&[self.logits.len()], &self.logits));
        let notes = BTreeMap::from([(NOTE.to_owned(), json(&self.of))]);
        tensor::write_with_notes(path, &all, &notes)
    }

    /// Reads it. Of which model it is [`SavedState::resume`] looks at.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let refuse = |message: String| Error::File { path: path.display().to_string(), message };
        let (mut states, notes) = tensor::read_with_notes(path)?;
        let note = notes.get(NOTE).ok_or_else(|| {
            refuse("expected a state that `--save-state` wrote, got another file".into())
        })?;
        let of: Identity = serde_json::from_str(note)
            .map_err(|error| refuse(format!("metadata '{NOTE}': {error}")))?;
        let mut take = |name: &str, dtype: DType| {
            let tensor = states.remove(name).filter(|tensor| tensor.dtype == dtype);
            let tensor = tensor.ok_or_else(|| refuse(format!("expected '{name}' of {dtype}")))?;
            Ok::<_, Error>(tensor.values())
        };
        let tokens = take(TOKENS, DType::I32)?.into_iter().map(|id| id as i32).collect();
        let logits = take(LOGITS, DType::F64)?;
        Ok(Self { of, tokens, logits, states })
    }
}

fn json(of: &impl Serialize) -> String {
    serde_json::to_string(of).expect("numbers and names are JSON")
}

impl Writer {
    /// The states behind so many tokens, by their names.
    fn read_states(&self, tokens: usize) -> Result<Tensors, Error> {
        if self.tokens_read() != tokens {
            return Err(Error::bad("tokens of the state", self.tokens_read().to_string(), tokens));
        }
        let (step, blocks) = self.states();
        let mut all = Tensors::new();
        for (n, name, slot) in blocks.named(self.model()) {
            let mut state = step.read(slot)?;
            if self.model().mixers.of_block(n) == Mixer::Attention {
                state = cut(&state, self.cache(), tokens);
            }
            all.insert(name, state);
        }
        Ok(all)
    }

    /// The same back; a slot of attention has its own room.
    fn write_states(&mut self, states: &Tensors, tokens: usize) -> Result<(), Error> {
        let cache = self.cache();
        self.check_room_for(tokens)?;
        let named = self.states().1.named(self.model());
        let mut all = Vec::new();
        for (n, name, slot) in named {
            let state = states.get(&name);
            let wrong = |expected: String| Error::Tensor {
                name: name.clone(),
                expected,
                got: state.map_or_else(|| "none".into(), Tensor::describe),
            };
            let is_attention = self.model().mixers.of_block(n) == Mixer::Attention;
            let len = if is_attention { cache.len(tokens) } else { slot.len() };
            let state = state.filter(|state| state.len() == len);
            let state = state.ok_or_else(|| wrong(format!("{len} elements")))?;
            let state = if is_attention { pad(state, cache, tokens) } else { state.clone() };
            all.push((slot, state));
        }
        self.put_states(&all, tokens)
    }
}

/// A cache of attention, of one sequence: \[heads, room, columns\].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache {
    pub(crate) heads: usize,
    pub(crate) room: usize,
    pub(crate) columns: usize,
}

impl Cache {
    /// Elements of so many tokens.
    fn len(self, tokens: usize) -> usize {
        self.heads * tokens * self.columns
    }
}

/// The first tokens of each head.
fn cut(all: &Tensor, Cache { heads, room, columns }: Cache, tokens: usize) -> Tensor {
    let size = columns * all.dtype.size();
    let heads_of = all.bytes.chunks(room * size);
    let bytes = heads_of.flat_map(|head| &head[..tokens * size]).copied().collect();
    Tensor { dtype: all.dtype, shape: vec![heads, tokens, columns], bytes }
}

/// The same tokens in a whole cache, zeros behind them.
fn pad(first: &Tensor, Cache { heads, room, columns }: Cache, tokens: usize) -> Tensor {
    let size = columns * first.dtype.size();
    let mut bytes = vec![0; heads * room * size];
    for (to, from) in bytes.chunks_mut(room * size).zip(first.bytes.chunks(tokens * size)) {
        to[..from.len()].copy_from_slice(from);
    }
    Tensor { dtype: first.dtype, shape: vec![heads, room, columns], bytes }
}

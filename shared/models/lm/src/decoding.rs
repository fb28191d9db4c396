//! A model behind what it has read: its states, and the plan of the tokens that come.

use lab_device::{DType, Device};
use lab_harness::plan::{Plan, Slot};
use lab_harness::{Binding, Error, Tensor};
use lab_layers::{Memory, State, Tape};
use lab_operations::RecurrentCell;

use crate::store::Store;
use crate::{Mixer, Model, Types};

pub(crate) const TOKENS: &str = "tokens";
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

/// The type of a state of this name.
pub(crate) fn dtype_of_state(mixer: Mixer, name: &str, types: Types) -> DType {
    match mixer {
        Mixer::Vlstm if name == "c" => types.states(),
        Mixer::Vlstm => DType::F32,
        Mixer::Slstm => RecurrentCell::Slstm.dtype_of_state(name, types.run()),
        Mixer::Attention | Mixer::Lstm => types.run(),
    }
}

/// What the blocks remember.
pub(crate) struct Blocks {
    pub(crate) states: Vec<State>,
    /// Of attention, i32 \[B\]: the tokens that each sequence has read, with the one that comes.
    pub(crate) lengths: Slot,
}

impl Blocks {
    /// Of so many sequences; attention has room for so many tokens in each.
    pub(crate) fn add(
        plan: &mut Plan,
        model: &Model,
        types: Types,
        [batch, room]: [usize; 2],
    ) -> Self {
        let Model { heads, keys, values, .. } = *model;
        let sizes = [heads * keys * values, heads * keys, heads];
        let lengths = plan.state_of_zeros(LENGTHS, DType::I32, &[batch]);
        let of_block = |n: usize| {
            let mixer = model.mixers.of_block(n);
            let sizes = match mixer {
                Mixer::Vlstm => [sizes[0], sizes[1], sizes[2], 0],
                // Other mixers have room for anything.
                Mixer::Attention => [model.key_heads() * room * values; 4],
                Mixer::Lstm | Mixer::Slstm => [heads * values; 4],
            };
            // Those that a mixer has, and behind them what attention reads its length from.
            let mut slots = [lengths; 4];
            for (slot, (name, len)) in slots.iter_mut().zip(names_of_state(mixer).iter().zip(sizes))
            {
                let dtype = dtype_of_state(mixer, name, types);
                *slot = plan.state_of_zeros(&format!("state.{n}.{name}"), dtype, &[batch * len]);
            }
            State { slots }
        };
        Self { states: (0..model.blocks).map(of_block).collect(), lengths }
    }

    /// Of one sequence: it has read nothing.
    pub(crate) fn forget(
        &self,
        model: &Model,
        types: Types,
        step: &mut Binding,
    ) -> Result<(), Error> {
        let Model { heads, keys, values, mixers, .. } = *model;
        let of = |len: usize, value: f32| Tensor::new(&[len], &vec![value; len]);
        let memory = heads * keys * values;
        let first = [
            Tensor::rounded(types.states(), &[memory], &vec![0.0; memory]),
            of(heads * keys, 0.0),
            of(heads, f32::NEG_INFINITY),
        ];
        let zeros = of(heads * values, 0.0);
        // h is of the run's type; of the LSTM c as well.
        let h = Tensor::rounded(types.run(), &zeros.shape, &zeros.values());
        for (n, state) in self.states.iter().enumerate() {
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

    /// The same of memory that is zero, of any number of sequences.
    pub(crate) fn begin(
        &self,
        model: &Model,
        batch: usize,
        step: &mut Binding,
    ) -> Result<(), Error> {
        let len = batch * model.heads;
        let none = Tensor::new(&[len], &vec![f32::NEG_INFINITY; len]);
        for (n, state) in self.states.iter().enumerate() {
            if model.mixers.of_block(n) == Mixer::Vlstm {
                step.write(state.slots[2], &none)?;
            }
        }
        Ok(())
    }

    /// States that a step would read become zero, of any number of sequences. With m = −∞ the vLSTM reads nothing of C and n.
    pub(crate) fn clear(
        &self,
        model: &Model,
        types: Types,
        step: &mut Binding,
    ) -> Result<(), Error> {
        for (n, name, slot) in self.named(model) {
            let mixer = model.mixers.of_block(n);
            if [Mixer::Lstm, Mixer::Slstm].contains(&mixer) {
                let own = name.rsplit('.').next().unwrap_or(&name);
                let dtype = dtype_of_state(mixer, own, types);
                let zeros = Tensor::rounded(dtype, &[slot.len()], &vec![0.0; slot.len()]);
                step.write(slot, &zeros)?;
            }
        }
        Ok(())
    }

    /// The slots of all states, in the order of their names.
    pub(crate) fn slots(&self, model: &Model) -> Vec<Slot> {
        let of_block = |(n, state): (usize, &State)| {
            let own = names_of_state(model.mixers.of_block(n)).len();
            state.slots.into_iter().take(own)
        };
        self.states.iter().enumerate().flat_map(of_block).collect()
    }

    /// The block, the name and the slot of each state.
    pub(crate) fn named(&self, model: &Model) -> Vec<(usize, String, Slot)> {
        let of_block = |(n, state): (usize, &State)| {
            let names = names_of_state(model.mixers.of_block(n)).iter().zip(state.slots);
            names.map(move |(name, slot)| (n, format!("state.{n}.{name}"), slot))
        };
        self.states.iter().enumerate().flat_map(of_block).collect()
    }

    /// The names of all slots.
    pub(crate) fn names(model: &Model) -> Vec<String> {
        Self::names_of_states(model).into_iter().chain([LENGTHS.to_owned()]).collect()
    }

    /// The same without how long sequences are.
    pub(crate) fn names_of_states(model: &Model) -> Vec<String> {
        let of_block = |n: usize| {
            let own = names_of_state(model.mixers.of_block(n));
            own.iter().map(move |name| format!("state.{n}.{name}"))
        };
        (0..model.blocks).flat_map(of_block).collect()
    }
}

/// Tokens, and what the plan computes of them.
pub(crate) struct Planned {
    pub(crate) plan: Plan,
    /// i32 \[B, S\].
    pub(crate) tokens: Slot,
    /// Before the cap, \[B S, V or more\].
    pub(crate) logits: Slot,
    pub(crate) blocks: Blocks,
}

/// Of how many sequences, how many tokens of each at once, and how many attention has room for. Kernels are chosen as for `choices`
/// sequences, where that is said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) batch: usize,
    pub(crate) positions: usize,
    pub(crate) room: usize,
    pub(crate) choices: Option<usize>,
}

/// Tokens of one sequence, and the plan that reads them behind its states.
pub(crate) struct Behind {
    pub(crate) plan: Plan,
    /// i32 \[S\].
    pub(crate) tokens: Slot,
    pub(crate) blocks: Blocks,
}

/// So many tokens of one sequence behind its states, which become those behind the last of them. Nobody asks for logits.
///
/// # Errors
/// A mixer keeps all positions, as attention does; sizes that no kernel takes.
pub(crate) fn planned_behind(
    device: &Device,
    model: &Model,
    store: &Store,
    types: Types,
    positions: usize,
) -> Result<Behind, Error> {
    let mut plan = Plan::new(device);
    let tokens = plan.state_of_zeros(TOKENS, DType::I32, &[positions]);
    let dtype = types.run();
    let (weights, int8) = store.add(&mut plan, dtype);
    let blocks = Blocks::add(&mut plan, model, types, [1, 0]);
    let mut tape = Tape::new(&mut plan, dtype, store.unquantized(), weights, None).with_int8(int8);
    model.forward(&mut tape, tokens, [1, positions], |n| Memory::Carry(blocks.states[n]))?;
    Ok(Behind { plan, tokens, blocks })
}

/// The logits behind tokens: behind one of each sequence, whose states it updates; or behind the last of several of one sequence, which leave their states.
pub(crate) fn planned(
    device: &Device,
    model: &Model,
    store: &Store,
    types: Types,
    Extent { batch, positions, room, choices }: Extent,
) -> Result<Planned, Error> {
    let mut plan = Plan::new(device);
    let tokens = plan.state_of_zeros(TOKENS, DType::I32, &[batch * positions]);
    let dtype = types.run();
    let (weights, int8) = store.add(&mut plan, dtype);
    let blocks = Blocks::add(&mut plan, model, types, [batch, room]);
    let mut tape = Tape::new(&mut plan, dtype, store.unquantized(), weights, None).with_int8(int8);
    if let Some(rows) = choices {
        tape = tape.with_choices_for(rows);
    }
    let memory = |n: usize| match positions {
        1 => Memory::Step(blocks.states[n]),
        _ => Memory::Leave(blocks.states[n]),
    };
    let y = model.forward(&mut tape, tokens, [batch, positions], memory)?;
    // A prompt's other positions have logits that nobody reads: of a large vocabulary they would be gigabytes.
    let last = if positions > 1 {
        tape.make_ready(y)?;
        y.part(y.len() - model.width, model.width)
    } else {
        y
    };
    let logits = model.logits(&mut tape, last)?;
    plan.keep(logits);
    Ok(Planned { plan, tokens, logits, blocks })
}

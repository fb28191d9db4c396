//! States that a training step hands to the next: each row of its windows is a stream.

use lab_device::DType;
use lab_harness::plan::{Plan, Slot};
use lab_harness::{Binding, Error, Tensor, Tensors, arguments};
use lab_layers::Memory;

use crate::decoding::{Blocks, dtype_of_state};
use crate::kernels;
use crate::{Config, Mixer, Model};

/// Of each part of a step, what its blocks remember; nothing where states are not carried.
#[derive(Default)]
pub(crate) struct Streams {
    parts: Vec<Blocks>,
    /// Of each state its name, and its slot in each part.
    named: Vec<(String, Vec<Slot>)>,
}

impl Streams {
    /// Adds the states, and what makes them none before the first step of an epoch.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn add(
        plan: &mut Plan,
        model: &Model,
        config: &Config,
        counts: Slot,
    ) -> Result<Self, Error> {
        let mut all = Self::default();
        if !config.carry_state {
            return Ok(all);
        }
        for part in 0..config.accumulate {
            let blocks = plan.within(&format!("streams.{part}"), |plan| {
                let blocks = Blocks::add(plan, model, config.dtype.into(), [config.batch, 0]);
                blocks
                    .named(model)
                    .into_iter()
                    .try_for_each(|(n, name, state)| {
                        add_begin(
                            plan,
                            model.mixers.of_block(n),
                            &name,
                            (config.dtype, state),
                            counts,
                        )
                    })
                    .map(|()| blocks)
            })?;
            for (at, (_, name, slot)) in blocks.named(model).into_iter().enumerate() {
                if part == 0 {
                    all.named.push((name, Vec::new()));
                }
                all.named[at].1.push(slot);
            }
            all.parts.push(blocks);
        }
        Ok(all)
    }

    /// What a block of a part begins with.
    pub(crate) fn memory(&self, part: usize, block: usize) -> Memory {
        self.parts.get(part).map_or(Memory::Fresh, |of| Memory::Carry(of.states[block]))
    }

    /// All of them, of the rows of all parts one behind the other.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn read(&self, step: &Binding) -> Result<Tensors, Error> {
        let read = |(name, slots): &(String, Vec<Slot>)| {
            let mut all: Option<Tensor> = None;
            for slot in slots {
                let part = step.read(*slot)?;
                match &mut all {
                    None => all = Some(part),
                    Some(all) => all.bytes.extend(part.bytes),
                }
            }
            let mut all = all.expect("a part at least");
            all.shape = vec![all.bytes.len() / all.dtype.size()];
            Ok((name.clone(), all))
        };
        self.named.iter().map(read).collect()
    }

    /// The same back.
    ///
    /// # Errors
    /// One is missing, or of another size; the device's.
    pub(crate) fn write(&self, step: &mut Binding, states: &Tensors) -> Result<(), Error> {
        for (name, slots) in &self.named {
            let wanted: usize = slots.iter().map(|slot| slot.len()).sum();
            let state = states.get(name).filter(|state| state.len() == wanted);
            let state = state.ok_or_else(|| Error::Tensor {
                name: name.clone(),
                expected: format!("{wanted} elements"),
                got: states.get(name).map_or_else(|| "none".into(), Tensor::describe),
            })?;
            let (dtype, mut rest) = (state.dtype, state.bytes.as_slice());
            for slot in slots {
                let (own, after) = rest.split_at(slot.len() * dtype.size());
                rest = after;
                let part = Tensor { dtype, shape: vec![slot.len()], bytes: own.to_vec() };
                step.write(*slot, &part)?;
            }
        }
        Ok(())
    }
}

/// Before the first step of an epoch nothing was read: zeros, and of the vLSTM's m −∞.
fn add_begin(
    plan: &mut Plan,
    mixer: Mixer,
    name: &str,
    (dtype, state): (DType, Slot),
    counts: Slot,
) -> Result<(), Error> {
    let own = name.rsplit('.').next().unwrap_or(name);
    let dtype = dtype_of_state(mixer, own, dtype.into());
    let value = if mixer == Mixer::Vlstm && own == "m" { f32::NEG_INFINITY } else { 0.0 };
    let begin =
        plan.device().kernel(&kernels::BATCH, &format!("begin_streams<{}>", dtype.cpp()))?;
    let launch = begin.grid_over(state.len())?;
    plan.launch(&begin, launch, arguments![counts, state, elements: state.len(), value])
}

//! All parameters in one buffer.

use lab_harness::plan::Slot;
use lab_layers::{Init, Parameter, Parameters};

use super::Model;

/// Where each parameter of a model is.
pub(crate) fn arena_of(model: &Model) -> Parameters {
    let own = model.parameters().into_iter();
    // Training draws the first values itself.
    Parameters::new(own.map(|p| Parameter::new(p.name, &p.shape, Init::Constant(0.0))).collect())
}

/// A parameter's part of the buffer.
pub(crate) fn part_of(arena: &Parameters, flat: Slot, name: &str) -> Slot {
    arena.part(flat, name).expect("a parameter of the model")
}

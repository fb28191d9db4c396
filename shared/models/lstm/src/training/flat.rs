//! All parameters in one buffer.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Tensor, Tensors};
use lab_reference::lstm::Parameter;

use super::Model;

/// Elements to whose multiples parameters begin, so that wide loads are aligned. What is between them is
/// zero.
const ALIGNED: usize = 32;

/// Where each parameter is.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    places: Vec<(Parameter, usize)>,
    pub(crate) len: usize,
}

impl Layout {
    pub(crate) fn of(model: &Model) -> Self {
        let mut len = 0;
        let place = |parameter: Parameter| {
            let start = len;
            len += parameter.shape.iter().product::<usize>().next_multiple_of(ALIGNED);
            (parameter, start)
        };
        let places = model.parameters().into_iter().map(place).collect();
        Self { places, len }
    }

    /// A parameter's part of the buffer.
    pub(crate) fn part(&self, flat: Slot, name: &str) -> Slot {
        let found = self.places.iter().find(|(p, _)| p.name == name);
        let (parameter, start) = found.expect("a parameter's name");
        flat.part(*start, parameter.shape.iter().product())
    }

    /// All of them, rounded to `dtype`, as the buffer holds them.
    pub(crate) fn pack(&self, dtype: DType, all: &Tensors) -> Tensor {
        let mut flat = vec![0.0; self.len];
        for (parameter, start) in &self.places {
            let values = all[&parameter.name].values();
            flat[*start..][..values.len()].copy_from_slice(&values);
        }
        Tensor::rounded(dtype, &[self.len], &flat)
    }

    /// Each by its name.
    pub(crate) fn unpack(&self, flat: &Tensor) -> Tensors {
        let values = flat.values();
        let own = |(parameter, start): &(Parameter, usize)| {
            let len = parameter.shape.iter().product();
            let own = Tensor::rounded(flat.dtype, &parameter.shape, &values[*start..][..len]);
            (parameter.name.clone(), own)
        };
        self.places.iter().map(own).collect()
    }
}

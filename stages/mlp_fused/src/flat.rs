//! All parameters in one buffer.

use lab_device::DType;
use lab_harness::program::Slot;
use lab_harness::{Tensor, Tensors};
use lab_reference::mlp::{Parameters, Sizes};

/// Elements to whose multiples parameters begin, so that wide loads are aligned. What is between them
/// is zero.
const ALIGNED: usize = 32;

/// Where each parameter is.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Name, shape, first element.
    places: [(&'static str, Vec<usize>, usize); 5],
    pub(crate) len: usize,
}

impl Layout {
    pub(crate) fn of(sizes: &Sizes) -> Self {
        let (mut len, mut names) = (0, Parameters::NAMES.into_iter());
        let places = sizes.shapes().map(|shape| {
            let start = len;
            len += shape.iter().product::<usize>().next_multiple_of(ALIGNED);
            (names.next().expect("a name of each"), shape, start)
        });
        Self { places, len }
    }

    /// emb, w1, b1, w2 and b2 as parts of the buffer.
    pub(crate) fn parts(&self, flat: Slot) -> [Slot; 5] {
        self.places.each_ref().map(|(_, shape, start)| flat.part(*start, shape.iter().product()))
    }

    /// All of them, rounded to `dtype`, as the buffer holds them.
    pub(crate) fn pack(&self, dtype: DType, all: &Tensors) -> Tensor {
        let mut flat = vec![0.0; self.len];
        for (name, _, start) in &self.places {
            let values = all[*name].values();
            flat[*start..][..values.len()].copy_from_slice(&values);
        }
        Tensor::rounded(dtype, &[self.len], &flat)
    }

    /// Each by its name.
    pub(crate) fn unpack(&self, flat: &Tensor) -> Tensors {
        let size = flat.dtype.size();
        let own = |(name, shape, start): &(&str, Vec<usize>, usize)| {
            let len: usize = shape.iter().product();
            let bytes = flat.bytes[start * size..][..len * size].to_vec();
            ((*name).to_owned(), Tensor { dtype: flat.dtype, shape: shape.clone(), bytes })
        };
        self.places.iter().map(own).collect()
    }
}

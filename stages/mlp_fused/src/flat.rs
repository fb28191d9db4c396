//! All parameters in one buffer.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Tensor, Tensors};
use lab_reference::mlp::{Parameters, Sizes};

/// Elements to whose multiples parameters begin, so that wide loads are aligned. What is between them
/// is zero.
const ALIGNED: usize = 32;

/// A parameter in the buffer.
#[derive(Clone, Debug)]
struct Place {
    name: &'static str,
    shape: Vec<usize>,
    /// As it lies there, each size as large or larger.
    room: Vec<usize>,
    /// First element.
    start: usize,
}

impl Place {
    fn len(&self) -> usize {
        self.room.iter().product()
    }

    /// Where each row is, its first element in the buffer, and how many elements it has.
    fn rows(&self) -> (impl Iterator<Item = usize> + use<>, usize) {
        let [columns, apart] = [&self.shape, &self.room].map(|shape| *shape.last().unwrap_or(&1));
        let (start, rows) = (self.start, self.shape.iter().product::<usize>() / columns);
        ((0..rows).map(move |row| start + row * apart), columns)
    }
}

/// Where each parameter is.
#[derive(Clone, Debug)]
pub struct Layout {
    places: [Place; 5],
    /// Elements of the buffer.
    pub len: usize,
}

impl Layout {
    /// Of parameters of `sizes`, with room for those of `rooms`, as large or larger.
    pub fn new(sizes: &Sizes, rooms: &Sizes) -> Self {
        let (mut len, mut names) = (0, Parameters::NAMES.into_iter());
        let mut rooms = rooms.shapes().into_iter();
        let places = sizes.shapes().map(|shape| {
            let name = names.next().expect("a name of each");
            let place =
                Place { name, shape, room: rooms.next().expect("a room of each"), start: len };
            len += place.len().next_multiple_of(ALIGNED);
            place
        });
        Self { places, len }
    }

    /// emb, w1, b1, w2 and b2 as parts of the buffer, with all their room.
    pub fn parts(&self, flat: Slot) -> [Slot; 5] {
        self.places.each_ref().map(|place| flat.part(place.start, place.len()))
    }

    /// All of them, rounded to `dtype`, as the buffer holds them.
    pub fn pack(&self, dtype: DType, all: &Tensors) -> Tensor {
        let mut flat = vec![0.0; self.len];
        for place in &self.places {
            let (rows, columns) = place.rows();
            for (row, at) in all[place.name].values().chunks(columns).zip(rows) {
                flat[at..][..columns].copy_from_slice(row);
            }
        }
        Tensor::rounded(dtype, &[self.len], &flat)
    }

    /// Each by its name.
    pub fn unpack(&self, flat: &Tensor) -> Tensors {
        let size = flat.dtype.size();
        let tensor = |place: &Place| {
            let (rows, columns) = place.rows();
            let row = |at: usize| &flat.bytes[at * size..][..columns * size];
            let bytes = rows.flat_map(row).copied().collect();
            (place.name.to_owned(), Tensor { dtype: flat.dtype, shape: place.shape.clone(), bytes })
        };
        self.places.iter().map(tensor).collect()
    }
}

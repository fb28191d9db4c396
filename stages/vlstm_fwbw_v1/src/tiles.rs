//! The tiles of the three kernels, for each class of heads. The build script reads this file too.

/// Columns of the threads of a block: `TJ` in `lab/products.cuh`.
const COLUMNS: usize = 16;

/// What can be chosen of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Rows that a block owns.
    pub own: usize,
    /// Rows of a tile that comes past it.
    pub past: usize,
    /// Rows that its threads lie in.
    pub rows: usize,
    /// Blocks of a multiprocessor that registers must suffice for.
    pub blocks: usize,
}

impl Tiles {
    /// In the order of the template's parameters.
    pub const fn new([own, past, rows, blocks]: [usize; 4]) -> Self {
        Self { own, past, rows, blocks }
    }

    /// Threads of a block.
    pub const fn threads(self) -> usize {
        self.rows * COLUMNS
    }

    /// Bytes of dynamic shared memory, with `dh` columns: the rows that a block owns, two tiles of
    /// those that come past it, and the weights between them, with the padding of each row.
    pub const fn shared(self, dh: usize) -> usize {
        let padding = if self.past.is_multiple_of(32) { 16 } else { 0 };
        let weights = self.own * (self.past + padding);
        size_of::<f32>() * ((self.own + 2 * self.past) * (dh + 4) + weights)
    }
}

/// The kernels, as a class lists their tiles.
pub const KERNELS: [&str; 3] = ["vlstm_forward", "vlstm_backward_q", "vlstm_backward_kv"];
/// Owns tiles of Q.
pub const FORWARD: usize = 0;
/// Owns tiles of Q.
pub const BACKWARD_Q: usize = 1;
/// Owns tiles of K and V.
pub const BACKWARD_KV: usize = 2;

/// A class of heads: those with at most so many columns.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Columns.
    pub dh: usize,
    /// The tiles of each kernel.
    pub tiles: [Tiles; 3],
}

impl Class {
    /// The name of a kernel with these tiles for elements of the C++ type `t`.
    pub fn instantiation(&self, kernel: usize, t: &str) -> String {
        let Tiles { own, past, rows, blocks } = self.tiles[kernel];
        format!("{}<{t}, {own}, {past}, {}, {rows}, {blocks}>", KERNELS[kernel], self.dh)
    }
}

/// As measured on an H200.
pub const CLASSES: [Class; 3] = [
    Class { dh: 64, tiles: [Tiles::new([64, 64, 8, 3]); 3] },
    Class { dh: 128, tiles: [Tiles::new([64, 32, 8, 2]); 3] },
    Class { dh: 256, tiles: [Tiles::new([32, 16, 8, 2]); 3] },
];

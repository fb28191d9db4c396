//! The tiles of the three kernels, for each class of heads. The build script reads this file too.

/// What can be chosen of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiles {
    /// Rows that a block owns.
    pub(crate) own: usize,
    /// Rows of a tile that comes past it.
    pub(crate) past: usize,
    /// Columns of a piece of the first that comes past; of the second it has as many elements.
    pub(crate) piece: usize,
    /// Rows that its threads lie in.
    pub(crate) rows: usize,
    /// Columns that they lie in, 8 or 16.
    pub(crate) columns: usize,
    /// Blocks of a multiprocessor that registers must suffice for.
    pub(crate) blocks: usize,
}

impl Tiles {
    /// In the order of the template's parameters.
    pub(crate) const fn new([own, past, piece, rows, columns, blocks]: [usize; 6]) -> Self {
        Self { own, past, piece, rows, columns, blocks }
    }

    /// Threads of a block.
    pub(crate) const fn threads(self) -> usize {
        self.rows * self.columns
    }

    /// Bytes of dynamic shared memory, with `dh` columns: the rows that a block owns, the weights
    /// between them and those that come past, and two pieces of these; with the padding of each row.
    /// `Passing` in `lab/ahead.cuh` says it too, and does not compile where it is too much.
    pub(crate) const fn shared(self, dh: usize) -> usize {
        let x = self.past * (self.piece + 4);
        let z = self.past * self.piece / dh * (dh + 4);
        let place = if x > z { x } else { z };
        let padding = match self.past % 32 {
            0 => self.columns,
            _ => (self.past + self.columns) % 32,
        };
        size_of::<f32>() * (self.own * (dh + 4 + self.past + padding) + 2 * place)
    }
}

/// The kernels, as a class lists their tiles.
pub(crate) const KERNELS: [&str; 3] = ["vlstm_forward", "vlstm_backward_q", "vlstm_backward_kv"];
/// Owns tiles of Q.
pub(crate) const FORWARD: usize = 0;
/// Owns tiles of Q.
pub(crate) const BACKWARD_Q: usize = 1;
/// Owns tiles of K and V.
pub(crate) const BACKWARD_KV: usize = 2;

/// A class of heads: those with at most so many columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    /// Columns.
    pub(crate) dh: usize,
    /// The tiles of each kernel.
    pub(crate) tiles: [Tiles; 3],
}

impl Class {
    /// The name of a kernel with these tiles for elements of the C++ type `t`.
    pub(crate) fn instantiation(&self, kernel: usize, t: &str) -> String {
        let Tiles { own, past, piece, rows, columns, blocks } = self.tiles[kernel];
        let (name, dh) = (KERNELS[kernel], self.dh);
        format!("{name}<{t}, {own}, {past}, {dh}, {piece}, {rows}, {columns}, {blocks}>")
    }
}

/// As measured on an H200.
pub(crate) const CLASSES: [Class; 3] = [
    Class { dh: 64, tiles: [Tiles::new([64, 64, 64, 8, 16, 3]); 3] },
    Class { dh: 128, tiles: [Tiles::new([64, 64, 64, 8, 16, 2]); 3] },
    Class { dh: 256, tiles: [Tiles::new([32, 64, 64, 8, 16, 2]); 3] },
];

/// Larger tiles, built for their test: more rows owned than come past at a time, and fewer.
pub(crate) const OTHERS: [Class; 2] = [
    Class { dh: 64, tiles: [Tiles::new([128, 64, 32, 16, 8, 2]); 3] },
    Class { dh: 64, tiles: [Tiles::new([64, 128, 32, 8, 16, 2]); 3] },
];

//! Tiles of the family: which kernel has room for a head's columns, and the grid of its blocks.

use lab_device::{DType, Instance, KernelSource};

use crate::qkv;
use lab_harness::{Dims, Error};

/// The most columns of a head that the kernels with tiles of whole rows have room for.
pub const MOST_COLUMNS: usize = 256;

/// The instantiation of a kernel for elements of a type and heads of so many columns: the first of
/// the table with room, DH columns, for both. Its template calls the type `T`.
///
/// # Panics
/// There is none: the sizes have not been checked.
pub fn instance_for(
    source: &'static KernelSource,
    kernel: &str,
    dtype: DType,
    dims: &Dims,
) -> Instance {
    let [.., dhqk, dhhv] = qkv::sizes_of(dims);
    let mut of_type = source.instances(kernel).filter(|i| i.has("T", dtype.cpp()));
    let fits = of_type.find(|i| dhqk.max(dhhv) <= i.size("DH"));
    fits.expect("DHQK and DHHV of a checked problem")
}

/// As many blocks as there are of `what`, where a grid can have them.
///
/// # Errors
/// They are too many.
pub fn one_a_block(what: &str, blocks: usize) -> Result<u32, Error> {
    i32::try_from(blocks)
        .map(|blocks| blocks as u32)
        .map_err(|_| Error::bad(what, format!("at most {}, one a block", i32::MAX), blocks))
}

/// Problems of every kind for kernels with tiles of whole rows: one of each class of tiles, ragged ones, heads of unlike widths,
/// several tiles.
pub fn test_shapes() -> Vec<Dims> {
    [
        [1, 1, 1, 16, 16],
        // One tile of each class.
        [1, 1, 64, 64, 64],
        [1, 1, 64, 128, 128],
        [1, 1, 32, 256, 256],
        // Ragged: the last tile ends within.
        [1, 1, 2, 16, 48],
        [1, 1, 65, 48, 16],
        [1, 1, 63, 112, 80],
        [1, 1, 33, 240, 144],
        // Heads, narrow and wide, of unlike widths.
        [2, 3, 40, 64, 64],
        [3, 1, 5, 16, 64],
        [1, 2, 70, 64, 16],
        [2, 2, 9, 16, 208],
        // Several tiles.
        [1, 2, 200, 64, 64],
        [1, 1, 130, 128, 80],
        [1, 1, 100, 32, 256],
        [1, 1, 384, 16, 16],
    ]
    .map(qkv::sizes)
    .to_vec()
}

/// A grid with a block for each tile of so many positions of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Tiles of a head.
    pub tiles: usize,
    /// Blocks of all heads.
    pub blocks: u32,
}

impl Grid {
    /// Of tiles of `rows` positions.
    ///
    /// # Errors
    /// They are more blocks than a grid can have.
    pub fn of(dims: &Dims, rows: usize) -> Result<Self, Error> {
        let [b, nh, s, ..] = qkv::sizes_of(dims);
        let tiles = s.div_ceil(rows);
        let blocks = one_a_block(&format!("B NH ceil(S / {rows})"), b * nh * tiles)?;
        Ok(Self { tiles, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qkv::sizes;

    #[test]
    fn a_grid_has_a_block_for_each_tile_or_says_that_they_are_too_many() {
        let of = |b, s| Grid::of(&sizes([b, 1000, s, 16, 16]), 64);
        assert_eq!(of(3, 65).unwrap(), Grid { tiles: 2, blocks: 6000 });
        let most = 64 * (i32::MAX as usize / 1000);
        assert_eq!(of(1, most).unwrap().blocks, 2_147_483_000);
        let error = of(1, most + 1).unwrap_err().to_string();
        let said = "B NH ceil(S / 64): expected at most 2147483647, one a block, got 2147484000";
        assert_eq!(error, said);
    }
}

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
        let all = b * nh * tiles;
        let blocks = i32::try_from(all).map_err(|_| {
            let what = format!("B NH ceil(S / {rows})");
            Error::bad(what, format!("at most {}, one a block", i32::MAX), all)
        })?;
        Ok(Self { tiles, blocks: blocks as u32 })
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

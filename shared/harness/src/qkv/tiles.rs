//! Tiles of the family: how many rows and columns a block has of them, and the grid of such blocks.

use crate::{Dims, Error, qkv};

/// The tiles of a class of heads: those with at most so many columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Rows of Q, and of K and V.
    pub rows: usize,
    /// Columns.
    pub dh: usize,
}

/// As large as 99 KB of shared memory allow. Build scripts list the same.
pub const CLASSES: [Class; 3] =
    [Class { rows: 64, dh: 64 }, Class { rows: 64, dh: 128 }, Class { rows: 32, dh: 256 }];

/// Bytes of shared memory that a block can have on an RTX 4060.
const MOST_SHARED: usize = 99 * 1024;

impl Class {
    /// The smallest of [`CLASSES`] that has room for both.
    ///
    /// # Panics
    /// There is none: the sizes have not been checked.
    pub fn of(dhqk: usize, dhhv: usize) -> Self {
        let fits = CLASSES.into_iter().find(|c| dhqk.max(dhhv) <= c.dh);
        fits.expect("DHQK and DHHV of a checked problem")
    }

    /// Bytes of two tiles and of the scores between them, with the padding of each row as in
    /// `lab/products.cuh`, and of `more` floats for each row.
    ///
    /// # Panics
    /// A block cannot have as many on an RTX 4060. A launch asks for them, and nothing else says
    /// that they fit there.
    pub const fn shared(self, more: usize) -> usize {
        let Self { rows, dh } = self;
        let bytes = size_of::<f32>() * rows * (2 * (dh + 4) + (rows + 16) + more);
        assert!(bytes <= MOST_SHARED, "an RTX 4060 has 99 KB of shared memory for a block");
        bytes
    }
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
        let [b, nh, s, ..] = qkv::of(dims);
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
    fn the_smallest_class_has_room_for_both() {
        for (dhqk, dhhv, dh) in [(1, 64, 64), (64, 65, 128), (128, 1, 128), (3, 129, 256)] {
            assert_eq!(Class::of(dhqk, dhhv).dh, dh);
        }
    }

    #[test]
    fn every_class_fits_an_rtx_4060() {
        // As `lab/products.cuh` has it: rows of 68 floats, and 64 rows of 80 scores.
        assert_eq!(CLASSES[0].shared(0), 4 * (2 * 64 * 68 + 64 * 80));
        assert!(CLASSES.map(|c| c.shared(5)).into_iter().all(|bytes| bytes <= MOST_SHARED));
    }

    #[test]
    #[should_panic(expected = "an RTX 4060 has 99 KB")]
    fn tiles_that_do_not_fit_an_rtx_4060_are_refused() {
        Class { rows: 64, dh: 256 }.shared(0);
    }

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

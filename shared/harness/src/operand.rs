//! How the kernels of `shared/cuda/lab/product.cuh` load and store matrices by TMA.

use lab_device::{DType, Swizzle, TensorMap};

use crate::Error;

/// A matrix in device memory, \[rows, columns\], as an operand or a result of a product by `wgmma`.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    dtype: DType,
    rows: usize,
    columns: usize,
    row: usize,
    several: Option<usize>,
    matrix: Option<usize>,
}

impl Operand {
    /// Bytes of a row of a box, and of its swizzle.
    const SPAN: usize = 128;

    /// Rows of a box of results, those of a warpgroup.
    const STORED_ROWS: usize = 64;

    /// Without gaps between rows.
    pub fn new(dtype: DType, [rows, columns]: [usize; 2]) -> Self {
        Self { dtype, rows, columns, row: columns, several: None, matrix: None }
    }

    /// With rows that begin so many elements apart.
    pub fn rows_apart(self, elements: usize) -> Self {
        Self { row: elements, ..self }
    }

    /// So many matrices, one behind the other; their boxes have a third coordinate, which of them.
    pub fn several(self, matrices: usize) -> Self {
        Self { several: Some(matrices), ..self }
    }

    /// With matrices that begin so many elements apart, where one does not follow behind the other.
    pub fn matrices_apart(self, elements: usize) -> Self {
        Self { matrix: Some(elements), ..self }
    }

    /// As it is loaded, in boxes of `high` rows: all rows or columns of a tile of an operand that lies along k, the tile's
    /// depth of one that lies across.
    ///
    /// # Errors
    /// As those of [`TensorMap::strides`].
    pub fn loaded(self, high: usize) -> Result<TensorMap, Error> {
        let span = Self::SPAN / self.dtype.size();
        let row = self.row * self.dtype.size();
        let map = match self.several {
            None => TensorMap::new(self.dtype, &[self.columns, self.rows], &[span, high])?
                .strides(&[row])?,
            Some(several) => {
                let sizes = [self.columns, self.rows, several];
                let map = TensorMap::new(self.dtype, &sizes, &[span, high, 1])?;
                map.strides(&[row, self.matrix.map_or(self.rows * row, |m| m * self.dtype.size())])?
            }
        };
        Ok(map.swizzle(Swizzle::Bytes128))
    }

    /// As it is stored, in boxes of a warpgroup's rows and a third coordinate: `lab/staged_store.cuh`.
    ///
    /// # Errors
    /// As those of [`TensorMap::strides`].
    pub fn stored(self) -> Result<TensorMap, Error> {
        self.several(self.several.unwrap_or(1)).loaded(Self::STORED_ROWS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As one would make the maps by hand: bytes from row to row, and from matrix to matrix.
    #[test]
    fn maps_have_the_strides_of_their_matrix() {
        let of = |sizes: &[usize], extents: &[usize], strides: &[usize]| {
            let map = TensorMap::new(DType::BF16, sizes, extents).unwrap();
            map.strides(strides).unwrap().swizzle(Swizzle::Bytes128)
        };
        let plain = Operand::new(DType::BF16, [100, 24]);
        assert_eq!(plain.loaded(128).unwrap(), of(&[24, 100], &[64, 128], &[48]));
        assert_eq!(plain.rows_apart(32).loaded(64).unwrap(), of(&[24, 100], &[64, 64], &[64]));
        assert_eq!(plain.stored().unwrap(), of(&[24, 100, 1], &[64, 64, 1], &[48, 4800]));
        let three = plain.several(3).loaded(64).unwrap();
        assert_eq!(three, of(&[24, 100, 3], &[64, 64, 1], &[48, 4800]));
        let beside = plain.rows_apart(48).several(2).matrices_apart(24).loaded(64).unwrap();
        assert_eq!(beside, of(&[24, 100, 2], &[64, 64, 1], &[96, 48]));
    }
}

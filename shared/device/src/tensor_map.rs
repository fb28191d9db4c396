//! Tensor maps: how a tensor in device memory, and the boxes of it that `cp.async.bulk.tensor` copies, lie.
//!
//! A kernel takes one as `const __grid_constant__ TensorMap` (`lab/ptx/tensor_copy.cuh`). Dimensions are
//! named as the instruction does, the innermost first. The rules are those of CUDA's driver
//! (`cuTensorMapEncodeTiled`), held here on both devices, and one more: a box that is larger than shared
//! memory is refused with steps as well.

use crate::{DType, Error};

/// Most dimensions.
const RANK: usize = 5;
/// Bytes of which strides, rows of boxes and addresses are multiples.
const UNIT: u64 = 16;
/// Most bytes of a box: what a block has of shared memory.
const MOST: u64 = 227 * 1024;

/// How the 16-byte chunks of a row are permuted in shared memory: within spans of so many bytes, by the
/// address. wgmma reads tiles that lie so (`lab/ptx/descriptor.cuh`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub enum Swizzle {
    #[default]
    None,
    Bytes32,
    Bytes64,
    Bytes128,
}

impl Swizzle {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::None, Self::Bytes32, Self::Bytes64, Self::Bytes128];

    /// Bytes of a span; 0 for none.
    pub const fn span(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Bytes32 => 32,
            Self::Bytes64 => 64,
            Self::Bytes128 => 128,
        }
    }
}

/// What a tensor copy is told of a tensor, but for where it begins. All lists begin with the innermost
/// dimension; [`TensorMap::check`] says whether a GPU takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// The type of its elements.
    pub dtype: DType,
    rank: usize,
    sizes: [u64; RANK],
    strides: [u64; RANK],
    extents: [u64; RANK],
    steps: [u64; RANK],
    swizzle: Swizzle,
    nan: bool,
    ends_anywhere: bool,
}

impl TensorMap {
    /// How many rows a map has that [ends anywhere](TensorMap::ending_anywhere), counted from an end.
    pub const ROWS: usize = 1 << 30;

    /// A tensor of `sizes` without gaps, in boxes of `extents`. Not swizzled; zero outside.
    ///
    /// # Errors
    /// [`Error::TensorMap`]: other than 1 to 5 dimensions, or other ones in the box.
    pub fn new(dtype: DType, sizes: &[usize], extents: &[usize]) -> Result<Self, Error> {
        let rank = sizes.len();
        if !(1..=RANK).contains(&rank) {
            return Err(refuse("dimensions", "1 to 5", rank));
        }
        let sizes = of(rank, "sizes", sizes)?;
        let mut strides = [0; RANK];
        let mut bytes = dtype.size() as u64;
        for d in 0..rank {
            strides[d] = bytes;
            bytes = bytes.saturating_mul(sizes[d]);
        }
        let extents = of(rank, "extents of the box", extents)?;
        let steps = of(rank, "steps", &[1; RANK][..rank])?;
        let (swizzle, nan, ends_anywhere) = (Swizzle::None, false, false);
        Ok(Self { dtype, rank, sizes, strides, extents, steps, swizzle, nan, ends_anywhere })
    }

    /// A tensor \[heads, rows, columns\], in boxes of so many rows and columns of a head, that ends at any row: what lies
    /// at or behind row `end` is outside. A box from `row` and `column` on has the coordinates
    /// `column, ROWS - (end - row), end, ROWS, head`, the innermost first, where [`ROWS`](TensorMap::ROWS) is 2³⁰: two
    /// dimensions, r < 2³⁰ and e, step through the same rows, and 2³⁰ steps along the next, of 2³⁴ bytes less a row each, are
    /// 2⁶⁴ bytes less 2³⁰ rows: addresses wrap around, and row r + e - 2³⁰ is meant. So does Triton (`ragged_tma.py`). A map
    /// that begins before its memory would do without that dimension; but an H200 looks up where a map begins for a box that
    /// is outside altogether, and faults.
    ///
    /// # Errors
    /// As [`TensorMap::new`].
    pub fn ending_anywhere(
        dtype: DType,
        [columns, rows, heads]: [usize; 3],
        [box_columns, box_rows]: [usize; 2],
    ) -> Result<Self, Error> {
        let row = columns.saturating_mul(dtype.size());
        let back = (1usize << 34).saturating_sub(row);
        let sizes = [columns, Self::ROWS, rows.saturating_add(1), Self::ROWS + 1, heads];
        let map = Self::new(dtype, &sizes, &[box_columns, box_rows, 1, 1, 1])?;
        let map = map.strides(&[row, row, back, row.saturating_mul(rows)])?;
        Ok(Self { ends_anywhere: true, ..map })
    }

    /// Of one that [ends anywhere](TensorMap::ending_anywhere): with so many bytes from a row to the next, and from a head to the
    /// next. So heads lie beside each other in rows, and rows may have other columns.
    ///
    /// # Errors
    /// As [`TensorMap::strides`].
    pub fn rows_apart(self, row: usize, head: usize) -> Result<Self, Error> {
        let back = (1usize << 34).saturating_sub(row);
        self.strides(&[row, row, back, head])
    }

    /// Whether this map and another, which begin at these bytes of one memory, have other columns of the same rows.
    pub fn lies_beside(&self, at: u64, other: &Self, other_at: u64) -> bool {
        match (self.columns(), other.columns()) {
            (Some(own), Some(others)) => own.lie_beside(at, others, other_at),
            _ => false,
        }
    }

    /// What it has of each row, if all that is no row lies in one: of a map that ends anywhere its heads, of any other map each
    /// dimension whose steps are shorter than a row, where all others are whole rows.
    pub(crate) fn columns(&self) -> Option<Columns> {
        let row = self.strides[1];
        let others = if self.ends_anywhere { 4..5 } else { 2..self.rank };
        let mut width = self.sizes[0].saturating_mul(self.dtype.size() as u64);
        let several = others.filter(|d| self.sizes[*d] > 1);
        for (size, stride) in several.map(|d| (self.sizes[d], self.strides[d])) {
            if stride < row {
                width = width.saturating_add(size.saturating_sub(1).saturating_mul(stride));
            } else if self.ends_anywhere || !stride.is_multiple_of(row) {
                return None;
            }
        }
        (self.rank > 1 && width <= row).then_some(Columns { row, width })
    }

    /// With so many bytes from one index to the next along each dimension but the innermost.
    ///
    /// # Errors
    /// [`Error::TensorMap`]: more or fewer than these.
    pub fn strides(self, bytes: &[usize]) -> Result<Self, Error> {
        let inner = [self.dtype.size()];
        let strides = of(self.rank, "strides", &[&inner, bytes].concat())?;
        Ok(Self { strides, ..self })
    }

    /// With every n-th element of the box copied along each dimension. The innermost step is ignored,
    /// as the hardware does.
    ///
    /// # Errors
    /// As [`TensorMap::strides`].
    pub fn steps(self, steps: &[usize]) -> Result<Self, Error> {
        Ok(Self { steps: of(self.rank, "steps", steps)?, ..self })
    }

    /// With the chunks of a box permuted. Rows are then a span apart.
    pub fn swizzle(self, swizzle: Swizzle) -> Self {
        Self { swizzle, ..self }
    }

    /// With NaN, not zero, in place of what lies outside of the tensor.
    pub fn nan_outside(self) -> Self {
        Self { nan: true, ..self }
    }

    /// Bytes of a box, as its mbarrier counts them, inside of the tensor or not.
    pub fn bytes(&self) -> u64 {
        let count = |d: usize| self.extents[d].div_ceil(self.steps[d].max(1));
        (1..self.rank).map(count).fold(self.row(), u64::saturating_mul)
    }

    /// Bytes that it takes in shared memory, those between short rows of a swizzled one included.
    pub fn room(&self) -> u64 {
        let rows = self.bytes() / self.row().max(1);
        rows.saturating_mul(self.row().max(u64::from(self.swizzle.span())))
    }

    /// Bytes from the beginning of the tensor to the end of what copies touch of it: stores of rows
    /// whose length is no multiple of 16 bytes go on to the next one.
    pub fn reach(&self, stores: bool) -> u64 {
        let last = |d: usize| self.sizes[d].saturating_sub(1).saturating_mul(self.strides[d]);
        let row = self.sizes[0].saturating_mul(self.dtype.size() as u64);
        let whole = row.checked_next_multiple_of(UNIT).unwrap_or(u64::MAX);
        let row = if stores { whole } else { row };
        if self.ends_anywhere {
            let rows = self.sizes[2].saturating_sub(2).saturating_mul(self.strides[2]);
            return row.saturating_add(rows).saturating_add(last(4));
        }
        (1..self.rank).map(last).fold(row, u64::saturating_add)
    }

    /// Bytes of a row of a box.
    fn row(&self) -> u64 {
        self.extents[0].saturating_mul(self.dtype.size() as u64)
    }

    /// Whether there is such a map.
    ///
    /// # Errors
    /// [`Error::TensorMap`] with the first rule that it breaks.
    pub fn check(&self) -> Result<(), Error> {
        for d in 0..self.rank {
            for (what, least, most, got) in [
                ("size", 1, 1 << 32, self.sizes[d]),
                ("extent of the box", 1, 256, self.extents[d]),
                ("step", 1, 8, self.steps[d]),
            ] {
                if !(least..=most).contains(&got) {
                    let what = format!("{what} of dimension {d}");
                    return Err(refuse(&what, &format!("{least} to {most}"), got));
                }
            }
            let stride = self.strides[d];
            if d > 0 && !(stride.is_multiple_of(UNIT) && stride < 1 << 40) {
                let what = format!("stride of dimension {d}");
                return Err(refuse(&what, "a multiple of 16 bytes below 2^40", stride));
            }
        }
        let (row, span) = (self.row(), u64::from(self.swizzle.span()));
        if !row.is_multiple_of(UNIT) {
            return Err(refuse("a row of the box", "a multiple of 16 bytes", row));
        }
        if span > 0 && row > span {
            let expected = format!("at most the {span} bytes of the swizzle");
            return Err(refuse("a row of the box", &expected, row));
        }
        if self.bytes() > MOST {
            return Err(refuse("the box", &format!("at most {MOST} bytes"), self.bytes()));
        }
        if self.nan && self.dtype.unit_roundoff() == 0.0 {
            return Err(refuse("NaN outside", "a float type", self.dtype));
        }
        Ok(())
    }

    /// Whether there is such a map of memory at this address and of so many bytes.
    ///
    /// # Errors
    /// As [`TensorMap::check`].
    pub(crate) fn check_at(&self, address: u64, bytes: u64, stores: bool) -> Result<(), Error> {
        self.check()?;
        if !address.is_multiple_of(UNIT) {
            let got = format!("{address:#x}");
            return Err(refuse("address of the tensor", "a multiple of 16 bytes", got));
        }
        let reach = self.reach(stores);
        if reach > bytes {
            let end = if stores { ", with the last row stored up to a multiple of 16" } else { "" };
            let expected = format!("at most the {bytes} bytes of its memory");
            return Err(refuse("the tensor", &expected, format!("{reach} bytes{end}")));
        }
        Ok(())
    }

    /// As the emulator knows it.
    pub(crate) fn emulated(&self, address: u64) -> lab_emulator::TensorMap {
        let small = |list: &[u64; RANK]| list[..self.rank].iter().map(|&v| v as u32).collect();
        lab_emulator::TensorMap {
            address,
            element: self.dtype.size() as u32,
            sizes: self.sizes[..self.rank].to_vec(),
            strides: self.strides[1..self.rank].to_vec(),
            extents: small(&self.extents),
            steps: small(&self.steps),
            span: self.swizzle.span(),
            fills_nan: self.nan,
        }
    }

    /// As the driver asks for it.
    pub(crate) fn facts(&self) -> Facts {
        let small = |list: [u64; RANK]| list.map(|v| u32::try_from(v).unwrap_or(u32::MAX));
        let strides = std::array::from_fn(|d| self.strides[d + 1]);
        Facts {
            dtype: self.dtype,
            rank: self.rank as u32,
            sizes: self.sizes,
            strides,
            extents: small(self.extents),
            steps: small(self.steps),
            swizzle: self.swizzle,
            nan: self.nan,
        }
    }
}

/// Columns of rows, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    /// From one row to the next.
    row: u64,
    /// Of those in a row.
    width: u64,
}

impl Columns {
    /// Whether those that begin at one address and others lie apart in the same rows.
    pub(crate) fn lie_beside(self, at: u64, others: Self, other_at: u64) -> bool {
        let between =
            (i128::from(other_at) - i128::from(at)).rem_euclid(i128::from(self.row)) as u64;
        self.row == others.row && self.width <= between && between + others.width <= self.row
    }
}

/// A [`TensorMap`] in the driver's types.
pub(crate) struct Facts {
    pub(crate) dtype: DType,
    pub(crate) rank: u32,
    pub(crate) sizes: [u64; RANK],
    pub(crate) strides: [u64; RANK - 1],
    pub(crate) extents: [u32; RANK],
    pub(crate) steps: [u32; RANK],
    pub(crate) swizzle: Swizzle,
    pub(crate) nan: bool,
}

fn of(rank: usize, what: &str, list: &[usize]) -> Result<[u64; RANK], Error> {
    if list.len() != rank {
        return Err(refuse(what, &format!("{rank} of them"), list.len()));
    }
    Ok(std::array::from_fn(|d| list.get(d).map_or(1, |&v| v as u64)))
}

fn refuse(what: &str, expected: &str, got: impl std::fmt::Display) -> Error {
    Error::TensorMap { what: what.into(), expected: expected.into(), got: got.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said<T>(result: Result<T, Error>) -> String {
        result.err().map_or_else(|| "nothing".into(), |e| e.to_string())
    }

    #[test]
    fn each_rule_is_named() {
        let map = |sizes: &[usize], extents: &[usize]| TensorMap::new(DType::F16, sizes, extents);
        let of = |m: Result<TensorMap, Error>| said(m.and_then(|m| m.check()));
        assert_eq!(of(map(&[64, 8], &[64, 8])), "nothing");
        for (got, want) in [
            (of(map(&[], &[])), "dimensions: expected 1 to 5, got 0"),
            (of(map(&[64], &[64, 1])), "extents of the box: expected 1 of them, got 2"),
            (of(map(&[64, 0], &[64, 1])), "size of dimension 1: expected 1 to 4294967296, got 0"),
            (
                of(map(&[64, 8], &[64, 257])),
                "extent of the box of dimension 1: expected 1 to 256, got 257",
            ),
            (
                of(map(&[64, 8], &[64, 8]).and_then(|m| m.steps(&[1, 9]))),
                "step of dimension 1: expected 1 to 8, got 9",
            ),
            (
                of(map(&[60, 8], &[64, 8])),
                "stride of dimension 1: expected a multiple of 16 bytes below 2^40, got 120",
            ),
            (of(map(&[64], &[12])), "a row of the box: expected a multiple of 16 bytes, got 24"),
            (
                of(map(&[64], &[64]).map(|m| m.swizzle(Swizzle::Bytes64))),
                "a row of the box: expected at most the 64 bytes of the swizzle, got 128",
            ),
            (
                of(map(&[256, 256, 2], &[256, 256, 2])),
                "the box: expected at most 232448 bytes, got 262144",
            ),
            (
                of(TensorMap::new(DType::I32, &[8], &[8]).map(TensorMap::nan_outside)),
                "NaN outside: expected a float type, got i32",
            ),
        ] {
            assert_eq!(got, format!("tensor map: {want}"));
        }
    }

    #[test]
    fn the_tensor_lies_in_its_memory() {
        let map = TensorMap::new(DType::F16, &[20, 3], &[8, 2]).unwrap().strides(&[48]).unwrap();
        assert_eq!((map.reach(false), map.reach(true)), (136, 144));
        assert_eq!(said(map.check_at(32, 136, false)), "nothing");
        let at = said(map.check_at(8, 136, false));
        assert_eq!(
            at,
            "tensor map: address of the tensor: expected a multiple of 16 bytes, got 0x8"
        );
        let end = said(map.check_at(0, 136, true));
        assert!(
            end.ends_with("got 144 bytes, with the last row stored up to a multiple of 16"),
            "{end}"
        );
        assert!(map.check_at(0, 135, false).is_err());
    }

    #[test]
    fn a_map_that_ends_anywhere_reaches_to_the_end_of_its_memory() {
        let map = TensorMap::ending_anywhere(DType::F16, [32, 10, 3], [32, 4]).unwrap();
        assert_eq!((map.reach(false), map.reach(true)), (3 * 10 * 64, 3 * 10 * 64));
        // Row 7 of head 2, which ends at 9.
        let rows = TensorMap::ROWS as u64;
        let at = [0, rows - (9 - 7), 9, rows, 2];
        let offset = |d: usize| at[d].wrapping_mul(map.strides[d]);
        assert_eq!((1..5).map(offset).fold(0, u64::wrapping_add), (2 * 10 + 7) * 64);
        assert_eq!(said(map.check_at(1 << 20, 3 * 10 * 64, true)), "nothing");
        assert!(map.check_at(1 << 20, 3 * 10 * 64 - 1, true).is_err());
        // Three heads beside each other, in rows of 200 elements; and what lies behind them there.
        let beside = map.rows_apart(400, 64).unwrap();
        assert_eq!(beside.reach(true), 9 * 400 + 3 * 64);
        assert!(beside.lies_beside(0, &beside, 192) && !beside.lies_beside(0, &beside, 176));
        assert!(beside.lies_beside(192, &beside, 400) && !beside.lies_beside(0, &beside, 400 - 64));
        assert!(!map.lies_beside(0, &map, 64));
        let huge = TensorMap::ending_anywhere(DType::F16, [usize::MAX; 3], [1, 1]).unwrap();
        assert!(huge.check().is_err());
    }

    #[test]
    fn sizes_that_cannot_be_do_not_panic() {
        for size in [0, usize::MAX] {
            let map = TensorMap::new(DType::F64, &[size, size], &[size, size]).unwrap();
            assert!(map.check_at(0, 64, true).is_err());
            let map = map.steps(&[0, 0]).unwrap().swizzle(Swizzle::Bytes128);
            // Nothing fits, and nothing overflows.
            assert!(map.check().is_err() && map.reach(true) >= map.reach(false));
            assert!(map.room() >= map.bytes());
        }
    }

    #[test]
    fn a_box_counts_what_it_copies_and_takes_its_spans() {
        let map = TensorMap::new(DType::F32, &[64, 64], &[8, 6]).unwrap();
        assert_eq!((map.bytes(), map.room()), (192, 192));
        let map = map.steps(&[8, 4]).unwrap().swizzle(Swizzle::Bytes64);
        assert_eq!((map.bytes(), map.room()), (64, 128));
    }
}

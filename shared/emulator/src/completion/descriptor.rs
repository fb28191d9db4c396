//! Where wgmma finds its operands in shared memory: the 64 bits of a matrix descriptor, decoded as the
//! hardware does. PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout" and "Matrix
//! Descriptor Format".
//!
//! An operand is made of rows of 16 bytes, 8 halves or 4 TF32 each. Which of them are neighbours, and how
//! far apart the others lie, is said by the swizzle, the two offsets and whether the operand is
//! transposed.

/// Bytes of a chunk, which no layout breaks.
pub(crate) const CHUNK: usize = 16;
/// Rows of a core matrix.
const ROWS: usize = 8;
/// A descriptor says where in its 256 KiB of window an operand begins.
pub(crate) const WINDOW: usize = 1 << 18;

/// What the 64 bits say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// In the shared window.
    pub(crate) start: usize,
    pub(crate) leading: usize,
    pub(crate) stride: usize,
    pub(crate) base_offset: usize,
    /// Bytes of a row that is swizzled as a whole; 16 where nothing is.
    pub(crate) span: usize,
}

impl Descriptor {
    pub(crate) fn decode(bits: u64) -> Self {
        let field = |at: u32| ((bits >> at) as usize & 0x3FFF) << 4;
        Self {
            start: field(0),
            leading: field(16),
            stride: field(32),
            base_offset: (bits >> 49) as usize & 7,
            span: [16, 128, 64, 32][(bits >> 62) as usize],
        }
    }

    /// Where the chunk begins that has row `row` and bytes 16 `chunk` on of a K-major operand: rows of it
    /// are rows of A, or columns of B.
    pub(crate) fn along_k(&self, row: usize, chunk: usize) -> usize {
        let inside = row % ROWS * self.span + row / ROWS * self.stride;
        let along = if self.span == CHUNK { chunk * self.leading } else { chunk * CHUNK };
        self.swizzled(self.start + inside + along)
    }

    /// Where the chunk begins that has step `k` and 16 bytes along the rows of an operand whose neighbours
    /// are rows: `chunk` of them.
    pub(crate) fn along_rows(&self, k: usize, chunk: usize) -> usize {
        let chunks = self.span / CHUNK;
        let (panel, k8) = (chunk / chunks, k / ROWS);
        let apart = match self.span {
            CHUNK => panel * self.stride + k8 * self.leading,
            _ => panel * self.leading + k8 * self.stride,
        };
        self.swizzled(self.start + chunk % chunks * CHUNK + k % ROWS * self.span + apart)
    }

    /// The chunk's number in its row is mixed with the row's number, as address bits say.
    fn swizzled(&self, address: usize) -> usize {
        let bits = self.span / CHUNK - 1;
        let row = (address >> 7).wrapping_sub(self.base_offset);
        (address ^ (row & bits) << 4) & (WINDOW - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(start: usize, leading: usize, stride: usize, mode: u64) -> Descriptor {
        let bits =
            (start >> 4) as u64 | ((leading >> 4) as u64) << 16 | ((stride >> 4) as u64) << 32;
        Descriptor::decode(bits | mode << 62)
    }

    #[test]
    fn rows_of_128_bytes_are_swizzled_by_their_number() {
        let d = of(1024, 16, 1024, 1);
        assert_eq!(d.span, 128);
        assert_eq!(d.along_k(0, 0), 1024);
        assert_eq!(d.along_k(1, 0), 1024 + 128 + 16, "chunk 0 of row 1 lies where chunk 1 would");
        assert_eq!(d.along_k(9, 1), 2048 + 128, "and chunk 1 where chunk 0 would");
        let next = of(1024 + 32, 16, 1024, 1);
        assert_eq!(next.along_k(1, 0), 1024 + 128 + (2 ^ 1) * 16, "a step of k is 32 bytes on");
    }

    #[test]
    fn without_a_swizzle_core_matrices_are_whole() {
        let d = of(0, 128, 256, 0);
        assert_eq!((d.along_k(1, 0), d.along_k(0, 1), d.along_k(8, 0)), (16, 128, 256));
        assert_eq!((d.along_rows(1, 0), d.along_rows(8, 0), d.along_rows(0, 1)), (16, 128, 256));
    }

    /// A pattern that does not begin at a multiple of 8 spans says by how many 128 bytes it is late: rows are
    /// then counted from where it begins.
    #[test]
    fn a_base_offset_counts_rows_from_the_start_of_the_pattern() {
        let late = |start: usize, mode: u64| Descriptor {
            base_offset: start >> 7 & 7,
            ..of(start, 16, 1024, mode)
        };
        for (mode, span) in [(1, 128), (2, 64), (3, 32)] {
            let aligned = of(1024, 16, 1024, mode);
            for rows in 1..8 {
                let start = 1024 + rows * 128;
                assert_eq!(late(start, mode).span, span);
                for (row, chunk) in (0..8).flat_map(|row| (0..span / CHUNK).map(move |c| (row, c)))
                {
                    let expected = aligned.along_k(row, chunk) - 1024 + start;
                    assert_eq!(late(start, mode).along_k(row, chunk), expected, "{span}, {rows}");
                    let expected = aligned.along_rows(row, chunk) - 1024 + start;
                    assert_eq!(late(start, mode).along_rows(row, chunk), expected);
                }
            }
        }
        // Without it the bits of the address count.
        assert_eq!(of(1024 + 128, 16, 1024, 1).along_k(0, 0), 1024 + 128 + 16);
        let bits = 5 << 49 | 1 << 62;
        assert_eq!(Descriptor::decode(bits).base_offset, 5);
        assert_eq!(
            Descriptor::decode(bits | 0x3FFF << 32 | 7 << 52).base_offset,
            5,
            "its neighbours"
        );
    }

    #[test]
    fn neighbours_along_rows_lie_in_panels() {
        let d = of(0, 8192, 1024, 1);
        assert_eq!(d.along_rows(0, 7), 7 * 16);
        assert_eq!(d.along_rows(0, 8), 8192, "the next panel of 64 halves");
        assert_eq!(d.along_rows(9, 0), 1024 + 128 + 16);
    }
}

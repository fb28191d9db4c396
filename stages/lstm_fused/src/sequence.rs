//! Where the kernel of a launch a sequence keeps its weights.

use lab_device::DType;

/// The kernel's arguments for heads of so many units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Residence {
    /// Units that it has room for, HT.
    pub(crate) units: usize,
    /// Rows of the batch a block.
    pub(crate) rows: usize,
    /// Weights of a thread in registers, and in shared memory.
    pub(crate) kept: usize,
    pub(crate) in_shared: usize,
}

/// Of most units, as rows of 1 and of 4: registers and shared memory hold 32 KB of weights, 64, 160, 180.
/// The other weights come from device memory. As the build script lists them.
const SINGLES: [(usize, [[usize; 2]; 2]); 4] = [
    (32, [[32, 0], [32, 0]]),
    (64, [[64, 0], [64, 0]]),
    (128, [[84, 44], [60, 44]]),
    (256, [[24, 20], [4, 20]]),
];
const DOUBLES: [(usize, [[usize; 2]; 2]); 4] = [
    (32, [[32, 0], [32, 0]]),
    (64, [[64, 0], [64, 0]]),
    (128, [[32, 20], [8, 20]]),
    (256, [[4, 8], [4, 8]]),
];

/// The most units: a thread a gate of each, and a block has 1024.
pub(crate) const MOST_UNITS: usize = 256;

impl Residence {
    /// Of H units, with one row a block or four.
    pub(crate) fn of(hidden: usize, dtype: DType, four_rows: bool) -> Self {
        let table = if dtype == DType::F64 { DOUBLES } else { SINGLES };
        let fits = table.into_iter().find(|(units, _)| hidden <= *units);
        let (units, of_rows) = fits.expect("as many units as were checked");
        let [kept, in_shared] = of_rows[usize::from(four_rows)];
        Self { units, rows: if four_rows { 4 } else { 1 }, kept, in_shared }
    }

    /// The template arguments behind the type.
    pub(crate) fn arguments(&self) -> String {
        let Self { units, rows, kept, in_shared } = self;
        format!("{units}, {rows}, {kept}, {in_shared}")
    }

    /// A thread a gate of a unit.
    pub(crate) fn threads(&self) -> u32 {
        4 * self.units as u32
    }

    /// Bytes for h, twice, and for weights.
    pub(crate) fn shared(&self, arithmetic: DType) -> usize {
        let of_h = 2 * self.rows * self.units;
        arithmetic.size() * (of_h + self.in_shared * 4 * self.units)
    }
}

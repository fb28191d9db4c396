//! Where the kernel of a launch a sequence keeps its weights.

use lab_device::DType;

/// The kernel's arguments for so many units.
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

const fn residence(units: usize, rows: usize, kept: usize, in_shared: usize) -> Residence {
    Residence { units, rows, kept, in_shared }
}

/// The fewest units first, and of those one row a block first. A block of 128 units has 128 registers a
/// thread, of 256 units 64; each row of the batch needs a dozen of them. Shared memory is at most 99
/// KB, what an RTX 4060 has. Weights that find no place come from device memory. As the build script
/// lists them.
const SINGLES: &[Residence] = &[
    residence(32, 1, 32, 0),
    residence(32, 4, 32, 0),
    residence(64, 1, 64, 0),
    residence(64, 4, 64, 0),
    residence(128, 1, 84, 44),
    residence(128, 4, 36, 36),
    residence(256, 1, 24, 20),
    residence(256, 2, 8, 20),
];
const DOUBLES: &[Residence] = &[
    residence(32, 1, 32, 0),
    residence(32, 4, 32, 0),
    residence(64, 1, 64, 0),
    residence(64, 4, 64, 0),
    residence(128, 1, 32, 20),
    residence(128, 2, 16, 20),
    residence(256, 1, 4, 8),
];

/// The most units: a thread a gate of each, and a block has 1024.
pub(crate) const MOST_UNITS: usize = 256;

impl Residence {
    /// Of H units; with several rows a block, where there is a kernel for that.
    pub(crate) fn of(hidden: usize, dtype: DType, several_rows: bool) -> Self {
        let table = if dtype == DType::F64 { DOUBLES } else { SINGLES };
        let units = table.iter().map(|r| r.units).find(|&units| hidden <= units);
        let units = units.expect("as many units as were checked");
        let mut fit = table.iter().filter(|r| r.units == units);
        let chosen = if several_rows { fit.next_back() } else { fit.next() };
        *chosen.expect("a kernel for each number of units")
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

    /// Bytes for da, twice, each gate's with the padding behind it, and for weights.
    pub(crate) fn shared_back(&self, arithmetic: DType) -> usize {
        let of_da = 2 * self.rows * 4 * (self.units + 4);
        arithmetic.size() * (of_da + self.in_shared * 4 * self.units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 99 KB a block there, which the kernels ask for at once: nothing else says that they fit.
    #[test]
    fn every_block_fits_an_rtx_4060() {
        for (table, arithmetic) in [(SINGLES, DType::F32), (DOUBLES, DType::F64)] {
            for residence in table {
                let shared = residence.shared_back(arithmetic);
                assert!(residence.shared(arithmetic) <= shared);
                assert!(shared <= 99 * 1024, "{residence:?}: {shared} bytes");
                assert!(residence.threads() <= 1024);
                assert!(residence.kept + residence.in_shared <= residence.units);
            }
        }
    }
}

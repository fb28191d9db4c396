//! Where the kernel of a launch a sequence keeps its weights.

use lab_device::DType;

use crate::residences::{NORM, SEQUENCE};

/// The kernel's arguments for so many units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Residence {
    /// Units that it has room for, HT.
    pub(crate) units: usize,
    /// Rows of the batch a block.
    pub(crate) rows: usize,
    /// Columns whose weights a thread has in registers, and in shared memory.
    pub(crate) kept: usize,
    pub(crate) in_shared: usize,
}

/// The most units: a thread a gate of each, and a block has 1024.
pub(crate) const MOST_UNITS: usize = 256;

/// Of one type: a table of f32 and halves, or that of f64.
pub(crate) fn table_of<T: ?Sized>(tables: [&'static T; 2], dtype: DType) -> &'static T {
    tables[usize::from(dtype == DType::F64)]
}

/// The entry of a table for H units, by the fewest that there are; with the most rows of those that
/// take several.
pub(crate) fn chosen<const N: usize>(
    table: &'static [[usize; N]],
    hidden: usize,
    several_rows: bool,
) -> &'static [usize; N] {
    let units = table.iter().map(|entry| entry[0]).find(|&units| hidden <= units);
    let units = units.expect("as many units as were checked");
    let mut fit = table.iter().filter(|entry| entry[0] == units);
    let chosen = if several_rows { fit.next_back() } else { fit.next() };
    chosen.expect("a kernel for each number of units")
}

impl Residence {
    /// Of H units; with several rows a block, where there is a kernel for that.
    pub(crate) fn of(hidden: usize, dtype: DType, several_rows: bool) -> Self {
        let table = table_of(SEQUENCE, dtype);
        let &[units, rows, kept, in_shared] = chosen(table, hidden, several_rows);
        Self { units, rows, kept, in_shared }
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
        bytes(arithmetic, 2 * self.rows * self.units, self.units, self.in_shared)
    }

    /// Bytes for da, twice, and for weights.
    pub(crate) fn shared_back(&self, arithmetic: DType) -> usize {
        bytes(arithmetic, 2 * self.rows * 4 * self.units, self.units, self.in_shared)
    }
}

/// Where the kernel with layer norm keeps them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormResidence {
    units: usize,
    kept: usize,
    in_shared: usize,
}

impl NormResidence {
    /// Of H units.
    pub(crate) fn of(hidden: usize, dtype: DType) -> Self {
        let &[units, kept, in_shared] = chosen(table_of(NORM, dtype), hidden, false);
        Self { units, kept, in_shared }
    }

    /// The template arguments behind the type.
    pub(crate) fn arguments(&self) -> String {
        let Self { units, kept, in_shared } = self;
        format!("{units}, {kept}, {in_shared}")
    }

    /// A thread a gate of a unit.
    pub(crate) fn threads(&self) -> u32 {
        4 * self.units as u32
    }

    /// Bytes for h, for what the warps have of two norms, and for weights.
    pub(crate) fn shared(&self, arithmetic: DType) -> usize {
        bytes(arithmetic, (1 + 2) * self.units, self.units, self.in_shared)
    }

    /// The same with da in h's place.
    pub(crate) fn shared_back(&self, arithmetic: DType) -> usize {
        bytes(arithmetic, (4 + 2) * self.units, self.units, self.in_shared)
    }
}

/// For so many numbers, and the weights of so many columns of four gates.
fn bytes(arithmetic: DType, numbers: usize, units: usize, in_shared: usize) -> usize {
    arithmetic.size() * (numbers + in_shared * 4 * 4 * units)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 99 KB a block there, which the kernels ask for at once: nothing else says that they fit.
    #[test]
    fn every_block_fits_an_rtx_4060() {
        for (table, arithmetic) in SEQUENCE.into_iter().zip([DType::F32, DType::F64]) {
            for &[units, rows, kept, in_shared] in table {
                let residence = Residence { units, rows, kept, in_shared };
                let shared = residence.shared_back(arithmetic);
                assert!(residence.shared(arithmetic) <= shared);
                assert!(shared <= 99 * 1024, "{residence:?}: {shared} bytes");
                assert!(residence.threads() <= 1024);
                assert!(residence.kept + residence.in_shared <= residence.units / 4);
            }
        }
        for (table, arithmetic) in NORM.into_iter().zip([DType::F32, DType::F64]) {
            for &[units, kept, in_shared] in table {
                let residence = NormResidence { units, kept, in_shared };
                let shared = residence.shared_back(arithmetic);
                assert!(residence.shared(arithmetic) <= shared);
                assert!(shared <= 99 * 1024, "{residence:?}: {shared} bytes");
            }
            // The tables' last entries are the most units that there are.
            assert_eq!(table.last().map(|entry| entry[0]), Some(MOST_UNITS));
        }
    }
}

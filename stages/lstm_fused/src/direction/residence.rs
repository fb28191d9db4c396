//! Which of the kernels that keep their weights a direction takes.

use lab_device::{DType, Instance, KernelSource};

/// The most units of a row in one block: a thread a gate of each, and a block has 1024.
pub(crate) const MOST_UNITS: usize = 256;

/// Of the instantiations for a type that have room for H units, HT, those with the fewest; of these
/// the first of the table, with one row of the batch a block; where there are to be several, the last, with the most.
pub(super) fn instance_for(
    source: &'static KernelSource,
    kernel: &str,
    dtype: DType,
    hidden: usize,
    several_rows: bool,
) -> Instance {
    let fits = |i: &Instance| i.has("T", dtype.cpp()) && hidden <= i.size("HT");
    let all: Vec<Instance> = source.instances(kernel).filter(fits).collect();
    let units = all.iter().map(|i| i.size("HT")).min();
    let mut fit = all.into_iter().filter(|i| Some(i.size("HT")) == units);
    let chosen = if several_rows { fit.next_back() } else { fit.next() };
    chosen.expect("as many units as were checked")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{V1_NORM, V1_SEQUENCE};

    #[test]
    fn the_fewest_units_with_room_are_chosen() {
        let of = |dtype, hidden, several| {
            let i = instance_for(&V1_SEQUENCE, "lstm_sequence", dtype, hidden, several);
            [i.size("HT"), i.size("ROWS")]
        };
        assert_eq!(of(DType::F32, 1, false), [32, 1]);
        assert_eq!(of(DType::F32, 33, false), [64, 1]);
        assert_eq!(of(DType::BF16, 64, true), [64, 4]);
        assert_eq!(of(DType::F64, 65, true), [256, 1]);
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            assert_eq!(of(dtype, MOST_UNITS, false)[0], MOST_UNITS);
            let norm = instance_for(&V1_NORM, "norm_sequence", dtype, MOST_UNITS, false);
            assert_eq!(norm.size("HT"), MOST_UNITS);
        }
    }
}

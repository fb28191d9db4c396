//! The tile parameters that `lab tune` tries.

use lab_device::{DType, Instance, KernelSource};
use lab_families::qkv::sizes_of;
use lab_harness::tiling::candidates;
use lab_harness::{Dims, Error, Tiling};

use crate::{Tiles, kernels};

/// A kernel that has tiles.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) source: &'static KernelSource,
    pub(crate) name: &'static str,
    /// The template's parameters for rows that a block owns, and for those that come past it.
    pub(crate) own: &'static str,
    past: &'static str,
}

/// In the order of the launches.
pub(crate) static KERNELS: [Kernel; 3] = [
    Kernel { source: &kernels::FORWARD, name: "vlstm_forward", own: "TQ", past: "TKV" },
    Kernel { source: &kernels::BACKWARD, name: "vlstm_backward_q", own: "TQ", past: "TKV" },
    Kernel { source: &kernels::BACKWARD, name: "vlstm_backward_kv", own: "TKV", past: "TQ" },
];

/// The columns that there is room for, and of each kernel its template's parameters: rows owned, rows
/// that come past, columns of a piece, rows and columns of threads, blocks of a multiprocessor.
const NAMES: [&str; 19] = [
    "DH",
    "FW_TQ",
    "FW_TKV",
    "FW_CX",
    "FW_WI",
    "FW_WJ",
    "FW_BLOCKS",
    "DQ_TQ",
    "DQ_TKV",
    "DQ_CX",
    "DQ_WI",
    "DQ_WJ",
    "DQ_BLOCKS",
    "DKV_TKV",
    "DKV_TQ",
    "DKV_CX",
    "DKV_WI",
    "DKV_WJ",
    "DKV_BLOCKS",
];

impl Kernel {
    fn tiles_of(&self, instance: Instance) -> [usize; 6] {
        [self.own, self.past, "CX", "WI", "WJ", "BLOCKS"].map(|name| instance.size(name))
    }

    /// The tiles of this kernel, which is the `place`-th of [`KERNELS`], in a tiling.
    pub(crate) fn tiles_in(&self, tiling: &Tiling, place: usize) -> [usize; 6] {
        std::array::from_fn(|at| tiling.get(NAMES[1 + 6 * place + at]))
    }

    /// Its name with them, for elements of a type.
    pub(crate) fn instantiation(&self, n: usize, tiling: &Tiling, dtype: DType) -> String {
        let [own, past, piece, rows, columns, blocks] = self.tiles_in(tiling, n);
        let (name, t, dh) = (self.name, dtype.cpp(), tiling.get("DH"));
        format!("{name}<{t}, {own}, {past}, {dh}, {piece}, {rows}, {columns}, {blocks}>")
    }
}

/// The tiles in use for heads of so many columns.
fn in_use(columns: usize) -> [usize; 19] {
    let instances = KERNELS.each_ref().map(|k| Tiles::Pieces.instance(k, DType::F32, columns));
    let mut all = [instances[0].size("DH"); 19];
    for (n, (kernel, instance)) in KERNELS.iter().zip(instances).enumerate() {
        all[1 + 6 * n..][..6].copy_from_slice(&kernel.tiles_of(instance));
    }
    all
}

/// The tiling in use with each of the tiles of one kernel that are built beside it.
pub(crate) fn built(columns: usize) -> Vec<Tiling> {
    let values = in_use(columns);
    let mut all = Vec::new();
    for (n, kernel) in KERNELS.iter().enumerate() {
        for instance in kernel.source.instances(kernel.name) {
            let mut tried = values;
            tried[1 + 6 * n..][..6].copy_from_slice(&kernel.tiles_of(instance));
            let fits = instance.size("DH") == values[0] && instance.size("CX") > 0;
            if fits && instance.has("T", "float") && tried != values {
                all.push(Tiling::new(&NAMES, tried));
            }
        }
    }
    all
}

/// What may be worth a try. What does not fit shared memory does not compile.
fn is_fair([own, past, piece, rows, columns, blocks]: [usize; 6], dh: usize) -> bool {
    let threads = rows * columns;
    // Sums and scores of a thread, and what it multiplies at a time; more do not fit registers,
    // fewer reuse too little.
    let (sums, scores) = (own * dh / threads, own * past / threads);
    let fours = 4 * (own / rows + past / columns);
    let registers = sums + scores.max(dh / columns) + fours + 40;
    // Of 64 K registers.
    let resident = (1 << 16) / (threads * registers);
    own.is_multiple_of(rows)
        && registers <= 255
        && sums + scores >= 48
        && (64..=256).contains(&threads)
        && threads.is_multiple_of(32)
        && (blocks == resident || blocks + 1 == resident)
        && (past * piece / dh).is_multiple_of(4)
        // Packs of eight halves, equally many a thread.
        && (past * piece).is_multiple_of(threads * 8)
        && (own * dh).is_multiple_of(threads * 8)
}

/// Of each kernel other tiles, while the other two keep theirs.
pub(crate) fn tilings(dims: &Dims) -> Vec<Tiling> {
    let [.., dhqk, dhhv] = sizes_of(dims);
    let values = in_use(dhqk.max(dhhv));
    let mut all = vec![Tiling::new(&NAMES, values)];
    for (n, kernel) in KERNELS.iter().enumerate() {
        let kept = values.map(|v| [v]);
        let mut tried: [&[usize]; 19] = kept.each_ref().map(|v| v.as_slice());
        tried[1 + 6 * n..][..6].copy_from_slice(&[
            &[32, 64, 128],
            &[32, 64, 128],
            &[32, 64],
            &[8, 16],
            &[8, 16],
            &[1, 2, 3, 4],
        ]);
        let others =
            candidates(&NAMES, values, tried, |t| is_fair(kernel.tiles_in(t, n), values[0]));
        all.extend(others.into_iter().skip(1));
    }
    all
}

/// The tiling, if it is one of those that are listed for its columns, and they have room for the
/// problem's.
///
/// # Errors
/// It is not.
pub(crate) fn choose<'a>(tiling: &'a Tiling, dims: &Dims) -> Result<&'a Tiling, Error> {
    let [.., dhqk, dhhv] = sizes_of(dims);
    let names = tiling.iter().map(|(name, _)| name);
    if names.eq(NAMES) {
        let dh = tiling.get("DH");
        let widest = lab_families::qkv::sizes([1, 1, 1, dh, dh]);
        let is_listed = [64, 128, 256].contains(&dh) && tilings(&widest).contains(tiling);
        if dhqk.max(dhhv) <= dh && is_listed {
            return Ok(tiling);
        }
    }
    let what = format!("tiling of vlstm_fwbw_v1:ahead for {dhqk} and {dhhv} columns");
    Err(Error::bad(what, "one of those that it lists", tiling))
}

#[cfg(test)]
mod tests {
    use lab_families::qkv::sizes;

    use super::*;

    #[test]
    fn the_first_tiling_is_the_one_in_use_and_none_comes_twice() {
        for dh in [64, 128, 256] {
            let dims = sizes([1, 1, 1, 16, dh]);
            let all = tilings(&dims);
            for (n, kernel) in KERNELS.iter().enumerate() {
                let listed = Tiles::Pieces.instance(kernel, DType::F16, dh);
                assert_eq!(kernel.instantiation(n, &all[0], DType::F16), listed.name());
            }
            assert!((20..300).contains(&all.len()), "{dh}: {}", all.len());
            assert!(all.iter().enumerate().all(|(n, t)| !all[..n].contains(t)));
            assert_eq!(choose(&all[3], &dims).unwrap(), &all[3]);
        }
    }

    /// What is no tiling of the version, and one for fewer columns.
    #[test]
    fn other_tilings_are_refused() {
        let narrow = sizes([1, 1, 1, 64, 64]);
        let refused = choose(&Tiling::new(&["BM"], [3]), &narrow).unwrap_err().to_string();
        assert!(refused.starts_with("tiling of vlstm_fwbw_v1:ahead for 64 and 64"), "{refused}");
        let all = tilings(&narrow);
        assert!(choose(&all[1], &narrow).is_ok());
        assert!(choose(&all[1], &sizes([1, 1, 1, 64, 80])).is_err());
        let mut odd = in_use(64);
        odd[1] = 96;
        assert!(choose(&Tiling::new(&NAMES, odd), &narrow).is_err());
    }
}

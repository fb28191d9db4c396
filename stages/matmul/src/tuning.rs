//! The tile parameters that `lab tune` tries.
//!
//! A kernel plugs in with one entry of [`TUNABLE`].

use lab_device::DType;
use lab_harness::tiling::candidates;
use lab_harness::{Error, Tiling, Version};

use crate::Matmul;

/// What can be chosen of a kernel.
struct Tunable {
    /// The template's name.
    kernel: &'static str,
    /// The tilings in a type, the one in use first. Their names are those of the template's
    /// parameters between the type and `PACK`, in its order, with `BM` and `BN` among them.
    tilings: fn(DType) -> Vec<Tiling>,
    /// Threads a block.
    threads: fn(&Tiling) -> usize,
    /// Dynamic shared memory a block, in bytes.
    shared: fn(&Tiling, DType) -> usize,
}

static TUNABLE: &[Tunable] = &[
    Tunable {
        kernel: "matmul_blocks",
        tilings: blocks,
        threads: a_cell_block_each,
        shared: |_, _| 0,
    },
    Tunable {
        kernel: "matmul_warps",
        tilings: warps,
        threads: a_cell_block_each,
        shared: |_, _| 0,
    },
    Tunable {
        kernel: "matmul_async",
        tilings: pipelined,
        threads: a_cell_block_each,
        shared: |_, _| 0,
    },
    Tunable {
        kernel: "matmul_tensor",
        tilings: tensor,
        threads: |t| t.get("BM") / t.get("WM") * (t.get("BN") / t.get("WN")) * 32,
        shared: stages_of_tiles,
    },
];

/// `STAGES` pairs of tiles.
fn stages_of_tiles(t: &Tiling, dtype: DType) -> usize {
    t.get("STAGES") * (t.get("BM") + t.get("BN")) * t.get("BK") * dtype.size()
}

/// A thread for `TM` × `TN` elements of C.
fn a_cell_block_each(t: &Tiling) -> usize {
    t.get("BM") * t.get("BN") / (t.get("TM") * t.get("TN"))
}

/// Whole warps, four to sixteen of them, and no more sums than registers can hold.
fn fair(t: &Tiling) -> bool {
    let threads = a_cell_block_each(t);
    threads.is_multiple_of(32)
        && (128..=512).contains(&threads)
        && (32..=128).contains(&(t.get("TM") * t.get("TN")))
}

/// A warp is 32 threads, and warps fill the block.
fn warps_fit(t: &Tiling) -> bool {
    t.get("WM") * t.get("WN") == 32 * t.get("TM") * t.get("TN")
        && t.get("BM").is_multiple_of(t.get("WM"))
        && t.get("BN").is_multiple_of(t.get("WN"))
}

/// A pack of a half holds twice the elements, and its tile is twice as deep.
fn depth(dtype: DType) -> usize {
    32 / dtype.size()
}

fn blocks(dtype: DType) -> Vec<Tiling> {
    let depth = depth(dtype);
    candidates(
        &["BM", "BN", "BK", "TM", "TN"],
        [128, 128, depth, 8, 8],
        [&[64, 128, 256], &[64, 128, 256], &[depth, 2 * depth], &[4, 8, 16], &[4, 8]],
        fair,
    )
}

fn warps(dtype: DType) -> Vec<Tiling> {
    let depth = depth(dtype);
    candidates(
        &["BM", "BN", "BK", "WM", "WN", "TM", "TN"],
        [128, 128, depth, 64, 32, 8, 8],
        [
            &[64, 128, 256],
            &[64, 128, 256],
            &[depth, 2 * depth],
            &[32, 64, 128],
            &[32, 64],
            &[8, 16],
            &[4, 8],
        ],
        |t| fair(t) && warps_fit(t),
    )
}

fn pipelined(_dtype: DType) -> Vec<Tiling> {
    candidates(
        &["BM", "BN", "BK", "WM", "WN", "TM", "TN", "STAGES", "BLOCKS"],
        [128, 128, 8, 64, 32, 8, 8, 3, 2],
        [
            &[128, 256],
            &[128, 256],
            &[8, 16],
            &[64, 128],
            &[32, 64],
            &[8, 16],
            &[8],
            &[2, 3, 4],
            &[1, 2],
        ],
        |t| fair(t) && warps_fit(t),
    )
}

fn tensor(dtype: DType) -> Vec<Tiling> {
    let depth = 64 / dtype.size();
    let values = [64, 128, 256];
    candidates(
        &["BM", "BN", "BK", "WM", "WN", "STAGES"],
        [128, 256, depth, 64, 64, 4],
        [&values, &values, &[depth, 2 * depth], &[32, 64], &[32, 64, 128], &[3, 4]],
        |t| {
            let warps = t.get("BM") / t.get("WM") * (t.get("BN") / t.get("WN"));
            (4..=16).contains(&warps)
                // A lane has 64 or 128 sums: fewer ask for too much, more do not fit registers.
                && (64 * 32..=64 * 64).contains(&(t.get("WM") * t.get("WN")))
                // The largest that any GPU gives a block.
                && stages_of_tiles(t, dtype) <= 227 * 1024
        },
    )
}

/// The tilings of a version; none where its kernel has nothing to choose.
pub(crate) fn tilings(version: &Matmul, dtype: DType) -> Vec<Tiling> {
    let of = TUNABLE.iter().find(|t| t.kernel == version.kernel);
    of.filter(|_| version.info().dtypes.contains(&dtype)).map_or(Vec::new(), |t| (t.tilings)(dtype))
}

/// What a tiling comes to.
pub(crate) struct Chosen {
    /// The instantiation.
    pub(crate) name: String,
    /// Rows and columns of C a block.
    pub(crate) block: [usize; 2],
    pub(crate) threads: [u32; 2],
    pub(crate) shared: usize,
}

/// # Errors
/// The version has no such tiling.
pub(crate) fn choose(
    version: &Matmul,
    dtype: DType,
    packs: bool,
    tiling: &Tiling,
) -> Result<Chosen, Error> {
    let of = TUNABLE.iter().find(|t| t.kernel == version.kernel);
    let Some(of) = of.filter(|t| (t.tilings)(dtype).contains(tiling)) else {
        let what = format!("tiling of {} in {dtype}", version.info().full_name());
        return Err(Error::bad(what, "one of those that it lists", tiling));
    };
    let pack = if packs { 16 / dtype.size() } else { 1 };
    Ok(Chosen {
        name: version.name_of(dtype, &format!("{}, {pack}", tiling.arguments())),
        block: [tiling.get("BM"), tiling.get("BN")],
        threads: [(of.threads)(tiling) as u32, 1],
        shared: (of.shared)(tiling, dtype),
    })
}

#[cfg(test)]
mod tests {
    use lab_device::Device;
    use lab_harness::{Problem, run};

    use super::*;
    use crate::{NAIVE, VERSIONS, WARPS};

    /// The first tiling is the one in use: its name is listed, and its launch the same.
    #[test]
    fn the_first_tiling_is_the_one_in_use() {
        let mut seen = 0;
        for version in VERSIONS {
            for &dtype in version.info().dtypes {
                let Some(first) = tilings(version, dtype).into_iter().next() else { continue };
                for packs in [true, false] {
                    let chosen = choose(version, dtype, packs, &first).unwrap();
                    let arguments = (version.tiles.arguments)(dtype, packs);
                    assert_eq!(chosen.name, version.name_of(dtype, &arguments));
                    assert_eq!(chosen.block, version.tiles.block);
                    assert_eq!(chosen.threads, version.tiles.threads);
                    assert_eq!(chosen.shared, version.tiles.shared);
                }
                seen += 1;
            }
        }
        assert_eq!(seen, 10, "v4, v5 and v7 in three types, v6 in one");
    }

    #[test]
    fn there_is_something_to_try_and_nothing_twice() {
        for version in [&crate::BLOCKS, &WARPS, &crate::ASYNC, &crate::TENSOR] {
            let all = tilings(version, DType::F32);
            assert!((20..150).contains(&all.len()), "{}: {}", version.info().name, all.len());
        }
    }

    /// On the emulator only what was built with it runs; the rest is refused, as is what is no
    /// tiling of the version.
    #[test]
    fn the_emulator_runs_the_tiling_in_use_alone() {
        let device = Device::emulator().unwrap();
        let problem = Problem::new(WARPS.info().small(), DType::F32);
        let inputs = WARPS.inputs(&problem);
        let all = tilings(&WARPS, DType::F32);
        let mut prepared =
            WARPS.prepare_tiled(&device, &inputs, &problem.options, &all[0]).unwrap();
        prepared.launch().unwrap();
        let own = run(&WARPS, &device, &inputs, &problem.options).unwrap();
        assert_eq!(prepared.outputs().unwrap(), own);
        let refused = |version: &Matmul, tiling: &Tiling| {
            let refused = version.prepare_tiled(&device, &inputs, &problem.options, tiling);
            refused.err().expect("it is refused").to_string()
        };
        let said = refused(&WARPS, &all[1]);
        assert!(said.starts_with("kernels/v5_warps.cu: expected an instantiation"), "{said}");
        let foreign = Tiling::new(&["BM"], [3]);
        let said = refused(&WARPS, &foreign);
        assert!(said.starts_with("tiling of matmul:v5_warps in f32: expected one of"), "{said}");
        let said = refused(&NAIVE, &foreign);
        assert!(said.starts_with("tiling of matmul:v0_naive: expected none: it has no"), "{said}");
    }
}

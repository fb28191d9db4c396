//! The tile parameters that `lab tune` tries.
//!
//! A kernel plugs in with one entry of [`TUNABLE`].

use lab_device::{DType, Instance};
use lab_harness::tiling::candidates;
use lab_harness::{Error, Tiling, Version};

use crate::{Matmul, SQUARE};

/// What can be chosen of a kernel: the values of its template's parameters between the type and `PACK`,
/// in its order, with `BM` and `BN` among them.
struct Tunable {
    /// The template's name.
    kernel: &'static str,
    /// The tilings in a type, the one in use first.
    tilings: fn(Instance, DType) -> Vec<Tiling>,
}

static TUNABLE: &[Tunable] = &[
    Tunable { kernel: "matmul_blocks", tilings: blocks },
    Tunable { kernel: "matmul_warps", tilings: warps },
    Tunable { kernel: "matmul_async", tilings: pipelined },
    Tunable { kernel: "matmul_tensor", tilings: tensor },
];

/// Rows and columns of C a block.
pub(crate) fn sides(instance: &Instance) -> [usize; 2] {
    let side = |name, square| instance.argument(name).map_or(square, |_| instance.size(name));
    let tile = |square| side("TILE", square);
    [side("BM", tile(SQUARE[0] as usize)), side("BN", tile(SQUARE[1] as usize))]
}

/// What an instantiation has of these parameters.
fn in_use<const N: usize>(instance: Instance, names: &[&'static str; N]) -> [usize; N] {
    names.map(|name| instance.size(name))
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

fn blocks(instance: Instance, dtype: DType) -> Vec<Tiling> {
    let depth = depth(dtype);
    let names = ["BM", "BN", "BK", "TM", "TN"];
    candidates(
        &names,
        in_use(instance, &names),
        [&[64, 128, 256], &[64, 128, 256], &[depth, 2 * depth], &[4, 8, 16], &[4, 8]],
        fair,
    )
}

fn warps(instance: Instance, dtype: DType) -> Vec<Tiling> {
    let depth = depth(dtype);
    let names = ["BM", "BN", "BK", "WM", "WN", "TM", "TN"];
    candidates(
        &names,
        in_use(instance, &names),
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

fn pipelined(instance: Instance, _: DType) -> Vec<Tiling> {
    let names = ["BM", "BN", "BK", "WM", "WN", "TM", "TN", "STAGES", "BLOCKS"];
    candidates(
        &names,
        in_use(instance, &names),
        [
            &[128, 256],
            &[128, 256],
            &[8, 16],
            &[64],
            &[32, 64],
            &[8, 16],
            &[8, 16],
            &[2, 3],
            &[1, 2],
        ],
        |t| fair(t) && warps_fit(t),
    )
}

fn tensor(instance: Instance, dtype: DType) -> Vec<Tiling> {
    let depth = 64 / dtype.size();
    let values = [64, 128, 256];
    let names = ["BM", "BN", "BK", "WM", "WN", "STAGES"];
    candidates(
        &names,
        in_use(instance, &names),
        [&values, &values, &[depth, 2 * depth], &[32, 64], &[32, 64, 128], &[3, 4]],
        |t| {
            let warps = t.get("BM") / t.get("WM") * (t.get("BN") / t.get("WN"));
            (4..=16).contains(&warps)
                // A lane has 64 or 128 sums: fewer ask for too much, more do not fit registers.
                && (64 * 32..=64 * 64).contains(&(t.get("WM") * t.get("WN")))
        },
    )
}

/// The tilings of a version; none where its kernel has nothing to choose.
pub(crate) fn tilings(version: &Matmul, dtype: DType) -> Vec<Tiling> {
    let of = TUNABLE.iter().find(|t| t.kernel == version.kernel);
    let of = of.filter(|_| version.info().dtypes.contains(&dtype));
    of.map_or(Vec::new(), |t| (t.tilings)(version.instance(dtype, true), dtype))
}

/// The instantiation with a tiling, in a type and with packs as `like` has them.
///
/// # Errors
/// The version has no such tiling.
pub(crate) fn choose(
    version: &Matmul,
    like: Instance,
    dtype: DType,
    tiling: &Tiling,
) -> Result<String, Error> {
    if !tilings(version, dtype).contains(tiling) {
        let what = format!("tiling of {} in {dtype}", version.info().full_name());
        return Err(Error::bad(what, "one of those that it lists", tiling));
    }
    let (kernel, t, pack) = (version.kernel, dtype.cpp(), like.size("PACK"));
    Ok(format!("{kernel}<{t}, {}, {pack}>", tiling.arguments()))
}

#[cfg(test)]
mod tests {
    use lab_device::Device;
    use lab_harness::{Problem, run};

    use super::*;
    use crate::{NAIVE, VERSIONS, WARPS};

    /// The first tiling is the one in use: its name is listed.
    #[test]
    fn the_first_tiling_is_the_one_in_use() {
        let mut seen = 0;
        for version in VERSIONS {
            for &dtype in version.info().dtypes {
                let Some(first) = tilings(version, dtype).into_iter().next() else { continue };
                for packs in [true, false] {
                    let instance = version.instance(dtype, packs);
                    let chosen = choose(version, instance, dtype, &first).unwrap();
                    assert_eq!(chosen, instance.name());
                    assert_eq!([first.get("BM"), first.get("BN")], sides(&instance));
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

    /// Of a kernel with launch bounds its source says what a block is given; of one without, nobody.
    #[test]
    fn a_block_is_what_the_source_says() {
        let device = Device::emulator().unwrap();
        let kernel = |version: &Matmul| device.load(version.instance(DType::F32, true)).unwrap();
        let block = kernel(&crate::TENSOR).block().unwrap();
        assert_eq!((block.threads, block.dynamic_shared), (256, 4 * (128 + 256) * 64));
        let launch = kernel(&WARPS).grid_over(257).unwrap();
        assert_eq!((launch.grid, launch.block), ([2, 1, 1], [256, 1, 1]));
        let refused = kernel(&NAIVE).block().unwrap_err().to_string();
        assert_eq!(
            refused,
            "matmul_naive<float>: expected __launch_bounds__ with the threads of a block, got none"
        );
        let most = device.facts().max_grid[0] as usize * 256;
        let refused = kernel(&WARPS).grid_over(most + 1).unwrap_err().to_string();
        assert!(refused.contains("grid.x"), "{refused}");
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

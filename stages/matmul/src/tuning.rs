//! The tile parameters that `lab tune` tries.
//!
//! A kernel plugs in with one entry of [`TUNABLE`].

use lab_device::{DType, Instance};
use lab_harness::tiling::candidates;
use lab_harness::{Error, Tiling, Version};

use crate::Matmul;
use crate::sizes::SQUARE;

/// What can be chosen of a kernel: the values of its template's parameters between the type and `PACK`, if it has that,
/// in its order, with `BM` and `BN` among them. v15, v17 and v19 to v21 are not here: they have several tiles, and take one by the size.
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
    Tunable { kernel: "matmul_wgmma", tilings: boxes },
    Tunable { kernel: "matmul_ring", tilings: rings },
    Tunable { kernel: "matmul_roles", tilings: rings },
    Tunable { kernel: "matmul_wide", tilings: rings },
    Tunable { kernel: "matmul_persistent", tilings: stripes },
    Tunable { kernel: "matmul_stores", tilings: stored_stripes },
    Tunable { kernel: "matmul_multicast", tilings: shared_stripes },
    Tunable { kernel: "matmul_turned", tilings: turned },
];

/// What the tiles of a block may take of shared memory, with a kilobyte left for barriers.
const ROOM: usize = 226 << 10;

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

/// Bytes of the tiles in the places of a ring.
fn bytes_of_places(t: &Tiling, dtype: DType) -> usize {
    t.get("PLACES") * (t.get("BM") + t.get("BN")) * t.get("BK") * dtype.size()
}

/// A tile is as deep as its swizzle is wide.
fn boxes(instance: Instance, _: DType) -> Vec<Tiling> {
    let names = ["BM", "BN", "BK"];
    let used = in_use(instance, &names);
    candidates(&names, used, [&[64, 128, 256], &[64, 128, 192, 256], &[used[2]]], |_| true)
}

fn rings(instance: Instance, dtype: DType) -> Vec<Tiling> {
    let names = ["BM", "BN", "BK", "PLACES"];
    let used = in_use(instance, &names);
    let values: [&[usize]; 4] = [&[64, 128], &[64, 128, 192, 256], &[used[2]], &[2, 3, 4, 5, 6]];
    candidates(&names, used, values, |t| bytes_of_places(t, dtype) <= ROOM)
}

/// The tilings of a kernel whose tiles come in stripes, those that `fits` accepts. One or two warpgroups share a tile: each has 64 of its rows, or of a turned
/// one its columns.
fn striped_tilings(
    instance: Instance,
    [rows, columns]: [&[usize]; 2],
    fits: impl Fn(&Tiling) -> bool,
) -> Vec<Tiling> {
    let names = ["BM", "BN", "BK", "PLACES", "HIGH"];
    let used = in_use(instance, &names);
    candidates(&names, used, [rows, columns, &[used[2]], &[3, 4, 5, 6], &[8, 16, 32]], fits)
}

fn stripes(instance: Instance, dtype: DType) -> Vec<Tiling> {
    let fits = |t: &Tiling| bytes_of_places(t, dtype) <= ROOM;
    striped_tilings(instance, [&[64, 128], &[128, 192, 256]], fits)
}

/// The tile of C has a place of its own.
fn stored(t: &Tiling, dtype: DType) -> bool {
    bytes_of_places(t, dtype) + t.get("BM") * t.get("BN") * dtype.size() <= ROOM
}

fn stored_stripes(instance: Instance, dtype: DType) -> Vec<Tiling> {
    striped_tilings(instance, [&[64, 128], &[128, 192, 256]], |t| stored(t, dtype))
}

/// Each of two blocks asks for half of the columns, in whole panels.
fn shared_stripes(instance: Instance, dtype: DType) -> Vec<Tiling> {
    striped_tilings(instance, [&[64, 128], &[128, 256]], |t| stored(t, dtype))
}

fn turned(instance: Instance, dtype: DType) -> Vec<Tiling> {
    let fits = |t: &Tiling| bytes_of_places(t, dtype) <= ROOM;
    striped_tilings(instance, [&[128, 192, 256], &[64, 128]], fits)
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
pub(crate) fn instantiation_with(
    version: &Matmul,
    like: Instance,
    dtype: DType,
    tiling: &Tiling,
) -> Result<String, Error> {
    if !tilings(version, dtype).contains(tiling) {
        let what = format!("tiling of {} in {dtype}", version.info().full_name());
        return Err(Error::bad(what, "one of those that it lists", tiling));
    }
    let (kernel, t) = (version.kernel, dtype.cpp());
    let pack = like.argument("PACK").map_or(String::new(), |pack| format!(", {pack}"));
    Ok(format!("{kernel}<{t}, {}{pack}>", tiling.arguments()))
}

#[cfg(test)]
mod tests {
    use lab_device::Device;
    use lab_harness::{Problem, run};

    use super::*;
    use crate::versions::Blocks;
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
                    let chosen = instantiation_with(version, instance, dtype, &first).unwrap();
                    assert_eq!(chosen, instance.name());
                    assert_eq!([first.get("BM"), first.get("BN")], sides(&instance));
                }
                seen += 1;
            }
        }
        assert_eq!(
            seen,
            10 + 15,
            "v4, v5 and v7 in three types, v6 in one; v8 to v14 in two, v16 in one"
        );
    }

    #[test]
    fn there_is_something_to_try_and_nothing_twice() {
        for version in [&crate::BLOCKS, &WARPS, &crate::ASYNC, &crate::TENSOR] {
            let all = tilings(version, DType::F32);
            assert!((20..150).contains(&all.len()), "{}: {}", version.info().name, all.len());
        }
        for version in VERSIONS.iter().filter(|v| v.loads_boxes()) {
            let all = tilings(version, version.info().dtypes[0]);
            let by_size = matches!(
                version.blocks,
                Blocks::Sized | Blocks::Grid(_) | Blocks::Narrow | Blocks::Snake
            );
            let expected = if by_size { 0..1 } else { 10..80 };
            assert!(expected.contains(&all.len()), "{}: {}", version.info().name, all.len());
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

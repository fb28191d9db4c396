//! `qkv_v1`: attention's two products, a tile of Q a block.
//!
//! O = (Q Kᵀ / √DHQK) V. A block owns some rows of Q and O and takes K and V a tile at a time: no
//! block needs what another has.

#![deny(unsafe_code)]

mod checks;

use lab_device::{DType, Device, Instance};
use lab_families::qkv::{self, Grid, sizes};
use lab_harness::compare::unit;
use lab_harness::{Dim, Dims, Error, Info, Output, Plan, Request, Stage, Version, arguments};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// A tile of Q a block.
#[derive(Debug)]
pub struct BlockTile;

/// Positions and heads are counted by ints; a head's first element by more.
static DIMS: [Dim; 5] = qkv::dims([
    [1, 1, 65535],
    [2, 32, 65535],
    [100, 4096, 1 << 24],
    [64, 64, qkv::MOST_COLUMNS],
    [64, 64, qkv::MOST_COLUMNS],
]);

static INFO: Info = Info {
    stage: "qkv_v1",
    name: "block_tile",
    family: &qkv::FAMILY,
    parent: Some("grid_tile"),
    change: "a Q tile a block, in a loop over the tiles of K and V: no block needs another's",
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dims: &DIMS,
    settings: &[],
    inputs: qkv::INPUTS,
    // f32: the roundings of a sum of S terms, one after the other, grow with √S; S = 2000 is the
    // largest of the suite on the emulator (8e-7), 8192 on a GPU. Halves: the one rounding of the
    // result.
    // An element: both sums are in f32, halves or not; 2.2 units of roundoff in f32.
    outputs: &[Output {
        name: "o",
        bounds: &[(DType::F32, 3e-6), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
        elements: &[
            (DType::F32, 8.0 * unit::F32),
            (DType::F16, 4.0 * unit::F32),
            (DType::BF16, 4.0 * unit::F32),
        ],
    }],
};

/// The one version.
pub static BLOCK_TILE: BlockTile = BlockTile;

/// This stage.
pub static STAGE: Stage = Stage {
    name: "qkv_v1",
    teaches: "two products in one kernel: each block has its own tile of Q and loops over K and V",
    versions: &[&BLOCK_TILE],
    kernels: kernels::KERNELS,
    version_checks: checks::OF_EACH,
    ..Stage::EMPTY
};

impl Version for BlockTile {
    fn info(&self) -> &Info {
        &INFO
    }

    fn test_shapes(&self) -> Vec<Dims> {
        [
            [1, 1, 1, 1, 1],
            [1, 1, 1, 64, 64],
            // One tile of each class.
            [1, 1, 64, 64, 64],
            [1, 1, 64, 128, 128],
            [1, 1, 32, 256, 256],
            // Ragged: no size a multiple of anything.
            [1, 1, 65, 3, 5],
            [1, 1, 67, 100, 100],
            [1, 1, 33, 251, 131],
            // Packs of 4 but not of 8; in one of the two and not in the other.
            [1, 1, 30, 36, 44],
            [1, 1, 20, 64, 62],
            [1, 1, 20, 62, 64],
            // Heads, narrow and wide, of unlike widths.
            [2, 3, 40, 64, 64],
            [3, 1, 5, 1, 64],
            [1, 2, 70, 64, 1],
            [2, 2, 9, 16, 200],
            [1, 3, 35, 256, 8],
            // Several tiles.
            [1, 2, 200, 64, 64],
            [1, 1, 130, 128, 72],
            [1, 1, 100, 24, 256],
            // A long sum; `large_problems` has longer ones.
            [1, 1, 700, 8, 8],
        ]
        .map(sizes)
        .to_vec()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let dtype = request.dtype;
        let [b, nh, s, dhqk, dhhv] = qkv::sizes_of(&request.dims);
        let widest = 16 / dtype.size();
        let packs = dhqk.is_multiple_of(widest) && dhhv.is_multiple_of(widest);
        let pack = if packs { widest } else { 1 };
        let fits = |i: &Instance| {
            i.has("T", dtype.cpp()) && dhqk.max(dhhv) <= i.size("DH") && i.size("PACK") == pack
        };
        let instance = kernels::BLOCK_TILE.instances("qkv_block_tile").find(fits);
        let instance = instance.expect("DHQK and DHHV of a checked problem");
        let Grid { tiles, blocks } = Grid::of(&request.dims, instance.size("TQ"))?;
        let kernel = device.load(instance)?;
        let launch = kernel.grid([blocks, 1, 1])?;

        let mut plan = Plan::new(device);
        let [q, k, v] = request.inputs(&mut plan, ["q", "k", "v"]);
        let o = plan.output("o", dtype, &[b, nh, s, dhhv]);
        let scale = 1.0 / (dhqk as f64).sqrt();
        plan.launch(&kernel, launch, arguments![q, k, v, o, tiles, S: s, dhqk, dhhv, scale])?;
        Ok(plan)
    }
}

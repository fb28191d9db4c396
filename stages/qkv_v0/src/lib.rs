//! `qkv_v0`: attention's two products, wrong on purpose.
//!
//! O = (Q Kᵀ / √DHQK) V by a cooperative launch that works on one Q tile at a time, as if
//! `__shared__` arrays were shared by the grid. With one block (`--set blocks=1`) it is right, with
//! several it is wrong, and the tests hold it to both.

#![deny(unsafe_code)]

mod checks;

use lab_device::emulator::Kind;
use lab_device::{DType, Device};
use lab_families::qkv::{self, sizes};
use lab_harness::compare::unit;
use lab_harness::{
    Dim, Dims, Error, Expected, Info, Mistake, Options, Output, Plan, Request, Setting, Stage,
    Version, arguments,
};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// The whole grid on one tile.
#[derive(Debug)]
pub struct GridTile;

/// Enough for the mistake to show, few enough to be resident together on any device.
const MOST_BLOCKS: u32 = 32;

/// The timed problem is the small one: it is never timed, and nobody would wait for a longer one.
static DIMS: [Dim; 5] =
    qkv::dims([[1, 1, 65535], [2, 2, 65535], [40, 40, 1 << 20], [64, 64, 256], [64, 64, 256]]);

static INFO: Info = Info {
    stage: "qkv_v0",
    name: "grid_tile",
    family: &qkv::FAMILY,
    parent: None,
    change: "all blocks work on one Q tile, each on what it has of it in its own shared memory",
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dims: &DIMS,
    settings: &[Setting::number("blocks", "blocks of the grid, 1 to 32", "4")],
    inputs: qkv::INPUTS,
    // With one block. f32: the roundings of a sum of S terms, one after the other, grow with √S;
    // S = 300 is the largest of the suite (3e-7). Halves: the one rounding of the result.
    // An element: both sums are in f32, as those of `qkv_v1`.
    outputs: &[Output {
        name: "o",
        bounds: &[(DType::F32, 1e-6), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
        elements: &[
            (DType::F32, 8.0 * unit::F32),
            (DType::F16, 4.0 * unit::F32),
            (DType::BF16, 4.0 * unit::F32),
        ],
    }],
};

/// What this stage is kept for.
pub static MISTAKE: Mistake = Mistake {
    because: "each block reads whole tiles, and its shared memory holds only what it loaded itself",
    kind: Kind::Uninitialised,
    source: &kernels::GRID_TILE,
    lines: &["s += q_tile[i][c] * k_tile[j][c]", "sum[n] += scores[i][j] * v_tile[j][c]"],
};

/// The one version.
pub static GRID_TILE: GridTile = GridTile;

/// This stage.
pub static STAGE: Stage = Stage {
    name: "qkv_v0",
    teaches: "two products in one kernel, wrong on purpose: shared memory belongs to a block, not to the grid",
    versions: &[&GRID_TILE],
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

/// The number of blocks that is asked for.
fn blocks(options: &Options) -> Result<u32, Error> {
    let asked = options.number(&INFO, "blocks");
    if asked.fract() == 0.0 && (1.0..=f64::from(MOST_BLOCKS)).contains(&asked) {
        return Ok(asked as u32);
    }
    let expected = format!("a whole number from 1 to {MOST_BLOCKS}");
    Err(Error::bad("--set blocks", expected, asked))
}

impl Version for GridTile {
    fn info(&self) -> &Info {
        &INFO
    }

    fn expected(&self, options: &Options) -> Expected {
        match blocks(options) {
            Ok(1) | Err(_) => Expected::Right,
            Ok(_) => Expected::Wrong(&MISTAKE),
        }
    }

    /// Wrong for certain, whatever the shared memories hold before the launch. A head has two Q
    /// tiles at least, and some blocks have outputs of rows whose scores they never write: sums of
    /// the same numbers for every Q tile. Two rows of O come out equal, and those of the reference
    /// are far apart.
    fn test_shapes(&self) -> Vec<Dims> {
        [
            [1, 1, 32, 64, 64],
            [1, 2, 40, 64, 64],
            [2, 1, 33, 20, 100],
            [1, 1, 48, 128, 32],
            [1, 1, 24, 200, 256],
        ]
        .map(sizes)
        .to_vec()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let dtype = request.dtype;
        let [b, nh, s, dhqk, dhhv] = qkv::sizes_of(&request.dims);
        let heads = b * nh;
        if heads > i32::MAX as usize {
            return Err(Error::bad("B NH", format!("at most {} heads in all", i32::MAX), heads));
        }
        let instance =
            qkv::instance_for(&kernels::GRID_TILE, "qkv_grid_tile", dtype, &request.dims);
        let kernel = device.load(instance)?;
        let launch = kernel.grid([blocks(request.options())?, 1, 1])?.cooperative();

        let mut plan = Plan::new(device);
        let [q, k, v] = request.inputs(&mut plan, ["q", "k", "v"]);
        let o = plan.output("o", dtype, &[b, nh, s, dhhv]);
        let scale = 1.0 / (dhqk as f64).sqrt();
        plan.launch(&kernel, launch, arguments![q, k, v, o, heads, S: s, dhqk, dhhv, scale])?;
        Ok(plan)
    }
}

//! `qkv_v1`: attention's two products, a tile of Q a block.
//!
//! O = (Q Kᵀ / √DHQK) V. A block owns some rows of Q and O and takes K and V a tile at a time: no
//! block needs what another has.

mod checks;

use lab_device::{DType, Device, Launch};
use lab_harness::program::{Program, scalar};
use lab_harness::qkv::{self, sizes};
use lab_harness::{
    Cost, Dim, Dims, Error, Info, Options, Output, Prepared, Problem, Stage, Tensors, Version,
};

#[allow(missing_docs)]
pub mod kernels {
    //! The kernel files, embedded by the build script.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// A tile of Q a block.
#[derive(Debug)]
pub struct BlockTile;

const THREADS: u32 = 128;

/// The tiles of a class of heads: those with at most so many columns.
#[derive(Clone, Copy, Debug)]
struct Tiles {
    /// Rows of Q.
    tq: usize,
    /// Rows of K and V.
    tkv: usize,
    /// Columns.
    dh: usize,
}

/// As the build script lists them.
const CLASSES: [Tiles; 3] = [
    Tiles { tq: 64, tkv: 64, dh: 64 },
    Tiles { tq: 64, tkv: 64, dh: 128 },
    Tiles { tq: 32, tkv: 32, dh: 256 },
];

impl Tiles {
    /// The smallest class that has room for both; none above 256, which the sizes exclude.
    fn of(dhqk: usize, dhhv: usize) -> Self {
        let fits = CLASSES.into_iter().find(|c| dhqk.max(dhhv) <= c.dh);
        fits.expect("DHQK and DHHV of a checked problem")
    }

    /// Bytes of a Q tile, a tile of K or V, and the scores, with the padding of each row.
    const fn shared(self) -> usize {
        size_of::<f32>() * ((self.tq + self.tkv) * (self.dh + 4) + self.tq * (self.tkv + 16))
    }
}

/// Positions and heads are counted by ints; a head's first element by more.
static DIMS: [Dim; 5] = qkv::dims([
    [1, 1, 65535],
    [2, 32, 65535],
    [100, 4096, 1 << 24],
    [64, 64, CLASSES[2].dh],
    [64, 64, CLASSES[2].dh],
]);

static INFO: Info = Info {
    stage: "qkv_v1",
    name: "block_tile",
    family: qkv::FAMILY,
    parent: Some("grid_tile"),
    change: "a Q tile a block, in a loop over the tiles of K and V: no block needs another's",
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dims: &DIMS,
    settings: &[],
    inputs: qkv::INPUTS,
    // f32: the roundings of a sum of S terms, one after the other, grow with √S; S = 2000 is the
    // largest of the suite on the emulator (8e-7), 8192 on a GPU. Halves: the one rounding of the
    // result.
    outputs: &[Output {
        name: "o",
        bounds: &[(DType::F32, 3e-6), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
    }],
};

/// The one version.
pub static BLOCK_TILE: BlockTile = BlockTile;

/// This stage.
pub static STAGE: Stage = Stage {
    name: "qkv_v1",
    teaches: "two products in one kernel: each block a tile of its own, K and V in a loop",
    versions: &[&BLOCK_TILE],
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

impl Version for BlockTile {
    fn info(&self) -> &Info {
        &INFO
    }

    fn inputs(&self, problem: &Problem) -> Tensors {
        qkv::inputs(problem)
    }

    fn reference(&self, inputs: &Tensors, _options: &Options) -> Vec<(&'static str, Vec<f64>)> {
        qkv::reference(inputs)
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        qkv::cost(dims, dtype)
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

    fn prepare(
        &self,
        device: &Device,
        inputs: &Tensors,
        _options: &Options,
    ) -> Result<Box<dyn Prepared>, Error> {
        let (dims, dtype) = INFO.problem_of(inputs)?;
        let [b, nh, s, dhqk, dhhv] = qkv::of(&dims);
        let tiles = Tiles::of(dhqk, dhhv);
        let q_tiles = s.div_ceil(tiles.tq);
        let blocks = b * nh * q_tiles;
        let grid = i32::try_from(blocks).map_err(|_| {
            let what = format!("B NH ceil(S / {})", tiles.tq);
            Error::bad(what, format!("at most {}, one a block", i32::MAX), blocks)
        })?;
        let widest = 16 / dtype.size();
        let packs = dhqk.is_multiple_of(widest) && dhhv.is_multiple_of(widest);
        let pack = if packs { widest } else { 1 };
        let Tiles { tq, tkv, dh } = tiles;
        let name = format!("qkv_block_tile<{}, {tq}, {tkv}, {dh}, {pack}>", dtype.cpp());
        let kernel = device.kernel(&kernels::BLOCK_TILE, &name)?;
        let launch = Launch::new(grid as u32, THREADS).shared(tiles.shared());

        let mut program = Program::new(device);
        let q = program.input(&inputs["q"])?.read();
        let k = program.input(&inputs["k"])?.read();
        let v = program.input(&inputs["v"])?.read();
        let o = program.output("o", dtype, &[b, nh, s, dhhv])?.write();
        let scale = scalar((1.0 / (dhqk as f64).sqrt()) as f32);
        let [q_tiles, s, dhqk, dhhv] = [q_tiles, s, dhqk, dhhv].map(|size| scalar(size as i32));
        program.launch(kernel, launch, [q, k, v, o, q_tiles, s, dhqk, dhhv, scale]);
        Ok(Box::new(program))
    }
}

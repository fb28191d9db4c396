//! `matmul`: C = A B in f32 arithmetic, from a thread an element to tiles of tiles.
//!
//! Each version is a kernel file in `kernels/` and changes one thing of its parent. Its tiles stand in
//! the build script; sizes, reference and error bounds are the same for all.

mod boxes;
mod checks;
mod cublas;
mod host;
mod ladder;
pub mod linear;
mod linear_checks;
mod model;
mod narrow_round;
mod tuning;
pub mod weight_gradient;

use lab_device::{Arithmetic, DType, Device, Instance, KernelSource, Launch};
use lab_harness::compare::each;
use lab_harness::compare::unit;
use lab_harness::suite::VersionCheck;
use lab_harness::{
    Cost, Dim, Dims, Error, Family, Info, Input, Magnitudes, Options, Output, Plan, Problem,
    Reference, Request, Shapes, Stage, Tensors, Tiling, Version, arguments,
};

#[allow(missing_docs)]
pub mod kernels {
    //! The kernel files, embedded by the build script.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// One version of the matrix product.
#[derive(Debug)]
pub struct Matmul {
    info: Info,
    source: &'static KernelSource,
    kernel: &'static str,
    blocks: Blocks,
}

/// How blocks share C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocks {
    /// A tile each; blockIdx.x counts down its rows.
    Down,
    /// A tile each; blockIdx.x counts along its columns.
    Along,
    /// The same; TMA loads the tiles of A and B.
    Boxes,
    /// Clusters of so many blocks, as many as run at once: they go from tile to tile.
    Stay { cluster: u32, stores: bool },
    /// By the size of the product ([`model::Way`]).
    Sized,
    /// Where tiles are few, all multiprocessors share them.
    Grid(model::Shared),
    /// By the size; the last round has narrower tiles.
    Narrow,
    /// As v20, and through operands that the L2 cache does not hold back and forth.
    Snake,
}

/// Blocks of 32 rows or columns of C are the smallest here, and a grid has 65,535 in y. Offsets
/// within a matrix's tile then fit 32 bits, too: a kernel computes in 64 where a tile starts.
const LARGEST: usize = 32 * 65535;

const INFO: Info = Info {
    stage: "matmul",
    name: "v0_naive",
    family: &Product,
    parent: None,
    change: "a thread an element of C; threadIdx.x runs down the rows",
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dims: &[
        Dim::new("G", "matrices of the batch", [1, 1, 65535]),
        Dim::new("M", "rows of A and C", [96, 4096, LARGEST]),
        Dim::new("N", "columns of B and C", [96, 4096, LARGEST]),
        Dim::new("K", "columns of A, rows of B", [96, 4096, LARGEST]),
    ],
    settings: &[],
    inputs: &[Input::new("A", &["G..", "M", "K"]), Input::new("B", &["G..", "K", "N"])],
    // f32: the roundings of a sum of K terms, one after the other, grow with √K, and K = 4096 is
    // the largest of the suite. Halves: the one rounding of the result.
    // An element: the same sum in f32, 3.8 units of roundoff of Σ |a||b| at K = 4096; of halves 1 at most, and mostly
    // hidden behind the rounding of the result.
    outputs: &[Output {
        name: "C",
        bounds: &[(DType::F32, 4e-6), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
        elements: &[
            (DType::F32, 12.0 * unit::F32),
            (DType::F16, 4.0 * unit::F32),
            (DType::BF16, 4.0 * unit::F32),
        ],
    }],
};

/// Rows and columns of C a block where a thread has an element: those of its threads.
const SQUARE: [u32; 2] = [32, 32];

/// A thread an element, x down the rows.
pub static NAIVE: Matmul =
    Matmul { info: INFO, source: &kernels::V0_NAIVE, kernel: "matmul_naive", blocks: Blocks::Down };

/// x along the columns.
pub static COALESCED: Matmul = Matmul {
    info: Info {
        name: "v1_coalesced",
        parent: Some("v0_naive"),
        change: "threadIdx.x runs along the columns: the lanes of a warp share their sectors",
        ..INFO
    },
    source: &kernels::V1_COALESCED,
    kernel: "matmul_coalesced",
    blocks: Blocks::Along,
};

/// Tiles in shared memory.
pub static TILED: Matmul = Matmul {
    info: Info {
        name: "v2_tiled",
        parent: Some("v1_coalesced"),
        change: "tiles of A and B in shared memory: each element is fetched once for 32 uses",
        ..INFO
    },
    source: &kernels::V2_TILED,
    kernel: "matmul_tiled",
    blocks: Blocks::Along,
};

/// Several rows a thread.
pub static ROWS: Matmul = Matmul {
    info: Info {
        name: "v3_rows",
        parent: Some("v2_tiled"),
        change: "8 rows of C a thread: 9 loads from shared memory for 8 multiply-adds, not 16",
        ..INFO
    },
    source: &kernels::V3_ROWS,
    kernel: "matmul_rows",
    blocks: Blocks::Along,
};

/// A square of C a thread, 16 bytes a load.
pub static BLOCKS: Matmul = Matmul {
    info: Info {
        name: "v4_blocks",
        parent: Some("v3_rows"),
        change: "8 x 8 elements of C a thread, in loads of 16 bytes: 4 loads for 64 multiply-adds",
        ..INFO
    },
    source: &kernels::V4_BLOCKS,
    kernel: "matmul_blocks",
    blocks: Blocks::Along,
};

/// A tile of C a warp.
pub static WARPS: Matmul = Matmul {
    info: Info {
        name: "v5_warps",
        parent: Some("v4_blocks"),
        change: "a warp's threads lie in a square: it asks for fewer different elements",
        ..INFO
    },
    source: &kernels::V5_WARPS,
    kernel: "matmul_warps",
    blocks: Blocks::Along,
};

/// Tiles on their way while others are computed with.
pub static ASYNC: Matmul = Matmul {
    info: Info {
        name: "v6_async",
        parent: Some("v5_warps"),
        change: "the next tiles are copied, and the next elements loaded, during the arithmetic",
        // What cp.async moves cannot be converted, and it moves 4 bytes at least.
        dtypes: &[DType::F32],
        ..INFO
    },
    source: &kernels::V6_ASYNC,
    kernel: "matmul_async",
    blocks: Blocks::Along,
};

/// On the tensor cores.
pub static MMA: Matmul = Matmul {
    info: Info {
        name: "v7_mma",
        parent: Some("v6_async"),
        change: "warps multiply 16 x 8 tiles on the tensor cores, f32 as TF32",
        // f32: each factor is rounded to TF32, which is off by 2⁻¹¹ at most; so a product is by 2⁻¹⁰, and
        // a sum of one term may be. Longer sums are off by less.
        outputs: &[Output {
            name: "C",
            bounds: &[(DType::F32, 9.8e-4), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
            elements: &[
                (DType::F32, 2.0 * unit::TF32 + 12.0 * unit::F32),
                (DType::F16, 4.0 * unit::F32),
                (DType::BF16, 4.0 * unit::F32),
            ],
        }],
        ..INFO
    },
    source: &kernels::V7_MMA,
    kernel: "matmul_mma",
    blocks: Blocks::Along,
};

/// The same with nothing between the products.
pub static TENSOR: Matmul = Matmul {
    info: Info {
        name: "v7_tensor",
        parent: Some("v7_mma"),
        change: "copies and loads among the products, from addresses that move on: nothing computed anew",
        ..MMA.info
    },
    source: &kernels::V7_TENSOR,
    kernel: "matmul_tensor",
    blocks: Blocks::Along,
};

/// By Hopper's instructions.
pub static WGMMA: Matmul = Matmul {
    info: Info {
        name: "v8_wgmma",
        parent: Some("v7_tensor"),
        change: "TMA brings the tiles, four warps multiply them where they lie: no copies through registers",
        // What lies along the columns of B wgmma takes of halves alone.
        dtypes: &[DType::F16, DType::BF16],
        ..MMA.info
    },
    source: &kernels::V8_WGMMA,
    kernel: "matmul_wgmma",
    blocks: Blocks::Boxes,
};

/// A ring of tiles.
pub static RING: Matmul = Matmul {
    info: Info {
        name: "v9_ring",
        parent: Some("v8_wgmma"),
        change: "places for several tiles: while one is multiplied the next are on their way",
        ..WGMMA.info
    },
    source: &kernels::V9_RING,
    kernel: "matmul_ring",
    blocks: Blocks::Boxes,
};

/// Warps of two kinds.
pub static ROLES: Matmul = Matmul {
    info: Info {
        name: "v10_roles",
        parent: Some("v9_ring"),
        change: "a warp that asks for tiles, others that multiply: no barrier for all in the loop",
        ..WGMMA.info
    },
    source: &kernels::V10_ROLES,
    kernel: "matmul_roles",
    blocks: Blocks::Boxes,
};

/// As wide a tile as registers allow.
pub static WIDE: Matmul = Matmul {
    info: Info {
        name: "v11_wide",
        parent: Some("v10_roles"),
        change: "tiles of 128 x 256, for which those that ask hand over their registers",
        ..WGMMA.info
    },
    source: &kernels::V11_WIDE,
    kernel: "matmul_wide",
    blocks: Blocks::Boxes,
};

/// Blocks that stay.
pub static PERSISTENT: Matmul = Matmul {
    info: Info {
        name: "v12_persistent",
        parent: Some("v11_wide"),
        change: "a block a multiprocessor goes from tile to tile: the next one's loads hide the last one's stores",
        ..WGMMA.info
    },
    source: &kernels::V12_PERSISTENT,
    kernel: "matmul_persistent",
    blocks: Blocks::Stay { cluster: 1, stores: false },
};

/// Asynchronous stores.
pub static STORES: Matmul = Matmul {
    info: Info {
        name: "v13_stores",
        parent: Some("v12_persistent"),
        change: "C goes by shared memory and TMA: nobody waits for its stores",
        ..WGMMA.info
    },
    source: &kernels::V13_STORES,
    kernel: "matmul_stores",
    blocks: Blocks::Stay { cluster: 1, stores: true },
};

/// Pairs of blocks.
pub static MULTICAST: Matmul = Matmul {
    info: Info {
        name: "v14_multicast",
        parent: Some("v13_stores"),
        change: "two blocks share their tile of B: each asks for half of it, for both",
        ..WGMMA.info
    },
    source: &kernels::V14_MULTICAST,
    kernel: "matmul_multicast",
    blocks: Blocks::Stay { cluster: 2, stores: true },
};

/// Tiles by the size of the product.
pub static SPLIT: Matmul = Matmul {
    info: Info {
        name: "v15_split",
        parent: Some("v13_stores"),
        change: "few tiles: smaller ones, or several blocks for one, each with a part of k",
        settings: &[boxes::TILE],
        ..WGMMA.info
    },
    source: &kernels::V15_SPLIT,
    kernel: "matmul_split",
    blocks: Blocks::Sized,
};

/// TF32, turned.
pub static TURNED: Matmul = Matmul {
    info: Info {
        name: "v16_turned",
        parent: Some("v12_persistent"),
        change: "f32 as TF32: B comes to wgmma through registers, as the first operand",
        dtypes: &[DType::F32],
        // The tensor cores cut what they find in shared memory, by 2⁻¹⁰ at most; B is rounded.
        outputs: &[Output {
            name: "C",
            bounds: &[(DType::F32, 1.47e-3)],
            elements: &[(DType::F32, 3.0 * unit::TF32 + 12.0 * unit::F32)],
        }],
        ..WGMMA.info
    },
    source: &kernels::V16_TURNED,
    kernel: "matmul_turned",
    blocks: Blocks::Stay { cluster: 1, stores: false },
};

/// Parts of k by all multiprocessors.
pub static GRID: Matmul = Matmul {
    info: Info {
        name: "v17_grid",
        parent: Some("v15_split"),
        change: "parts of k for all multiprocessors, no clusters; sums by way of device memory",
        settings: &[boxes::PARTS],
        ..WGMMA.info
    },
    source: &kernels::V17_GRID,
    kernel: "matmul_grid",
    blocks: Blocks::Grid(model::Shared::Halves),
};

/// TF32, parts of k by all multiprocessors.
pub static TURNED_GRID: Matmul = Matmul {
    info: Info {
        name: "v18_turned_grid",
        parent: Some("v16_turned"),
        change: "f32 as TF32: parts of k for all multiprocessors, as v17",
        settings: &[boxes::PARTS],
        ..TURNED.info
    },
    source: &kernels::V18_TURNED_GRID,
    kernel: "matmul_turned_grid",
    blocks: Blocks::Grid(model::Shared::Turned),
};

/// Narrower tiles in the last round.
pub static NARROW: Matmul = Matmul {
    info: Info {
        name: "v19_narrow",
        parent: Some("v17_grid"),
        change: "the last round is cut into narrower tiles: hardly a block has none",
        settings: &[narrow_round::LAST],
        ..WGMMA.info
    },
    source: &kernels::V19_NARROW,
    kernel: "matmul_narrow",
    blocks: Blocks::Narrow,
};

/// A tile is stored behind the next one's products.
pub static BEHIND: Matmul = Matmul {
    info: Info {
        name: "v20_behind",
        parent: Some("v19_narrow"),
        change: "a tile is stored while the next one's products run: rounded sums stay in registers",
        ..NARROW.info
    },
    source: &kernels::V20_BEHIND,
    kernel: "matmul_behind",
    blocks: Blocks::Narrow,
};

/// Back and forth through the operands.
pub static SNAKE: Matmul = Matmul {
    info: Info {
        name: "v21_snake",
        parent: Some("v20_behind"),
        change: "back and forth through k and the columns: what the L2 cache saw last comes first",
        ..BEHIND.info
    },
    source: &kernels::V21_SNAKE,
    kernel: "matmul_snake",
    blocks: Blocks::Snake,
};

/// Every version, in the order of the story.
pub static VERSIONS: &[&Matmul] = &[
    &NAIVE,
    &COALESCED,
    &TILED,
    &ROWS,
    &BLOCKS,
    &WARPS,
    &ASYNC,
    &MMA,
    &TENSOR,
    &WGMMA,
    &RING,
    &ROLES,
    &WIDE,
    &PERSISTENT,
    &STORES,
    &MULTICAST,
    &SPLIT,
    &TURNED,
    &GRID,
    &TURNED_GRID,
    &NARROW,
    &BEHIND,
    &SNAKE,
];

/// This stage.
pub static STAGE: Stage = Stage {
    name: "matmul",
    teaches: "one product of matrices, each number fetched less often from version to version",
    versions: &[
        &NAIVE,
        &COALESCED,
        &TILED,
        &ROWS,
        &BLOCKS,
        &WARPS,
        &ASYNC,
        &MMA,
        &TENSOR,
        &WGMMA,
        &RING,
        &ROLES,
        &WIDE,
        &PERSISTENT,
        &STORES,
        &MULTICAST,
        &SPLIT,
        &TURNED,
        &GRID,
        &TURNED_GRID,
        &NARROW,
        &BEHIND,
        &SNAKE,
        &linear::LINEAR,
        &weight_gradient::WEIGHT_GRADIENT,
    ],
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    peers: &[&cublas::CUBLAS, &cublas::TF32, &host::Blas, &host::Naive],
    ..Stage::EMPTY
};

/// G, M, N, K.
fn sizes([g, m, n, k]: [usize; 4]) -> Dims {
    Dims::new([("G", g), ("M", m), ("N", n), ("K", k)])
}

/// The leading indices of C: those of A, which B must have too.
///
/// # Errors
/// B has others.
fn leading_sizes(shapes: &Shapes) -> Result<&[usize], Error> {
    let [a, b] = ["A", "B"].map(|name| {
        let sizes = &shapes[name].sizes;
        &sizes[..sizes.len() - 2]
    });
    if a == b {
        return Ok(a);
    }
    let expected = format!("{a:?} before K and N, as 'A' has before M and K");
    Err(Error::Tensor { name: "B".into(), expected, got: shapes["B"].to_string() })
}

/// C = A B, of any number of matrices.
#[derive(Debug)]
struct Product;

impl Family for Product {
    fn name(&self) -> &'static str {
        "matmul"
    }

    /// Standard normal. The error is measured relative to C, so that no scale would change it; and
    /// C, about √K, stays in the range of f16 for every K there may be.
    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        let [g, m, n, k] = ["G", "M", "N", "K"].map(|d| problem.dims.get(d));
        let all = [("A", problem.normal(0, &[g, m, k])), ("B", problem.normal(1, &[g, k, n]))];
        lab_harness::tensor::tensors(all)
    }

    fn reference(
        &self,
        info: &Info,
        inputs: &Tensors,
        _: &Options,
    ) -> Vec<(&'static str, Vec<f64>)> {
        let (dims, _) = info.problem_of(inputs).expect("inputs that were checked");
        let [m, n, k] = ["M", "N", "K"].map(|d| dims.get(d));
        let (a, b) = (inputs["A"].values(), inputs["B"].values());
        vec![("C", lab_reference::matmul::matmul(&a, &b, m, n, k))]
    }

    /// |A| |B|.
    fn magnitudes(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
        _: &Reference,
    ) -> Magnitudes {
        let absolute = ["A", "B"].map(|name| (name, inputs[name].absolute()));
        each(self.reference(info, &lab_harness::tensor::tensors(absolute), options))
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [g, m, n, k] = ["G", "M", "N", "K"].map(|d| dims.get(d) as f64);
        Cost {
            flops: 2.0 * g * m * n * k,
            bytes: g * (m * k + k * n + m * n) * dtype.size() as f64,
        }
    }

    fn bench_shapes(&self, info: &Info, dtype: DType) -> Vec<Dims> {
        ladder::shapes(info, dtype)
    }

    fn checks(&self) -> &'static [VersionCheck] {
        checks::OF_EACH
    }
}

impl Version for Matmul {
    fn info(&self) -> &Info {
        &self.info
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let all = [
            [1, 1, 1, 1],
            [1, 32, 32, 32],
            [1, 128, 128, 8],
            // Ragged: no size a multiple of anything.
            [1, 33, 31, 65],
            [1, 1, 1, 300],
            [1, 5, 7, 1],
            [1, 129, 131, 1],
            // Tall, wide.
            [1, 300, 3, 20],
            [1, 3, 300, 20],
            [1, 200, 8, 16],
            [1, 8, 200, 16],
            // Several tiles; packs of 4 but not of 8; packs in K but not in N, and the other way.
            [1, 256, 256, 32],
            [1, 132, 140, 36],
            [1, 65, 66, 64],
            [1, 65, 64, 66],
            // Batches, the second of tiles that end within the matrix.
            [3, 32, 32, 16],
            [3, 35, 40, 24],
            [2, 17, 5, 9],
            // More tiles than a stripe of them is high, in two columns.
            [1, 2200, 264, 8],
            // As long a sum as is timed.
            [1, 3, 5, 4096],
            [1, 8, 8, 4096],
        ];
        // A single sum may come near zero, and the error that TF32 makes is large beside it.
        let is_fit = |&&shape: &&[usize; 4]| !self.is_turned() || shape != [1, 1, 1, 300];
        all.iter().filter(is_fit).map(|&shape| sizes(shape)).collect()
    }

    fn arithmetic(&self, dtype: DType) -> Option<Arithmetic> {
        match (self.on_tensor_cores(), dtype) {
            (true, DType::F32) => Some(Arithmetic::Tf32),
            _ => Arithmetic::fastest_for(dtype),
        }
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        match self.blocks {
            Blocks::Down | Blocks::Along => vec![self.source],
            Blocks::Boxes | Blocks::Stay { .. } => vec![self.source, TENSOR.source],
            Blocks::Sized => vec![self.source, STORES.source, TENSOR.source],
            Blocks::Grid(shared) => [vec![self.source], shared.otherwise().sources()].concat(),
            Blocks::Narrow => [vec![self.source], GRID.sources()].concat(),
            Blocks::Snake => [vec![self.source], BEHIND.sources()].concat(),
        }
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let leading = leading_sizes(request.shapes())?;
        let [g, m, n, k] = ["G", "M", "N", "K"].map(|d| request.dim(d));
        let dtype = request.dtype;
        if self.loads_boxes() {
            return boxes::plan(self, device, request, leading);
        }
        let instance = self.instance(dtype, self.packs(dtype, n, k));
        let [rows, columns] = tuning::sides(&instance);
        let tiles = m.div_ceil(rows) * n.div_ceil(columns) * g;
        // Multiprocessors without a tile cost more than smaller tiles do.
        let few = tiles * 10 < device.facts().multiprocessors as usize * 9;
        let narrow = self.narrower(&instance).filter(|_| few);
        let instance = narrow.unwrap_or(instance);
        let (kernel, [rows, columns]) = match request.tiling {
            None => (device.load(instance)?, tuning::sides(&instance)),
            Some(tiling) => {
                let name = tuning::choose(self, instance, dtype, tiling)?;
                let kernel = device.instantiate(self.source, &name, instance.name())?;
                (kernel, [tiling.get("BM"), tiling.get("BN")])
            }
        };
        let tiles = [m.div_ceil(rows), n.div_ceil(columns)];
        let [x, y] = if self.blocks == Blocks::Down { tiles } else { [tiles[1], tiles[0]] };
        let grid = [x as u32, y as u32, g as u32];
        let launch = match kernel.block() {
            Ok(block) => Launch::of(grid, block),
            // A thread an element: its sides are the host's choice.
            Err(_) => Launch::new_3d(grid, [SQUARE[0], SQUARE[1], 1]),
        };

        let mut plan = Plan::new(device);
        let [a, b] = request.inputs(&mut plan, ["A", "B"]);
        let c = plan.output("C", dtype, &[leading, &[m, n]].concat());
        plan.launch(&kernel, launch, arguments![A: a, B: b, C: c, M: m, N: n, K: k])?;
        Ok(plan)
    }

    fn tilings(&self, _dims: &Dims, dtype: DType) -> Vec<Tiling> {
        tuning::tilings(self, dtype)
    }
}

impl Matmul {
    /// The instantiation for a type, with packs or single elements where its template has both.
    fn instance(&self, dtype: DType, packs: bool) -> Instance {
        let pack = if packs { 16 / dtype.size() } else { 1 }.to_string();
        let fits =
            |i: &Instance| i.has("T", dtype.cpp()) && i.argument("PACK").is_none_or(|p| p == pack);
        self.source.instances(self.kernel).find(fits).expect("a type that the version has")
    }

    /// The one with narrower tiles that is the same otherwise, if there is one.
    fn narrower(&self, than: &Instance) -> Option<Instance> {
        let same = |name| move |i: &Instance| i.argument(name) == than.argument(name);
        let fits = |i: &Instance| {
            same("T")(i)
                && same("PACK")(i)
                && than.argument("BN").is_some_and(|_| i.size("BN") < than.size("BN"))
        };
        self.source.instances(self.kernel).find(fits)
    }

    /// Whether rows can be read in packs of 16 bytes.
    fn packs(&self, dtype: DType, n: usize, k: usize) -> bool {
        let pack = 16 / dtype.size();
        n.is_multiple_of(pack) && (k.is_multiple_of(pack) || self.k_is_free())
    }

    fn on_tensor_cores(&self) -> bool {
        [MMA.kernel, TENSOR.kernel].contains(&self.kernel) || self.loads_boxes()
    }

    /// Whether TMA brings its tiles.
    fn loads_boxes(&self) -> bool {
        !matches!(self.blocks, Blocks::Down | Blocks::Along)
    }

    /// Whether B comes through registers, and A is cut.
    fn is_turned(&self) -> bool {
        [TURNED.kernel, TURNED_GRID.kernel].contains(&self.kernel)
    }

    /// Whether A is read one element at a time, so that K need not be a multiple of a pack.
    fn k_is_free(&self) -> bool {
        self.kernel == ASYNC.kernel
    }
}

//! The versions, in the order of the story: what each changes, its kernel, and how its blocks share C.

use lab_device::{DType, KernelSource};
use lab_harness::compare::unit;
use lab_harness::{Dim, Info, Input, Output};

use crate::family::Product;
use crate::settings::{LAST, PARTS, TILE};
use crate::sizes::LARGEST;
use crate::{kernels, model};

/// One version of the matrix product.
#[derive(Debug)]
pub struct Matmul {
    pub(crate) info: Info,
    pub(crate) source: &'static KernelSource,
    pub(crate) kernel: &'static str,
    pub(crate) blocks: Blocks,
}

/// How blocks share C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocks {
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
        // Halves: what a sum has no digits for tensor cores cut off, at each of its K / 16 steps: an element of an H200 is off by
        // 6 units of its magnitude at K = 8192, by 15 at 16384 (weight_gradient.rs).
        outputs: &[Output {
            name: "C",
            bounds: &[(DType::F32, 9.8e-4), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
            elements: &[
                (DType::F32, 2.0 * unit::TF32 + 12.0 * unit::F32),
                (DType::F16, 20.0 * unit::F32),
                (DType::BF16, 20.0 * unit::F32),
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
        settings: &[TILE],
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
        settings: &[PARTS],
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
        settings: &[PARTS],
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
        settings: &[LAST],
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

//! `qkv_v2`: attention's two products in the other order.
//!
//! O = Q (Kᵀ V) / √DHQK: first C = Kᵀ V, a matrix of DHQK x DHHV for each head, then a product of Q with
//! it. Without a mask between the two products this is the same O, for S / DH times fewer operations.

#![deny(unsafe_code)]

mod checks;
mod plans;

use lab_device::{Arithmetic, DType, Device, KernelSource};
use lab_families::qkv::{self, sizes};
use lab_harness::compare::unit;
use lab_harness::suite::{Check, Tier};
use lab_harness::{Cost, Dim, Dims, Error, Info, Output, Plan, Request, Stage, Version};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// A version of O = Q (Kᵀ V).
#[derive(Debug)]
pub struct Reordered {
    info: Info,
    way: Way,
}

/// What brings the tiles and multiplies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// cp.async and mma.sync, in three launches.
    Warps,
    /// TMA and wgmma, in three launches.
    Warpgroups,
    /// The same in one launch of clusters.
    Clusters,
    /// In one launch of blocks that stay, and meet through device memory.
    Residents,
}

/// Positions and heads are counted by ints; a head's first element by more.
static DIMS: [Dim; 5] = qkv::dims([
    [1, 1, 65535],
    [2, 32, 65535],
    [100, 4096, 1 << 24],
    [64, 64, qkv::MOST_COLUMNS],
    [64, 64, qkv::MOST_COLUMNS],
]);

const INFO: Info = Info {
    stage: "qkv_v2",
    name: "v0_reordered",
    family: &qkv::FAMILY,
    parent: Some("block_tile"),
    change: "Kᵀ V first: S / DH times fewer operations, on the tensor cores",
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dims: &DIMS,
    settings: &[],
    inputs: qkv::INPUTS,
    // f32: each of K, V, C and Q is rounded to TF32. Halves: C is rounded, then the result.
    // An element: the roundings of C to halves, an eighth of a unit of what it is a sum of; of f32 those of all four, 0.8.
    outputs: &[Output {
        name: "o",
        bounds: &[(DType::F32, 2e-3), (DType::F16, 1e-3), (DType::BF16, 8e-3)],
        elements: &[
            (DType::F32, 3.0 * unit::TF32),
            (DType::F16, 0.5 * unit::F16),
            (DType::BF16, 0.5 * unit::BF16),
        ],
    }],
};

/// By mma.sync.
pub static REORDERED: Reordered = Reordered { info: INFO, way: Way::Warps };

/// By Hopper's instructions.
pub static WGMMA: Reordered = Reordered {
    info: Info {
        name: "v1_wgmma",
        parent: Some("v0_reordered"),
        change: "TMA brings the tiles, warpgroups multiply them where they lie",
        // What lies along the columns of its operands wgmma takes of halves alone.
        dtypes: &[DType::F16, DType::BF16],
        ..INFO
    },
    way: Way::Warpgroups,
};

/// In one launch.
pub static CLUSTER: Reordered = Reordered {
    info: Info {
        name: "v2_cluster",
        parent: Some("v1_wgmma"),
        change: "one launch: a cluster a head, whose blocks add up Kᵀ V while Q is on its way",
        settings: &[plans::BLOCKS],
        ..WGMMA.info
    },
    way: Way::Clusters,
};

/// In one launch, whose blocks go on to other heads.
pub static RESIDENT: Reordered = Reordered {
    info: Info {
        name: "v3_resident",
        parent: Some("v2_cluster"),
        change: "no clusters: one block a multiprocessor, all of it for tiles; a head's blocks meet in device memory",
        settings: &[plans::RESIDENT_BLOCKS],
        ..WGMMA.info
    },
    way: Way::Residents,
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "qkv_v2",
    teaches: "two products in the other order, Q (Kᵀ V): as fast as its tensors can be read",
    versions: &[&REORDERED, &WGMMA, &CLUSTER, &RESIDENT],
    kernels: kernels::KERNELS,
    version_checks: checks::OF_EACH,
    checks: &[
        Check::new("any_number_of_blocks_is_right", checks::any_number_of_blocks_is_right)
            .in_tier(Tier::ManySizes),
        Check::new("blocks_take_heads_in_turn", checks::blocks_take_heads_in_turn),
    ],
    ..Stage::EMPTY
};

impl Version for Reordered {
    fn info(&self) -> &Info {
        &self.info
    }

    /// 4 S DHQK DHHV operations a head, in place of the family's 2 S² (DHQK + DHHV).
    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [b, nh, s, dhqk, dhhv] = qkv::sizes_of(dims).map(|size| size as f64);
        Cost { flops: b * nh * 4.0 * s * dhqk * dhhv, ..qkv::cost(dims, dtype) }
    }

    fn arithmetic(&self, dtype: DType) -> Option<Arithmetic> {
        match dtype {
            DType::F32 => Some(Arithmetic::Tf32),
            _ => Arithmetic::fastest_for(dtype),
        }
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        let own = match self.way {
            Way::Warps => None,
            Way::Warpgroups => Some(&kernels::V1_WGMMA),
            Way::Clusters => Some(&kernels::V2_CLUSTER),
            Way::Residents => Some(&kernels::V3_RESIDENT),
        };
        own.into_iter().chain([&kernels::V0_REORDERED, &kernels::ADD_PARTS]).collect()
    }

    // As short as one, unlike those of the family's other stages.
    fn replayed(&self) -> bool {
        true
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let mut all = vec![
            // One tile of each class.
            [1, 1, 64, 64, 64],
            [1, 1, 64, 128, 128],
            // A position; several tiles, the last in part; a tile for each of a cluster's blocks.
            [1, 1, 1, 64, 64],
            [1, 2, 200, 64, 64],
            [1, 1, 512, 64, 64],
            // Packs of 8 that fill no tile; narrow and wide.
            [2, 3, 40, 16, 8],
            [1, 1, 130, 128, 72],
            [1, 1, 100, 24, 256],
            // Several segments, of more tiles than there are places for; blocks with unlike numbers of tiles.
            [1, 2, 700, 32, 64],
        ];
        if self.way == Way::Warps {
            all.extend([
                [1, 1, 1, 1, 1],
                [1, 1, 32, 256, 256],
                // Ragged: no size a multiple of anything.
                [1, 1, 65, 3, 5],
                [1, 1, 33, 251, 131],
                // Packs of 4 but not of 8; in one of the two and not in the other.
                [1, 1, 30, 36, 44],
                [1, 1, 20, 64, 62],
                [1, 2, 70, 64, 1],
            ]);
        } else {
            // What falls back.
            all.extend([[1, 1, 70, 136, 64], [1, 1, 20, 64, 62]]);
        }
        if self.way == Way::Clusters {
            // For each of eight blocks more tiles of K, and of Q, than there are places for.
            all.push([1, 1, 2700, 16, 8]);
        }
        if self.way == Way::Residents {
            // For each of four blocks more tiles of K, and of Q, than there are places for.
            all.push([1, 1, 3600, 16, 8]);
            // More heads than groups of blocks: three blocks a head, of 8 that the emulator has at once, of 132 on an
            // H200; columns in two slices; and three tiles a block, so that the second pair has one.
            all.extend([[1, 70, 130, 64, 64], [1, 3, 300, 120, 136], [1, 9, 768, 16, 8]]);
        }
        all.into_iter().map(sizes).collect()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        match self.way {
            Way::Clusters if plans::fits_boxes(request) => plans::cluster(device, request),
            Way::Residents if plans::fits_boxes(request) => plans::resident(device, request),
            Way::Clusters | Way::Residents => plans::refuse_blocks(&self.info, request)
                .and_then(|()| plans::warps(device, request)),
            Way::Warpgroups if plans::fits_boxes(request) => plans::warpgroups(device, request),
            Way::Warps | Way::Warpgroups => plans::warps(device, request),
        }
    }
}

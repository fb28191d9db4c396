//! `lstm_fused`: the LSTM, forward and backward through time.
//!
//! A version is a way to go through the steps of one direction of a layer. What comes before and
//! after is the same for all: the products of the gradients by the weights, and by x, over all
//! steps at once.
//!
//! The versions compute the plain LSTM of one layer, under PyTorch's names ([`lab_families::lstm`]).
//! [`Lstm`] is the whole: several layers, two directions, peepholes, layer norm, rows of unlike
//! lengths; and the GRU and the sLSTM beside it, whose steps are those of [`slstm_fused`].
//!
//! The equations are those of [`lab_reference::lstm`]; Hochreiter & Schmidhuber 1997, Gers et al.
//! 2000, Greff et al. 2017 (arXiv 1503.04069).

#![deny(unsafe_code)]

mod checks;
mod direction;
mod network;
mod posed;
mod way;

use lab_device::{DType, Device, KernelSource};
use lab_families::lstm::{self, sizes, sizes_of};
use lab_harness::compare::unit;
use lab_harness::{
    Dim, Dims, Error, Family, Info, Output, Plan, Preference, Request, Stage, Version,
};
pub use lab_reference::lstm::{Cell, Network};
pub use network::{Lstm, Pass};
pub use way::Way;

pub mod launches {
    //! What a training step is made of: [`Lstm::forward`](crate::Lstm::forward) and
    //! [`Lstm::backward`](crate::Lstm::backward) within a larger plan.

    pub use crate::direction::{
        Direction, HeadSums, Sizes, States, Upstream, blocks, check_halves, kernel, product,
    };
    pub use crate::network::Layers;
}

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// A version of the stage.
#[derive(Debug)]
pub struct Fused {
    info: Info,
    way: Way,
    pass: Pass,
}

const DIMS: [Dim; 4] =
    lstm::dims([[3, 1, 1 << 15], [6, 1024, 1 << 15], [10, 256, 1 << 20], [33, 256, 1 << 15]]);

/// Where a block has a thread for each gate.
static RESIDENT_DIMS: [Dim; 4] =
    [DIMS[0], DIMS[1], DIMS[2], Dim { max: direction::MOST_UNITS, ..DIMS[3] }];

/// Where a cluster has.
static SPREAD_DIMS: [Dim; 4] =
    [DIMS[0], DIMS[1], DIMS[2], Dim { max: direction::MOST_SPREAD_UNITS, ..DIMS[3] }];

/// Where a group of blocks of the grid has.
static GRID_DIMS: [Dim; 4] =
    [DIMS[0], DIMS[1], DIMS[2], Dim { max: direction::MOST_GRID_UNITS, ..DIMS[3] }];

const F32: DType = DType::F32;
const F64: DType = DType::F64;
const F16: DType = DType::F16;
const BF16: DType = DType::BF16;

/// How many magnitudes an element may be off by, in units of roundoff. They follow each rounding from step to step
/// ([`Network::magnitudes`]), and of the errors that were seen the largest is 0.8 in f32, 1 in f64, 1.1 in f16 and 1 in bf16, in all
/// outputs and versions: of sums of what is random, of some 10⁵ elements. One more is for a GPU's functions, whose largest errors the
/// magnitudes have in them; in f64 the reference rounds as well.
const OFF: &[(DType, f64)] = &[
    (F32, 2.0 * unit::F32),
    (F64, 3.0 * unit::F64),
    (F16, 2.0 * unit::F16),
    (BF16, 2.0 * unit::BF16),
];

/// Of the gradient by W_hh, which multiplies two that are off: 1.4 in f16, and 1.3 in f64.
const OFF_BY_STATES: &[(DType, f64)] = &[
    (F32, 2.0 * unit::F32),
    (F64, 3.0 * unit::F64),
    (F16, 2.4 * unit::F16),
    (BF16, 2.4 * unit::BF16),
];

const INFO: Info = Info {
    stage: "lstm_fused",
    name: "v0_cell",
    family: &lstm::FAMILY,
    parent: None,
    change: "a thread a unit of a row, all four gates and the state; a launch a step",
    dtypes: &[F32, F64, F16, BF16],
    dims: &DIMS,
    settings: &[],
    inputs: lstm::INPUTS,
    // f32, f64: the roundings of a sum of I + H terms, and of the steps that it goes through. Halves:
    // the one rounding of the result, and that of each h that a step gets from the one before.
    outputs: &[
        Output {
            name: "y",
            bounds: &[(F32, 9e-7), (F64, 1.4e-15), (F16, 8e-4), (BF16, 8e-3)],
            elements: OFF,
        },
        Output {
            name: "hn",
            bounds: &[(F32, 9e-7), (F64, 1.4e-15), (F16, 8e-4), (BF16, 8e-3)],
            elements: OFF,
        },
        Output {
            name: "cn",
            bounds: &[(F32, 7e-7), (F64, 1.4e-15), (F16, 8e-4), (BF16, 8e-3)],
            elements: OFF,
        },
        Output {
            name: "dx",
            bounds: &[(F32, 2e-6), (F64, 4e-15), (F16, 8e-4), (BF16, 8e-3)],
            elements: OFF,
        },
        Output {
            name: "dh0",
            bounds: &[(F32, 4e-6), (F64, 4e-15), (F16, 8e-4), (BF16, 8e-3)],
            elements: OFF,
        },
        Output {
            name: "dc0",
            bounds: &[(F32, 4e-6), (F64, 1.8e-15), (F16, 8e-4), (BF16, 8e-3)],
            elements: OFF,
        },
        Output {
            name: "dweight_ih_l0",
            bounds: &[(F32, 2e-6), (F64, 2.5e-15), (F16, 8e-4), (BF16, 8e-3)],
            elements: OFF,
        },
        Output {
            name: "dweight_hh_l0",
            bounds: &[(F32, 3e-6), (F64, 2.2e-15), (F16, 8e-4), (BF16, 8e-3)],
            elements: OFF_BY_STATES,
        },
        Output {
            name: "dbias_ih_l0",
            bounds: &[(F32, 3e-6), (F64, 2.5e-15), (F16, 8e-4), (BF16, 8e-3)],
            elements: OFF,
        },
        Output {
            name: "dbias_hh_l0",
            bounds: &[(F32, 3e-6), (F64, 2.5e-15), (F16, 8e-4), (BF16, 8e-3)],
            elements: OFF,
        },
    ],
};

/// A launch a step.
pub static CELL: Fused = Fused { info: INFO, way: Way::Cell, pass: Pass::ForwardBackward };

/// A launch for all steps.
pub static SEQUENCE: Fused = Fused {
    info: Info {
        name: "v1_sequence",
        parent: Some("v0_cell"),
        change: "the products with x in one launch, then one for all steps: weights stay where they are",
        dims: &RESIDENT_DIMS,
        ..INFO
    },
    way: Way::Sequence,
    pass: Pass::ForwardBackward,
};

/// A launch for all steps, with the units of a row spread over a cluster.
pub static CLUSTER: Fused = Fused {
    info: Info {
        name: "v2_cluster",
        parent: Some("v1_sequence"),
        change: "a row's units over several blocks, which keep all weights and exchange h each step",
        dims: &SPREAD_DIMS,
        ..INFO
    },
    way: Way::Cluster,
    pass: Pass::ForwardBackward,
};

/// The same without clusters.
pub static GRID: Fused = Fused {
    info: Info {
        name: "v2_grid",
        parent: Some("v2_cluster"),
        change: "the same exchange through device memory and flags, for devices without clusters",
        dims: &SPREAD_DIMS,
        ..INFO
    },
    way: Way::Grid,
    pass: Pass::ForwardBackward,
};

/// The forward pass alone, of each.
pub static FORWARD: [Fused; 4] = [
    forward(Info { name: "v0_cell_fw", ..INFO }, Way::Cell),
    forward(
        Info {
            name: "v1_sequence_fw",
            parent: Some("v0_cell_fw"),
            change: "a launch for all steps",
            dims: &RESIDENT_DIMS,
            ..INFO
        },
        Way::Sequence,
    ),
    forward(
        Info {
            name: "v2_cluster_fw",
            parent: Some("v1_sequence_fw"),
            change: "a row's units over a cluster of blocks",
            dims: &SPREAD_DIMS,
            ..INFO
        },
        Way::Cluster,
    ),
    forward(
        Info {
            name: "v2_grid_fw",
            parent: Some("v2_cluster_fw"),
            change: "the exchange through device memory and flags",
            dims: &SPREAD_DIMS,
            ..INFO
        },
        Way::Grid,
    ),
];

const fn forward(info: Info, way: Way) -> Fused {
    let outputs = INFO.outputs.split_at(lstm::FORWARD_OUTPUTS).0;
    let family: &'static dyn Family = &lstm::FORWARD;
    let inputs = lstm::FORWARD_INPUTS;
    Fused { info: Info { family, inputs, outputs, ..info }, way, pass: Pass::Forward }
}

/// The products with h on tensor cores; the forward pass alone.
pub static TENSOR: Fused = forward(
    Info {
        name: "v3_tensor_fw",
        parent: Some("v2_cluster_fw"),
        change: "many rows: a step's product on tensor cores, by fragments that stay; h goes around as halves",
        dtypes: &[F16, BF16],
        dims: &SPREAD_DIMS,
        ..INFO
    },
    Way::Tensor,
);

/// And with x; the forward pass alone.
pub static PRODUCT: Fused = forward(
    Info {
        name: "v4_product_fw",
        parent: Some("v3_tensor_fw"),
        change: "the product with x, before the first step, by wgmma and TMA",
        ..TENSOR.info
    },
    Way::TensorProduct,
);

/// With the way back: the products of a step.
pub static TENSOR_BACK: Fused = Fused {
    info: Info {
        name: "v3_tensor",
        parent: Some("v2_cluster"),
        change: "many rows: a step's products on tensor cores, both ways, by fragments that stay",
        dtypes: TENSOR.info.dtypes,
        dims: &SPREAD_DIMS,
        ..INFO
    },
    way: Way::Tensor,
    pass: Pass::ForwardBackward,
};

/// With the way back: the products before the first step, and those after the last.
pub static PRODUCT_BACK: Fused = Fused {
    info: Info {
        name: "v4_product",
        parent: Some("v3_tensor"),
        change: "the products over all steps, with x and of the gradients, by wgmma and TMA",
        ..TENSOR_BACK.info
    },
    way: Way::TensorProduct,
    pass: Pass::ForwardBackward,
};

/// The products of a step by wgmma; the forward pass alone.
pub static WGMMA_FORWARD: Fused = forward(
    Info {
        name: "v5_wgmma_fw",
        parent: Some("v4_product_fw"),
        change: "more than four rows a cluster: a step's product by wgmma, whose sums stay in registers",
        ..TENSOR.info
    },
    Way::TensorGroups,
);

/// And back as before.
pub static WGMMA: Fused = Fused {
    info: Info {
        name: "v5_wgmma",
        parent: Some("v4_product"),
        change: "more than four rows a cluster: forward, a step's product by wgmma, whose sums stay in registers",
        ..TENSOR_BACK.info
    },
    way: Way::TensorGroups,
    pass: Pass::ForwardBackward,
};

/// And those of the way back.
pub static WGMMA_BACK: Fused = Fused {
    info: Info {
        name: "v6_wgmma_back",
        parent: Some("v5_wgmma"),
        change: "back, a step's product by wgmma, tile by tile; the gates of a cell side by side between the ways",
        ..TENSOR_BACK.info
    },
    way: Way::TensorGroupsBack,
    pass: Pass::ForwardBackward,
};

/// More units than a cluster keeps the weights of; the forward pass alone.
pub static TENSOR_GRID: Fused = forward(
    Info {
        name: "v7_tensor_grid_fw",
        parent: Some("v5_wgmma_fw"),
        change: "up to 1024 units: blocks of the grid keep the weights, and hand h around through device memory",
        dims: &GRID_DIMS,
        ..TENSOR.info
    },
    Way::TensorGrid,
);

/// And the way back.
pub static TENSOR_GRID_BACK: Fused = Fused {
    info: Info {
        name: "v8_tensor_grid_back",
        parent: Some("v6_wgmma_back"),
        change: "up to 1024 units: blocks of the grid, back as a square: da along its lines, parts of dh across",
        dims: &GRID_DIMS,
        ..TENSOR_BACK.info
    },
    way: Way::TensorGrid,
    pass: Pass::ForwardBackward,
};

/// Every version of the whole, in the order of the story.
pub static VERSIONS: [&Fused; 9] = [
    &CELL,
    &SEQUENCE,
    &CLUSTER,
    &GRID,
    &TENSOR_BACK,
    &PRODUCT_BACK,
    &WGMMA,
    &WGMMA_BACK,
    &TENSOR_GRID_BACK,
];

/// This stage.
pub static STAGE: Stage = Stage {
    name: "lstm_fused",
    teaches: "a recurrence: which parts of a step need the previous one, and which do not",
    versions: &[
        &CELL,
        &SEQUENCE,
        &CLUSTER,
        &GRID,
        &TENSOR_BACK,
        &PRODUCT_BACK,
        &WGMMA,
        &WGMMA_BACK,
        &TENSOR_GRID_BACK,
        &FORWARD[0],
        &FORWARD[1],
        &FORWARD[2],
        &FORWARD[3],
        &TENSOR,
        &PRODUCT,
        &WGMMA_FORWARD,
        &TENSOR_GRID,
    ],
    kernels: kernels::KERNELS,
    version_checks: checks::OF_EACH,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

impl Version for Fused {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(match self.info.name {
            "v3_tensor" => Preference::new(10),
            "v1_sequence" => Preference::new(20),
            "v0_cell" => Preference::new(30),
            "v3_tensor_fw" => Preference::new(10),
            "v1_sequence_fw" => Preference::new(20),
            "v0_cell_fw" => Preference::new(30),
            _ => return None,
        })
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        let own = match self.way {
            Way::Cell => [&kernels::V0_CELL, &kernels::NORM_CELL, &kernels::GRU_CELL].to_vec(),
            Way::Sequence => vec![
                &kernels::V1_SEQUENCE,
                &kernels::V1_SEQUENCE_BACK,
                &kernels::V1_NORM,
                &kernels::V1_NORM_BACK,
            ],
            Way::Cluster | Way::Grid => vec![&kernels::V2_SPREAD],
            Way::Tensor => vec![&kernels::V3_TENSOR, &kernels::V3_TENSOR_BACK],
            Way::TensorProduct => vec![
                &kernels::V3_TENSOR,
                &kernels::V3_TENSOR_BACK,
                &kernels::V4_PRODUCT,
                &kernels::V4_PRODUCT_BACK,
                &kernels::COLUMNS,
            ],
            Way::TensorGroups | Way::TensorGroupsBack => vec![
                &kernels::V3_TENSOR,
                &kernels::V3_TENSOR_BACK,
                &kernels::V4_PRODUCT,
                &kernels::V4_PRODUCT_BACK,
                &kernels::COLUMNS,
                &kernels::V5_WGMMA,
            ],
            Way::TensorGrid => vec![
                &kernels::V4_PRODUCT,
                &kernels::V4_PRODUCT_BACK,
                &kernels::COLUMNS,
                &kernels::V7_TENSOR_GRID,
                &kernels::V8_TENSOR_GRID_BACK,
            ],
        };
        let groups_back = (self.way == Way::TensorGroupsBack).then_some(&kernels::V6_WGMMA_BACK);
        let products = [
            &kernels::PROJECTION,
            &kernels::INPUT_GRADIENT,
            &kernels::PARAMETER_GRADIENT,
            &kernels::VECTOR_GRADIENT,
        ];
        own.into_iter().chain(groups_back).chain(products).collect()
    }

    fn test_shapes(&self) -> Vec<Dims> {
        // One step, one row, one unit; of all one. Ragged; what is one past a tile. Blocks that wait for each other through
        // memory take the emulator long: fewer steps of these.
        let many = if self.way == Way::TensorGrid { 3 } else { 11 };
        let mut all = vec![[1, 1, 1, 1], [5, 1, 3, 8], [2, 5, 3, 3], [3, many, 33, 33]];
        if self.pass == Pass::ForwardBackward && self.way.on_tensor_cores() {
            // What x adds to the gates is rounded to the type there: a dx of one number, four products that nearly
            // cancel, may be of that rounding alone. Of the numbers of a row it is as small as anywhere.
            all[0] = [1, 1, 8, 8];
        }
        match (self.pass, self.way) {
            (Pass::Forward, Way::Cell) => {}
            // Clusters of two blocks, four and sixteen; several of 8 rows and of 18; units and rows that are not there.
            (Pass::Forward, Way::Tensor) => {
                all.extend([[9, 4, 3, 64], [20, 3, 2, 40], [9, 3, 2, 130], [5, 3, 2, 700]]);
            }
            // Of eight blocks and of sixteen; several of 8 rows and of 16.
            (_, Way::Tensor) => all.extend([[9, 4, 3, 128], [20, 3, 2, 130], [5, 2, 2, 700]]),
            // One tile of x and several; what is left over of both. Gradients by weights in whole tiles, and in tiles that
            // four blocks share.
            (Pass::ForwardBackward, Way::TensorProduct) => {
                all.extend([[66, 8, 136, 72], [66, 2, 8, 40]]);
            }
            (_, Way::TensorProduct) => all.extend([[9, 4, 8, 64], [20, 7, 72, 66]]),
            // Clusters of two blocks and of sixteen, some of the weights in shared memory; units and rows that are not there.
            (Pass::Forward, Way::TensorGroups) => {
                all.extend([[9, 4, 3, 64], [23, 5, 2, 40], [30, 2, 8, 680]]);
            }
            (_, Way::TensorGroups) => all.extend([[12, 4, 8, 64]]),
            // Of eight blocks and of sixteen; several of 10 rows and of 18; parts in f32, and rounded to the type.
            (_, Way::TensorGroupsBack) => {
                all.extend([[12, 3, 8, 128], [23, 2, 8, 120], [9, 2, 8, 136], [5, 2, 8, 520]]);
            }
            // Blocks of all units, and without any; several groups, on the emulator several launches; more units than a cluster
            // has room for. With the way back those are among the large problems.
            (Pass::Forward, Way::TensorGrid) => {
                all.extend([[12, 4, 8, 64], [70, 2, 2, 40], [5, 2, 8, 1000]]);
            }
            // With units in all lines and columns of blocks, and single halves.
            (_, Way::TensorGrid) => all.extend([[12, 2, 8, 250], [17, 1, 8, 40]]),
            // A row a block, and several.
            (Pass::Forward, _) => all.extend([[1, 3, 2, 130], [9, 2, 1, 130]]),
            (_, Way::Cell | Way::Sequence) => all.extend([
                [1, 7, 5, 1],
                [1, 1, 4, 32],
                [3, 4, 1, 33],
                [4, 8, 32, 32],
                [1, 33, 65, 9],
                [5, 7, 40, 70],
                // More units than a block has the weights of; more rows than multiprocessors: of the
                // emulator, and of a GPU.
                [1, 2, 3, 130],
                [9, 2, 2, 135],
                [2, 2, 2, 101],
                [10, 2, 3, 97],
                [9, 1, 2, 40],
                [135, 2, 2, 3],
                // Many steps.
                [1, 200, 2, 5],
                [2, 100, 1, 16],
            ]),
            // Units of one block, of all; rows a group, and several, on the emulator and on a GPU.
            (_, Way::Cluster | Way::Grid) => {
                all.extend([[1, 7, 5, 70], [5, 2, 2, 135], [35, 2, 2, 3], [1, 30, 1, 5]]);
            }
        }
        // All units of a block; where not all weights have a place. The grid is the same kernels.
        if self.way == Way::Cluster && self.pass == Pass::ForwardBackward {
            all.extend([[2, 3, 2, 256], [3, 2, 1, 390], [1, 2, 2, 513]]);
        }
        all.into_iter().map(sizes).collect()
    }

    /// One row of a window of twenty steps, at growing H; a long sequence; in bf16 many rows of many units, two of them in f16 as
    /// well, where cuDNN is another.
    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        let windows = [32, 64, 128, 256].map(|h| sizes([1, 20, 1, h]));
        let mut all: Vec<Dims> = windows.into_iter().chain([self.info.timed(dtype)]).collect();
        let in_both = [[64, 512, 512, 512], [64, 512, 1024, 1024]];
        let large = match dtype {
            BF16 => [&[[16, 1024, 768, 768]], &in_both[..], &[[256, 256, 512, 512]]].concat(),
            DType::F16 => in_both.to_vec(),
            _ => Vec::new(),
        };
        // v0 takes half a second for one of them: there is nothing to learn from fifty.
        let fits = |size: &[usize; 4]| size[3] <= self.info.dims[3].max && self.way != Way::Cell;
        all.extend(large.into_iter().filter(fits).map(sizes));
        all
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let [_, _, columns, hidden] = sizes_of(&request.dims);
        let lstm = Lstm::by(self.way, Network::lstm(columns, hidden))?;
        lstm.plan(device, request.shapes(), self.pass)
    }
}

//! The stage's table of kernels.

/// Of a launch for all steps, a block for the units of a row: units, HT; rows of the batch a block;
/// columns of the four gates whose weights a thread has in registers, and in shared memory, of
/// HT / 4.
///
/// The fewest units first, and of those one row a block first. A block of 128 units has 128
/// registers a thread, of 256 units 64; each row of the batch needs a dozen of them. Shared memory
/// is at most 99 KB, what an RTX 4060 has. Weights that find no place come from device memory.
///
/// Several rows a block only of 64 units: of 32 units a multiprocessor has seven blocks at a time, which
/// hide each other's latency as well; more than 64 are `SPREAD`'s by default, which has several rows.
/// f64 is for holding gradients against differences: two sizes do.
const SEQUENCE: [&[[usize; 4]]; 2] = [
    &[[32, 1, 8, 0], [64, 1, 16, 0], [64, 4, 16, 0], [128, 1, 20, 8], [256, 1, 4, 4]],
    // f64
    &[[64, 1, 16, 0], [256, 1, 4, 0]],
];

/// The same with layer norm and one row a block: units, HT; columns in registers, and in shared memory.
/// The norms need some of the registers, which of 128 units leaves fewer for weights.
const NORM: [&[[usize; 3]]; 2] = [
    &[[32, 8, 0], [64, 16, 0], [128, 16, 8], [256, 4, 4]],
    // f64
    &[[64, 16, 0], [256, 4, 0]],
];

/// With the units of a row spread over blocks: units, HT; of those a block's; rows of the batch a
/// group of blocks; columns of the four gates whose weights a thread has in registers, and in shared
/// memory, of HT / 16. A group of 256 units or more is a cluster of 16 blocks, the largest.
///
/// Up to 256 units all weights have a place in registers. Of 512 units, 32 a block, a quarter comes from
/// device memory at every step, of 768 units five sixths: four rows share what is fetched.
const SPREAD: [&[[usize; 5]]; 2] = [
    &[
        [128, 16, 1, 8, 0],
        [128, 16, 4, 8, 0],
        [256, 16, 1, 16, 0],
        [256, 16, 4, 16, 0],
        [512, 32, 4, 16, 8],
        [768, 48, 4, 4, 4],
    ],
    // f64
    &[[128, 16, 1, 8, 0], [256, 16, 1, 16, 0], [768, 48, 1, 4, 0]],
];

/// The products on tensor cores: units, HT; blocks of a cluster; its rows of the batch; and of the fragments of weights
/// that a warp has, those in registers. They are HT/64 of each 64 units that a block has; a fragment is 4 registers.
/// Of the others each takes 4 KB of shared memory.
const TENSOR: &[[usize; 4]] = &[
    [64, 2, 8, 3],
    [64, 2, 18, 4],
    [256, 4, 8, 32],
    [512, 8, 8, 44],
    [512, 8, 18, 28],
    [768, 16, 4, 44],
];

/// By wgmma: units, HT; blocks of a cluster; its rows of the batch; and of the steps of the sum, HT/16, those whose weights
/// are in registers. A warpgroup has 16 units, and each step that is not in registers takes 2 KB of shared memory.
const WGMMA: &[[usize; 4]] =
    &[[64, 2, 10, 3], [256, 8, 18, 16], [512, 16, 10, 32], [512, 16, 38, 32], [768, 16, 10, 30]];

/// The way back likewise, in clusters of 8 blocks or 16: a warp has all units of a block, or of two. A slice of f32 for
/// each block, twice, and as much for those that come take 70 KB of shared memory of 512 units and 8 rows.
const TENSOR_BACK: &[[usize; 4]] =
    &[[128, 8, 8, 3], [256, 8, 16, 16], [512, 8, 8, 44], [768, 16, 4, 47]];

/// The way back by wgmma: units, HT; blocks of a cluster; its rows of the batch; of a warp's fragments those in registers,
/// as above; and bytes of a part of dh on its way. Of 512 units and 10 rows, boxes and slices of f32 take 82 KB of shared
/// memory; of 38 rows they would take 310.
const WGMMA_BACK: &[[usize; 5]] = &[
    [128, 8, 10, 3, 4],
    [128, 8, 18, 4, 2],
    [256, 8, 18, 16, 4],
    [512, 16, 10, 32, 4],
    [512, 16, 38, 32, 2],
    [768, 16, 10, 36, 2],
];

/// By wgmma with blocks of the grid: units, HT, 16 a block; rows of the batch a group of blocks. The fewest are for tests.
const GRID: &[[usize; 2]] = &[[64, 8], [256, 8], [1024, 8], [1024, 32]];
const GRID_BACK: &[[usize; 2]] = &[[256, 8], [1024, 8], [1024, 32]];

/// The product with x: rows, columns and depth of a tile, places of the ring, and the height of a stripe of tiles.
const PRODUCT: &[[usize; 5]] = &[[128, 256, 64, 4, 16]];

/// Those of the way back. By weights there are few tiles, and each is a sum over all steps: smaller ones are more.
const WEIGHTS: &[[usize; 5]] = &[[128, 128, 64, 6, 16]];
const SPLIT_WEIGHTS: &[[usize; 5]] = &[[128, 256, 64, 4, 16]];
const INPUTS: &[[usize; 5]] = &[[128, 256, 64, 4, 16]];

const TYPES: [&str; 4] = ["float", "double", "__half", "__nv_bfloat16"];

/// `name<T, arguments>` for each type.
fn each(name: &str, arguments: &str) -> Vec<String> {
    let comma = if arguments.is_empty() { "" } else { ", " };
    TYPES.iter().map(|t| format!("{name}<{t}{comma}{arguments}>")).collect()
}

/// `name<T, false>` and `name<T, true>` for each type.
fn both(name: &str) -> Vec<String> {
    [each(name, "false"), each(name, "true")].concat()
}

/// `name<T>` for each type, with the gates in the arithmetic's; and of halves, with them in the type itself.
fn gates_of(name: &str) -> Vec<String> {
    let halves = TYPES[2..].iter().map(|t| format!("{name}<{t}, {t}>"));
    each(name, "").into_iter().chain(halves).collect()
}

/// A kernel that keeps weights, for each size of its table: one of f32 and halves, one of f64.
fn kept<const N: usize>(name: &str, [singles, doubles]: [&[[usize; N]]; 2]) -> Vec<String> {
    let mut all = Vec::new();
    for t in TYPES {
        for sizes in if t == "double" { doubles } else { singles } {
            let sizes = sizes.map(|size| size.to_string()).join(", ");
            all.push(format!("{name}<{t}, {sizes}>"));
        }
    }
    all
}

/// The same of halves.
fn of_halves<const N: usize>(name: &str, all: &[[usize; N]]) -> Vec<String> {
    kept(name, [all, all])
        .into_iter()
        .filter(|name| name.contains("half") || name.contains("bfloat"))
        .collect()
}

fn main() {
    let cell = [both("lstm_cell"), both("lstm_cell_back"), each("lstm_cell_first", "")];
    let norm = [both("norm_cell"), both("norm_cell_back")];
    let gru = ["gru_cell", "gru_cell_back", "gru_cell_first"].map(|name| each(name, ""));
    let projection =
        [gates_of("projection"), each("projection_by_units", ""), each("gates_again", "")];
    let by_x = ["input_gradient", "narrow_input_gradient"].map(gates_of);
    let vectors = ["peephole_gradient", "norm_gradient"].map(|name| each(name, ""));
    let spread = ["lstm_spread", "lstm_spread_back"].map(|name| kept(name, SPREAD));
    let gradient_products = [
        of_halves("weight_gradients", WEIGHTS),
        of_halves("split_weight_gradients", SPLIT_WEIGHTS),
        of_halves("gradient_by_x", INPUTS),
    ];
    lab_kernel_build::Stage::new()
        .kernel("kernels/v0_cell.cu", &cell.concat())
        .kernel("kernels/v1_sequence.cu", &kept("lstm_sequence", SEQUENCE))
        .spills(328)
        .kernel("kernels/v1_sequence_back.cu", &kept("lstm_sequence_back", SEQUENCE))
        .spills(580)
        .kernel("kernels/v1_norm.cu", &kept("norm_sequence", NORM))
        .spills(408)
        .kernel("kernels/v1_norm_back.cu", &kept("norm_sequence_back", NORM))
        .spills(632)
        .kernel("kernels/v2_spread.cu", &spread.concat())
        .spills(196)
        .kernel("kernels/v3_tensor.cu", &of_halves("lstm_tensor", TENSOR))
        .needs("sm_90")
        .spills(456) // of 512 units; of 768 56, while fragments are loaded
        .kernel("kernels/v3_tensor_back.cu", &of_halves("lstm_tensor_back", TENSOR_BACK))
        .needs("sm_90")
        .spills(248) // of 768 units, mostly while fragments are loaded
        .kernel("kernels/v4_product.cu", &of_halves("gates_of_x", PRODUCT))
        .needs("sm_90a")
        .kernel("kernels/v4_product_back.cu", &gradient_products.concat())
        .needs("sm_90a")
        .kernel("kernels/v5_wgmma.cu", &of_halves("lstm_wgmma", WGMMA))
        .needs("sm_90a")
        .spills(468) // of 768 units, while fragments are loaded; not of 512 and 16 blocks
        .kernel("kernels/v6_wgmma_back.cu", &of_halves("lstm_wgmma_back", WGMMA_BACK))
        .needs("sm_90a")
        .spills(408) // mostly while fragments are loaded
        .kernel("kernels/v7_tensor_grid.cu", &of_halves("lstm_grid", GRID))
        .needs("sm_90a")
        .kernel("kernels/v8_tensor_grid_back.cu", &of_halves("lstm_grid_back", GRID_BACK))
        .needs("sm_90a")
        .spills(272) // of 1024 units: 64 of 128 registers have weights
        .kernel("kernels/columns.cu", &each("other_columns", "").split_off(2))
        .kernel("kernels/norm_cell.cu", &norm.concat())
        .spills(8)
        .kernel("kernels/gru_cell.cu", &gru.concat())
        .kernel("kernels/projection.cu", &projection.concat())
        .spills(4)
        .kernel("kernels/input_gradient.cu", &by_x.concat())
        .kernel("kernels/parameter_gradient.cu", &gates_of("parameter_gradient"))
        .kernel("kernels/vector_gradient.cu", &vectors.concat())
        .build();
}

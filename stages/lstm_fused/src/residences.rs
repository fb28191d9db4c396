// For which sizes there are kernels that keep their weights. The build script reads this file as
// well: a kernel is compiled for each.

/// Of a launch for all steps, a block for the units of a row: units, HT; rows of the batch a block;
/// columns of the four gates whose weights a thread has in registers, and in shared memory, of
/// HT / 4.
///
/// The fewest units first, and of those one row a block first. A block of 128 units has 128
/// registers a thread, of 256 units 64; each row of the batch needs a dozen of them. Shared memory
/// is at most 99 KB, what an RTX 4060 has. Weights that find no place come from device memory.
///
/// Several rows a block only of 64 units: of 32 units a multiprocessor has seven blocks at a time, which
/// hide each other's latency as well; more than 64 are [`SPREAD`]'s by default, which has several rows.
/// f64 is for holding gradients against differences: two sizes do.
pub(crate) const SEQUENCE: [&[[usize; 4]]; 2] = [
    &[[32, 1, 8, 0], [64, 1, 16, 0], [64, 4, 16, 0], [128, 1, 20, 8], [256, 1, 4, 4]],
    // f64
    &[[64, 1, 16, 0], [256, 1, 4, 0]],
];

/// The same with layer norm and one row a block: units, HT; columns in registers, and in shared memory.
/// The norms need some of the registers, which of 128 units leaves fewer for weights.
pub(crate) const NORM: [&[[usize; 3]]; 2] = [
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
pub(crate) const SPREAD: [&[[usize; 5]]; 2] = [
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

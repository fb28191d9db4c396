// For which sizes there are kernels that keep their weights. The build script reads this file as
// well: a kernel is compiled for each.

/// Of a launch for all steps, a block for the units of a row: units, HT; rows of the batch a block;
/// columns of the four gates whose weights a thread has in registers, and in shared memory, of
/// HT / 4.
///
/// The fewest units first, and of those one row a block first. A block of 128 units has 128
/// registers a thread, of 256 units 64; each row of the batch needs a dozen of them. Shared memory
/// is at most 99 KB, what an RTX 4060 has. Weights that find no place come from device memory.
pub(crate) const SEQUENCE: [&[[usize; 4]]; 2] = [
    &[
        [32, 1, 8, 0],
        [32, 4, 8, 0],
        [64, 1, 16, 0],
        [64, 4, 16, 0],
        [128, 1, 20, 8],
        [128, 4, 8, 8],
        [256, 1, 4, 4],
        [256, 2, 4, 4],
    ],
    // f64
    &[
        [32, 1, 8, 0],
        [32, 4, 8, 0],
        [64, 1, 16, 0],
        [64, 4, 16, 0],
        [128, 1, 8, 4],
        [128, 2, 4, 4],
        [256, 1, 4, 0],
    ],
];

/// With the units of a row spread over blocks: units, HT; of those a block's; rows of the batch a
/// group of blocks; columns of the four gates whose weights a thread has in registers, and in shared
/// memory, which are all of HT / 16. A group of 256 units is a cluster of 16 blocks, the largest.
pub(crate) const SPREAD: &[[usize; 5]] =
    &[[128, 16, 1, 8, 0], [128, 16, 4, 8, 0], [256, 16, 1, 16, 0], [256, 16, 4, 16, 0]];

// For which sizes there are kernels that keep their weights. The build script reads this file as
// well: a kernel is compiled for each.

/// Of a launch for all steps, a block for the units of a row: units, HT; rows of the batch a block;
/// weights of a thread in registers, and in shared memory.
///
/// The fewest units first, and of those one row a block first. A block of 128 units has 128
/// registers a thread, of 256 units 64; each row of the batch needs a dozen of them. Shared memory is at most 99
/// KB, what an RTX 4060 has. Weights that find no place come from device memory.
pub(crate) const SEQUENCE: [&[[usize; 4]]; 2] = [
    &[
        [32, 1, 32, 0],
        [32, 4, 32, 0],
        [64, 1, 64, 0],
        [64, 4, 64, 0],
        [128, 1, 84, 44],
        [128, 4, 36, 36],
        [256, 1, 24, 20],
        [256, 2, 8, 20],
    ],
    // f64
    &[
        [32, 1, 32, 0],
        [32, 4, 32, 0],
        [64, 1, 64, 0],
        [64, 4, 64, 0],
        [128, 1, 32, 20],
        [128, 2, 16, 20],
        [256, 1, 4, 8],
    ],
];

/// With the units of a row spread over blocks: units, HT; of those a block's; rows of the batch a
/// group of blocks; weights of a thread in registers, and in shared memory, which are all. A thread
/// has HT / 4 of them; 16 threads a unit leave 128 registers each with 32 units a block.
pub(crate) const SPREAD: [&[[usize; 5]]; 2] = [
    &[[128, 32, 1, 32, 0], [128, 32, 4, 32, 0], [256, 32, 1, 64, 0], [256, 32, 4, 64, 0]],
    // f64
    &[[128, 16, 1, 32, 0], [128, 16, 4, 32, 0], [256, 16, 1, 64, 0], [256, 16, 4, 64, 0]],
];

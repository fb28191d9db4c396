// How a cluster walks through all steps of one head, for ROWS rows of the batch. Its blocks keep the weights of the head.
//
// A block has the four gates of UNITS units of HT. What it needs of the others comes by bulk copies (lab/slices.cuh); where a
// block has all units, what a step leaves is where the next one reads, with a barrier in place of the copy.
//
// A box of h has groups of 16 units, a box of da groups of four units with their four gates. In a group each row of the batch has 16
// numbers side by side: what one step of a sum of lab/fragments.cuh reads.
#pragma once
#include "lab/fragments.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/slices.cuh"
#include "slstm.cuh"

namespace lab {

// Fragments of the weights that a warp has, all in registers: the same number forward and back.
template <int HT, int BLOCKS> constexpr int OF_WARP = HT / BLOCKS / 16 * (HT / 32);

// ANCHOR: shares
// Forward: a block's part of R has 4 UNITS rows and HT columns. A warp has a fourth of the rows, and half of the sum.
template <int HT, int BLOCKS, int ROWS> using ForwardShares = Shares<HT, BLOCKS, ROWS, OF_WARP<HT, BLOCKS>>;

// Back: Rᵀ has UNITS rows and 4 HT columns. A warp has all rows, and an eighth of the sum.
template <int HT, int BLOCKS, int ROWS>
struct BackShares : WarpShare<HT / BLOCKS / 16, HT / 32, (ROWS + 7) / 8, OF_WARP<HT, BLOCKS>> {
    static constexpr int UNITS = HT / BLOCKS, CELLS = UNITS * ROWS, SLICE = 4 * CELLS, BOX = 4 * HT * ROWS;
    // Rows of a part lie 4 further than a multiple of 16 numbers: lanes of a fragment's rows store to all banks.
    static constexpr int PITCH = UNITS + 4, PART = ROWS * PITCH;
    // Parts of dh of all warps, boxes and slices of da; barriers and words of lab/slices.cuh.
    static constexpr int BYTES = 4 * BackShares::WARPS * PART + 2 * 2 * (BOX + SLICE) + sizeof(Arrived<BLOCKS>);
    static_assert(UNITS % 16 == 0 && UNITS * BLOCKS == HT, "whole tiles for each block: change HT or BLOCKS");
};
// ANCHOR_END: shares

// Which head and which rows a block's cluster has, and which units the block.
struct Place {
    int rank, head, first_row, first_unit;

    __device__ __forceinline__ Place(int blocks, int units, int rows, int NH) {
        int cluster = blockIdx.x / blocks;
        rank = blockIdx.x % blocks, head = cluster % NH, first_row = cluster / NH * rows, first_unit = rank * units;
    }
};

}  // namespace lab

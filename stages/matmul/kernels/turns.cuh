// Two warpgroups of a block that take turns, with one ring for both: each has all rows of every second tile, and multiplies while the
// other makes of its sums what stands behind the product.
//
// A warpgroup waits until the other has had all steps of the tile before: of a place's phases a wait knows only the parity, and a step
// of many places ahead may look as if it had come.
#pragma once
#include "lab/operand_tiles.cuh"
#include "lab/ring.cuh"

namespace lab {

constexpr int IN_TURNS = 2;

// ANCHOR: turns
// The sums of all rows of a tile, by one warpgroup, whose first step is the block's step `first`. A step is a group of products each
// 64 rows. Each thread tells `passed` that all its steps have come: a warp that has not yet waited for its turn must find the phase.
template <class Tiles, class T, int HALVES, int SUMS, int PLACES>
__device__ __forceinline__ void multiply_rows(float (&sum)[HALVES][SUMS], T* tiles, Ring<PLACES>& ring, int first, int steps,
                                              Mbarrier* passed) {
    Turn<PLACES> turn{first % PLACES, unsigned(first / PLACES % 2)}, last;
    for (int s = 0; s < steps; ++s, turn.advance()) {
        ring.wait_full(turn);
        if (s + 1 == steps) mbarrier_arrive(passed);
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
            Tiles(tiles + turn.place * Tiles::CELLS).multiply(sum[half], half * 64, s > 0);
        wgmma_wait<HALVES>();
        if (s > 0 && threadIdx.x % 128 == 0) ring.leave(last);
        last = turn;
    }
    wgmma_wait<0>();
    if (threadIdx.x % 128 == 0) ring.leave(last);
}
// ANCHOR_END: turns

}  // namespace lab

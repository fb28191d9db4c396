// The products of a tile, and between them the panels of the tile before on their way to C.
#pragma once
#include "kept_sums.cuh"
#include "lab/ring.cuh"
#include "warpgroup.cuh"

namespace lab {

// ANCHOR: multiply
// sum = the product of 64 rows of a tile, from `row` on; and what is kept of the tile before goes to C. A warpgroup.
template <class Tiles, int CELLS, class T, int PLACES, int SUMS, class Kept>
__device__ __forceinline__ void multiply(float (&sum)[SUMS], Kept& kept, T* tiles, Ring<PLACES>& ring, Turn<PLACES>& turn,
                                         int row, int K) {
    Turn<PLACES> last;
    int k = 0;
    auto step = [&] {
        if (k >= K) return;
        ring.wait_full(turn);
        Tiles(tiles + turn.place * CELLS).multiply(sum, row, k > 0);
        wgmma_wait<1>();
        if (k > 0 && threadIdx.x % 128 == 0) ring.leave(last);
        last = turn;
        turn.advance();
        k += Tiles::PANEL;
    };
    // The second warpgroup begins a step earlier: while one is busy with a panel the tensor cores have some of the other's products.
    if (Kept::IN_TURNS && row > 0) step();
#pragma unroll
    for (int p = 0; p < Kept::PANELS; ++p) {
#pragma unroll
        for (int s = 0; s < Kept::STEPS; ++s) step();
        kept.store(p);
    }
    while (k < K) step();
    wgmma_wait<0>();
    if (threadIdx.x % 128 == 0) ring.leave(last);
}
// ANCHOR_END: multiply

}  // namespace lab

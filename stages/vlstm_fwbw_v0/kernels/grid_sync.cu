// F_t = Σ_{τ <= t} logsigmoid(f_τ), carried from tile to tile by a sync of the whole grid:
//
//   total_p = Σ_{t in p} logsigmoid(f_t)      F_t = Σ_{p < tile} total_p + Σ_{τ in tile, τ <= t}
//
// Work split: a tile is TILE positions of one head, a thread has one of them. A block takes the
// tiles blockIdx.x, blockIdx.x + gridDim.x, … twice: before the sync it leaves the sum of each,
// behind it it adds up what all blocks have left for the tiles before its own.
//
// The sync needs all blocks resident at once: a cooperative launch, of no more blocks than fit.
//
// f: heads x S. total: heads x tiles, tiles = ceil(S / TILE). F: heads x S, each in two floats.
#include <cooperative_groups.h>

#include "lab/gates.cuh"
#include "lab/reduce.cuh"
#include "scan.cuh"

using namespace lab;

// logsigmoid(f_t) of this thread's position in a tile; 0 past the end.
template <int TILE>
__device__ __forceinline__ double forgotten(const float* f, long long head, int tile, int S) {
    int t = tile * TILE + threadIdx.x;
    return t < S ? log_kept(f[head * S + t]) : 0.0f;
}

// ANCHOR: kernel
template <int TILE>
__global__ void __launch_bounds__(TILE)
    gate_sums_grid_sync(const float* __restrict__ f, double* __restrict__ total,
                        float2* __restrict__ F, int heads, int tiles, int S) {
    unsigned all = static_cast<unsigned>(heads) * tiles;
    double sum;
    for (unsigned n = blockIdx.x; n < all; n += gridDim.x) {
        block_scan<TILE>(forgotten<TILE>(f, n / tiles, n % tiles, S), sum);
        if (threadIdx.x == 0) total[n] = sum;
    }
    cooperative_groups::this_grid().sync();  // the sums of all tiles are written
    for (unsigned n = blockIdx.x; n < all; n += gridDim.x) {
        long long head = n / tiles;
        int tile = n % tiles, t = tile * TILE + threadIdx.x;
        double before = 0;
        for (int p = threadIdx.x; p < tile; p += TILE) before += total[head * tiles + p];
        before = block_reduce<TILE>(before, Add{}, 0.0);
        double within = block_scan<TILE>(forgotten<TILE>(f, head, tile, S), sum);
        if (t < S) F[head * S + t] = two_floats(before + within);
    }
}
// ANCHOR_END: kernel

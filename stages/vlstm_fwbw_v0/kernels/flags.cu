// F_t = Σ_{τ <= t} logsigmoid(f_τ), carried from tile to tile by the blocks of one head:
//
//   carried_p = carried_{p−1} + Σ_{t in p} logsigmoid(f_t)
//   F_t       = carried_{tile−1} + Σ_{τ in tile, τ <= t} logsigmoid(f_τ)
//
// Work split: a tile is TILE positions of one head, a thread has one of them, a block one tile. It
// waits for one block only, that of the tile before its own, and hands its sum to one.
//
// Which tile is a block's is decided by a ticket, and not by its index: blocks begin in any order,
// and a block that waits for one that has not begun may keep it from ever beginning. Whoever has
// the ticket of the tile before has begun.
//
// f: heads x S. carried: heads x tiles, tiles = ceil(S / TILE), and a flag for each, ready, zero
// before the launch as is the ticket. F: heads x S, each in two floats.
#include "lab/gates.cuh"
#include "lab/ptx/order.cuh"
#include "scan.cuh"

using namespace lab;

// ANCHOR: carry
// The sum of all tiles of the head before this one. One thread waits, adds and hands on.
__device__ __forceinline__ double carry(double* carried, unsigned* ready, int tile, double own) {
    double before = 0;
    if (tile > 0) {
        while (load_acquire(ready + tile - 1) == 0u) __nanosleep(20);
        before = carried[tile - 1];
    }
    carried[tile] = before + own;
    store_release(ready + tile, 1u);
    return before;
}
// ANCHOR_END: carry

// ANCHOR: kernel
template <int TILE>
__global__ void __launch_bounds__(TILE)
    gate_sums_flags(const float* __restrict__ f, double* carried, unsigned* ready, unsigned* ticket,
                    float2* __restrict__ F, int heads, int tiles, int S) {
    __shared__ unsigned mine;
    __shared__ double before;
    if (threadIdx.x == 0) mine = atomicAdd(ticket, 1u);
    __syncthreads();  // all read the ticket
    long long head = mine % heads;
    int tile = mine / heads, t = tile * TILE + threadIdx.x;
    double sum, within = t < S ? log_kept(f[head * S + t]) : 0.0f;
    within = block_scan<TILE>(within, sum);
    if (threadIdx.x == 0) before = carry(carried + head * tiles, ready + head * tiles, tile, sum);
    __syncthreads();  // all read what was carried
    if (t < S) F[head * S + t] = two_floats(before + within);
}
// ANCHOR_END: kernel

// y = s (x Wᵀ) + residual of 9 to 64 rows: a cluster shares k, so that x is read once for 128 rows of W.
//
//     y_rn = s_n Σ_k W_nk x_rk + residual_rn
//
// With many rows x no longer fits the L1 cache, and a block with 16 rows of W would read more of x than of W. Here a block has 128
// rows of W, a warp 16 of them, and an eighth of k: its part of x comes to shared memory in pieces of 512 columns, once for all
// warps. The eight blocks of a cluster have the other parts of k, and their sums meet in shared memory: block b of the cluster
// adds up all blocks' sums of tile b, in their order, and ends it. So there are as many blocks as W has parts, even where N is small.
//
// weight: N x K, or 2 N x K; scale: one for each of its rows; x: R x K; residual: R x N; y: R x N, in parts (cell_of); the columns
// from p4 on may be gates. K is a multiple of 16; R at most 8 TILES.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/grid_dependency.cuh"
#include "mma_rows.cuh"

#include <cooperative_groups.h>

using namespace lab;

constexpr int BLOCKS = WARPS, CHUNK = 512, DEPTH = 2;  // of a cluster, a tile each; columns of a piece; steps in flight
// Rows of x in shared memory begin 16 banks apart: eight lanes that load 16 bytes of two rows touch all 32.
constexpr int CHUNK_ROW = CHUNK + 32;

// Of a tile: its sums in each block of the cluster.
struct PartSums {
    cooperative_groups::cluster_group cluster;
    float* tile;

    __device__ __forceinline__ float all(int r, int i) const {
        float sum = 0;
        for (int b = 0; b < BLOCKS; ++b) sum += cluster.map_shared_rank(tile, b)[r * (HIGH + 1) + i];
        return sum;
    }
};

// R rows of x from column k0 on, with zeros behind R and K.
template <int ROWS, class T> __device__ __forceinline__ void load_chunk(T* to, const T* x, int k0, int end, int R, int K) {
    constexpr int E = Pack<T>::N, PACKS = CHUNK / E;
#pragma unroll 4
    for (int e = threadIdx.x; e < ROWS * PACKS; e += THREADS) {
        int r = e / PACKS, c = e % PACKS * E;
        bool inside = r < R && k0 + c < end;
        uint4 raw = inside ? *reinterpret_cast<const uint4*>(x + 1ll * r * K + k0 + c) : uint4{0, 0, 0, 0};
        *reinterpret_cast<uint4*>(to + r * CHUNK_ROW + c) = raw;
    }
}

template <class T, int TILES>
constexpr int of_chunk = TILES * 8 * CHUNK_ROW * sizeof(T);
template <class T, class W, int TILES>
constexpr int few_rows_split_shared = of_chunk<T, TILES> > int(sizeof(Sums<TILES>)) ? of_chunk<T, TILES> : sizeof(Sums<TILES>);

// ANCHOR: split
template <class T, class W, int TILES>
__global__ void __launch_bounds__(THREADS, 2)
    few_rows_split(const W* __restrict__ weight, const float* __restrict__ scale, const T* x, const T* __restrict__ bias,
                   const T* residual, T* y, float* gates, int R, int N, int K, int has_residual, int gated, int heads, float cap,
                   int p1, int p2, int p3, int p4) {
    DYNAMIC_SHARED(T, chunk);
    auto cluster = cooperative_groups::this_cluster();
    int rank = static_cast<int>(cluster.block_rank()), group = blockIdx.x / BLOCKS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    constexpr int STEP = Rows<W>::STEP, OF_CHUNK = CHUNK / STEP;
    int steps = (K + STEP - 1) / STEP, mine = (steps + BLOCKS * DEPTH - 1) / (BLOCKS * DEPTH) * DEPTH;
    int first = rank * mine, end = min((first + mine) * STEP, K);  // of this block, in columns
    Rows<W> rows(weight, group * WARPS + warp, N, K, gated, g);

    griddep_launch_dependents();
    Part parts[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) parts[d] = rows.load(first + d, t);
    griddep_wait();  // W is nobody's result: it is on its way before x is there

    float c[TILES][4] = {};
    for (int s = 0; s < mine; s += DEPTH) {
        if (s % OF_CHUNK == 0) {
            __syncthreads();  // the piece before is read
            load_chunk<TILES * 8>(chunk, x, (first + s) * STEP, end, R, K);
            __syncthreads();  // all of this one is there
        }
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            int local = (s + d) % OF_CHUNK, next = s + d + DEPTH;
            multiply_shared<T, W, TILES, CHUNK_ROW>(c, parts[d], chunk, local, g, t);
            // Past this block's part: the step behind the last, which loads nothing.
            parts[d] = rows.load(next < mine ? first + next : steps, t);
        }
    }
    __syncthreads();  // x is read: the sums take its place
    auto& sums = *reinterpret_cast<Sums<TILES>*>(chunk);
    sums.put(c, warp, g, t);
    cluster.sync();  // the sums of all blocks are written
    int tile = group * WARPS + rank;
    PartSums all{cluster, &sums.of_warp[rank][0][0]};
    store_rows<W>(all, tile, scale, residual, y, R, heads ? p4 : N, has_residual, gated, p1, p2, p3, p4);
    if (heads && (tile + 1) * HIGH > p4) store_gates<W>(all, tile, scale, bias, gates, R, N, heads, cap, p4);
    cluster.sync();  // no block ends before others have read its sums
}
// ANCHOR_END: split

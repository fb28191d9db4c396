// A product of tiles by mma.sync, whole: a block computes a tile of it.
//
//   sum_ij = Σ_r A_ir B_rj      TILE x TILE of them by a block; r goes in tiles of TILE
//
// Both tiles go by cp.async to shared memory, swizzled, STAGES of them in flight. Each of four warps has 32 x 32 of the
// sums, in its lanes' registers. A lies in memory as rows of i (Q), or transposed, as rows of r (K); B as rows of r.
// ldmatrix transposes halves on their way to registers; of 4-byte elements it cannot, and each lane loads its own.
//
// PACK elements are copied at a time: 16 bytes, which asks that rows be whole packs, or one by one.
#pragma once
#include "lab/ptx/cp_async.cuh"
#include "lab/ptx/cvt.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/ldmatrix.cuh"
#include "lab/ptx/mma.cuh"
#include "lab/swizzle.cuh"
#include "lab/tile.cuh"

namespace lab {

constexpr int TILE = 64;

// A tile in shared memory. ldmatrix reads eight rows of 16 bytes at once; lanes for themselves four rows of two chunks.
template <class T, bool BY_LDMATRIX> using TileOf = SwizzledTile<T, TILE, BY_LDMATRIX ? 1 : 2>;

// 64 x 64 elements of a matrix, from row r0 and column c0 on; what lies outside of it is zero.
template <class Tile, int PACK, int THREADS, class T>
__device__ __forceinline__ void copy_tile(T* to, Matrix<const T> from, int r0, int c0) {
    constexpr int CELLS = Tile::CELLS, CHUNKS = Tile::CHUNKS;
#pragma unroll
    for (int n = threadIdx.x; n < TILE * CHUNKS; n += THREADS) {
        int r = r0 + n / CHUNKS, c = c0 + n % CHUNKS * CELLS;
        T* place = to + Tile::offset(n / CHUNKS, n % CHUNKS * CELLS);
        if constexpr (PACK != 1) {
            async_copy_or_zero<16>(place, from.at(r, c), from.inside(r, c));
        } else {
#pragma unroll
            for (int i = 0; i < CELLS; ++i) place[i] = from.inside(r, c + i) ? *from.at(r, c + i) : T(0.0f);
        }
    }
}

// ANCHOR: fragments
// A lane's share of 16 rows of A from i on and 32 bytes of r from r on, where the tile has rows of i.
template <class Tile, class T> __device__ __forceinline__ void load_rows(unsigned (&to)[4], T* tile, int i, int r) {
    int lane = threadIdx.x % 32;
    load_matrices(to, tile + Tile::offset(i + lane % 16, r + lane / 16 * Tile::CELLS));
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int n = 0; n < 4; ++n) to[n] = to_tf32(to[n]);
    }
}

// Where the tile has rows of r: for A, the pieces come as rows 0-7 and 8-15 of i, then the next 8 of r; for B, 16
// columns of it, as the next 8 of r first.
template <class Tile, bool IS_A, class T>
__device__ __forceinline__ void load_columns(unsigned (&to)[4], T* tile, int r, int i) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            int along = IS_A ? n % 2 : n / 2, down = IS_A ? n / 2 : n % 2;
            to[n] = to_tf32(__float_as_uint(*Tile{tile}.at(r + t + down * 4, i + g + along * 8)));
        }
    } else {
        int along = IS_A ? lane / 8 % 2 : lane / 16, down = IS_A ? lane / 16 : lane / 8 % 2;
        load_matrices_transposed(to, tile + Tile::offset(r + lane % 8 + down * 8, i + along * 8));
    }
}
// ANCHOR_END: fragments

template <class T, int PACK, bool A_TRANSPOSED> struct TileProduct {
    static constexpr int STAGES = 3, THREADS = 128, STAGE = 2 * TILE * TILE, BYTES = STAGES * STAGE * sizeof(T);
    using TileA = TileOf<T, !A_TRANSPOSED || sizeof(T) == 2>;
    using TileB = TileOf<T, sizeof(T) == 2>;
    float sum[2][4][4] = {};
    int wi = threadIdx.x / 64 * 32, wj = threadIdx.x / 32 % 2 * 32;

    // ANCHOR: tiles
    // Over `count` tiles of r from r0 on, of columns j0 to j0 + 63 of b and as many i of a.
    __device__ __forceinline__ void run(T* stages, Matrix<const T> a, Matrix<const T> b, int i0, int j0, int r0,
                                        int count) {
        auto copy = [&](int n) {
            T* stage = stages + n % STAGES * STAGE;
            int r = r0 + n * TILE;
            if (n < count) {
                copy_tile<TileA, PACK, THREADS>(stage, a, A_TRANSPOSED ? r : i0, A_TRANSPOSED ? i0 : r);
                copy_tile<TileB, PACK, THREADS>(stage + TILE * TILE, b, r, j0);
            }
            async_commit();  // a group for each tile, if only an empty one: the wait counts groups
        };
        for (int n = 0; n < STAGES - 1; ++n) copy(n);
        for (int n = 0; n < count; ++n) {
            async_wait<STAGES - 2>();
            __syncthreads();  // all copies of tile n have landed; tile n - 1 is read: the next goes to its place
            copy(n + STAGES - 1);
            multiply(stages + n % STAGES * STAGE);
        }
    }
    // ANCHOR_END: tiles

    // f(i, j, two) for each pair of neighbours in a row of this lane's sums.
    template <class F> __device__ __forceinline__ void each_pair(F f) const {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) f(wi + i * 8 + g, wj + j * 8 + t * 2, &sum[i / 2][j][i % 2 * 2]);
    }

  private:
    __device__ __forceinline__ void multiply(T* stage) {
#pragma unroll
        for (int r = 0; r < TILE; r += MMA_K<T>) {
            unsigned a[2][4], b[2][4];
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                if constexpr (A_TRANSPOSED)
                    load_columns<TileA, true>(a[n], stage, r, wi + n * 16);
                else
                    load_rows<TileA>(a[n], stage, wi + n * 16, r);
                load_columns<TileB, false>(b[n], stage + TILE * TILE, r, wj + n * 16);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const unsigned* own = b[j / 2] + j % 2 * 2;
                    multiply_add<T>(sum[i][j], a[i], own[0], own[1]);
                }
        }
    }
};

}  // namespace lab

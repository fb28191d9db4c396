// A tile of a product of bf16 on the tensor cores, C = A B, its sums in f32 in registers: a block has BM x
// BN of them, a warp WM x WN. Tiles of both operands, BK deep, go by cp.async to shared memory, swizzled,
// STAGES of them in flight. An operand may lie along k or across it: ldmatrix transposes what lies across.
#pragma once
#include "lab/ptx/cp_async.cuh"
#include "lab/ptx/cvt.cuh"
#include "lab/ptx/ldmatrix.cuh"
#include "lab/ptx/mma.cuh"
#include "register_tile.cuh"
#include "lab/swizzle.cuh"

namespace lab {

using Half = __nv_bfloat16;


// A matrix in bf16: `limit` rows of `columns`, a multiple of 8, `stride` apart.
struct Operand {
    const Half* x;
    long long stride;
    int limit, columns;
};

// ANCHOR: tile
template <int BM, int BN, int WM, int WN, Along A_LIES, Along B_LIES, int BK_ = 64> struct TensorTile {
    static constexpr int THREADS = BM / WM * (BN / WN) * 32;
    static constexpr int BK = BK_, STAGES = 3, CELLS = 8;  // CELLS in a chunk of 16 bytes
    static constexpr int STAGE = (BM + BN) * BK;  // a tile of A, then one of B
    static constexpr int BYTES = STAGES * STAGE * sizeof(Half);
    static_assert(WM % 16 == 0 && WN % 16 == 0, "a warp has whole pairs of 16 x 8: change WM, WN");
    float sum[WM / 16][WN / 8][4] = {};

    static __device__ __forceinline__ int wi() { return threadIdx.x / 32 / (BN / WN) * WM; }
    static __device__ __forceinline__ int wj() { return threadIdx.x / 32 % (BN / WN) * WN; }

    // SIDE x BK elements of an operand, of rows (or columns) from m0 and k from k0 on.
    template <int SIDE, Along LIES>
    static __device__ __forceinline__ void copy(Half* to, const Operand& from, int m0, int k0) {
        constexpr int WIDTH = LIES == ALONG_K ? BK : SIDE, CHUNKS = WIDTH / CELLS;
        static_assert(SIDE * BK % (CELLS * THREADS) == 0, "each thread copies as many chunks");
        SwizzledTile<Half, WIDTH> tile{to};
#pragma unroll
        for (int n = 0; n < SIDE * BK / (CELLS * THREADS); ++n) {
            int chunk = n * THREADS + threadIdx.x, r = chunk / CHUNKS, c = chunk % CHUNKS * CELLS;
            int row = r + (LIES == ALONG_K ? m0 : k0), column = c + (LIES == ALONG_K ? k0 : m0);
            bool inside = row < from.limit && column < from.columns;
            async_copy_or_zero<16>(tile.chunk(r, c), from.x + row * from.stride + column, inside);
        }
    }

    // Four 8 x 8 matrices: of rows m and m + 8, k and k + 8. `second_is_k`: the second has k + 8.
    template <int SIDE, Along LIES, bool SECOND_IS_K>
    static __device__ __forceinline__ void load(unsigned (&to)[4], const Half* from, int m, int k) {
        constexpr int WIDTH = LIES == ALONG_K ? BK : SIDE;
        SwizzledTile<Half, WIDTH> tile{const_cast<Half*>(from)};
        int lane = threadIdx.x % 32, second = lane / 8 % 2 * 8, third = lane / 16 * 8;
        int of_k = SECOND_IS_K ? second : third, of_m = SECOND_IS_K ? third : second;
        if constexpr (LIES == ALONG_K)
            load_matrices(to, tile.chunk(m + of_m + lane % 8, k + of_k));
        else
            load_matrices_transposed(to, tile.chunk(k + of_k + lane % 8, m + of_m));
    }

    __device__ __forceinline__ void multiply(const Half* stage) { multiply(stage, stage + BM * BK); }
    __device__ __forceinline__ void multiply(const Half* a, const Half* b) {
#pragma unroll
        for (int k = 0; k < BK; k += 16) {
            unsigned a_k[WM / 16][4], b_k[WN / 16][4];
#pragma unroll
            for (int i = 0; i < WM / 16; ++i) load<BM, A_LIES, false>(a_k[i], a, wi() + i * 16, k);
#pragma unroll
            for (int j = 0; j < WN / 16; ++j) load<BN, B_LIES, true>(b_k[j], b, wj() + j * 16, k);
#pragma unroll
            for (int i = 0; i < WM / 16; ++i)
#pragma unroll
                for (int j = 0; j < WN / 8; ++j)
                    multiply_add<Half>(sum[i][j], a_k[i], b_k[j / 2][j % 2 * 2],
                                       b_k[j / 2][j % 2 * 2 + 1]);
        }
    }

    // Adds the products of k from `first` to before `end`. each(stage) sees every pair of tiles.
    template <class Each>
    __device__ __forceinline__ void run(Half* stages, const Operand& a, int m0, const Operand& b,
                                        int n0, int first, int end, Each each) {
        auto fetch = [&](int n) {
            int k0 = first + n * BK;
            Half* to = stages + n % STAGES * STAGE;
            if (k0 < end) copy<BM, A_LIES>(to, a, m0, k0), copy<BN, B_LIES>(to + BM * BK, b, n0, k0);
            async_commit();
        };
        for (int n = 0; n + 1 < STAGES; ++n) fetch(n);
        for (int n = 0; first + n * BK < end; ++n) {
            async_wait<STAGES - 2>();
            __syncthreads();  // this stage has landed, and the one before is read: it is filled next
            fetch(n + STAGES - 1);
            multiply(stages + n % STAGES * STAGE);
            each(stages + n % STAGES * STAGE);
        }
    }

    // f(m, n, sums) for each row of which this lane has sums, in pairs of neighbours, n[j] and n[j] + 1.
    template <class F> __device__ __forceinline__ void for_each_row(F f) const {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < WM / 8; ++i) {
            int n[WN / 8];
            const float* pairs[WN / 8];
#pragma unroll
            for (int j = 0; j < WN / 8; ++j)
                n[j] = wj() + j * 8 + 2 * t, pairs[j] = &sum[i / 2][j][i % 2 * 2];
            f(wi() + i * 8 + g, n, pairs);
        }
    }
};
// ANCHOR_END: tile

}  // namespace lab

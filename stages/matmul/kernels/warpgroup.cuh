// What the versions by wgmma share: a tile of A and one of B, brought by TMA and multiplied where they lie, and
// the sums' way out of the lanes that have them.
//
// Tiles are BK deep, and swizzled in spans of 128 bytes. A span is BK elements of k of a row of A, so that a tile of
// A is one box. Of B, consecutive columns of which lie side by side, it is 64 columns of one k: a box is a panel of
// these, and wgmma takes it transposed. What of a box lies outside of its matrix is zero.
#pragma once
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/tensor_copy.cuh"
#include "lab/ptx/wgmma.cuh"
#include "tensor.cuh"

namespace lab {

// Of a block of three warpgroups, two of which multiply; together no more than the block was launched with.
constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;

// BM rows of A and BN columns of B.
template <class T, int BM, int BN, int BK> struct Tiles {
    static constexpr int SPAN = 128, STEP = 32 / sizeof(T), PANEL = SPAN / sizeof(T);
    static constexpr int CELLS = (BM + BN) * BK, BYTES = CELLS * sizeof(T);
    static_assert(BK * sizeof(T) == SPAN && BM % 64 == 0 && BN % PANEL == 0, "whole spans");
    T *a, *b;

    __device__ __forceinline__ explicit Tiles(T* tiles) : a(tiles), b(tiles + BM * BK) {}

    // ANCHOR: tiles
    // Asks for the tiles of rows i and columns j, from k on, of matrix g; one thread.
    __device__ __forceinline__ void load(const TensorMap& A, const TensorMap& B, int i, int j, int k, int g,
                                         Mbarrier* full) const {
        mbarrier_arrive_expect(full, BYTES);
        tensor_load(a, A, {k, i, g}, full);
#pragma unroll
        for (int p = 0; p < BN; p += PANEL) tensor_load(b + p * BK, B, {j + p, k, g}, full);
    }

    // sum = or += the product of 64 rows of A, from `row` on, and B: one group of wgmma.
    __device__ __forceinline__ void multiply(float (&sum)[BN / 2], int row, bool adds) const {
        auto rows = k_major<SPAN>(a + row * BK, 8 * SPAN);
        auto columns = mn_major<SPAN>(b, BK * SPAN, 8 * SPAN);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK; k += STEP)
            wgmma<T, BN, false, true>(sum, advance(rows, k * sizeof(T)), advance(columns, k * SPAN), adds || k > 0);
        wgmma_commit();
    }
    // ANCHOR_END: tiles

    // The same with B for all BLOCKS blocks of a cluster, that have the same columns: this one, `rank`, asks for its
    // part of them, for all.
    template <int BLOCKS>
    __device__ __forceinline__ void load_for(const TensorMap& A, const TensorMap& B, int i, int j, int k, int g,
                                             int rank, Mbarrier* full) const {
        constexpr int PART = BN / BLOCKS;
        static_assert(PART % PANEL == 0, "whole panels");
        mbarrier_arrive_expect(full, BYTES);
        tensor_load(a, A, {k, i, g}, full);
#pragma unroll
        for (int p = 0; p < PART; p += PANEL)
            tensor_load_multicast(b + (rank * PART + p) * BK, B, {j + rank * PART + p, k, g}, full, (1 << BLOCKS) - 1);
    }
};

// The sums of a warpgroup to its 64 rows of C, from i on, and columns from j on.
template <class T, int BN>
__device__ __forceinline__ void store_sums(Matrix<T> c, const float (&sum)[BN / 2], int i, int j) {
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < BN / 8; n += 2) {
            float four[4];
            exchange(four, &sum[4 * n + 2 * half], &sum[4 * (n + 1) + 2 * half]);
            c.template store<true>(four, i + warp * 16 + half * 8 + lane / 4, j + (n + lane % 2) * 8 + lane % 4 / 2 * 4);
        }
}

}  // namespace lab

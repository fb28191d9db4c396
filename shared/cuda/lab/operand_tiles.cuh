// The tiles of two operands of a product by wgmma, C = A B, in shared memory: BM rows of A and BN columns of B, BK deep, as
// TMA brings them.
//
// An operand lies along k or across it. Along k a tile is one box, a row of it a span of 128 bytes of k. Across, a box is
// a panel: BK rows of 128 bytes of neighbours, and wgmma takes it transposed, which it does for halves alone. What of a box
// lies outside of its matrix is zero. Tiles begin at multiples of 1024 bytes: DYNAMIC_TILES.
#pragma once
#include "lab/along.cuh"
#include "lab/ptx/tensor_copy.cuh"
#include "lab/ptx/wgmma.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

template <class T, Along A_LIES, Along B_LIES, int BM, int BN, int BK> struct OperandTiles {
    static constexpr int SPAN = 128, STEP = 32 / sizeof(T), PANEL = SPAN / sizeof(T);
    static constexpr int CELLS = (BM + BN) * BK, BYTES = CELLS * sizeof(T);
    static_assert(BK == PANEL && BM % 64 == 0 && BN % 8 == 0, "whole spans, whole warpgroups");
    static_assert(B_LIES == ALONG_K || BN % PANEL == 0, "whole panels");
    T *a, *b;

    __device__ __forceinline__ explicit OperandTiles(T* tiles) : a(tiles), b(tiles + BM * BK) {}

    // ANCHOR: tiles
    // Asks for the tiles of rows i and columns j, from k on; of matrix g, where the maps have several. One thread.
    template <class... G>
    __device__ __forceinline__ void load(const TensorMap& A, const TensorMap& B, int i, int j, int k, Mbarrier* full,
                                         G... g) const {
        expect(full);
        issue_load_of_a(A, i, k, full, g...);
        load_b(B, j, k, full, g...);
    }
    // sum = or += the product of 64 rows of A, from `row` on, and B, or the first 2 SUMS columns of it: one group of wgmma.
    // also(rows, adds) may add to each step of it: `rows` are A's of that step.
    template <int SUMS, class Also>
    __device__ __forceinline__ void multiply(float (&sum)[SUMS], int row, bool adds, Also also) const {
        static_assert(SUMS <= BN / 2, "columns that are there");
        auto rows = operand<A_LIES>(a + row * BK), columns = operand<B_LIES>(b);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK / STEP; ++k) {
            auto of_a = advance(rows, k * STEP_BYTES<A_LIES>);
            wgmma<T, SUMS * 2, A_LIES == ACROSS_K, B_LIES == ACROSS_K>(sum, of_a, advance(columns, k * STEP_BYTES<B_LIES>),
                                                                 adds || k > 0);
            also(of_a, adds || k > 0);
        }
        wgmma_commit();
    }
    template <int SUMS> __device__ __forceinline__ void multiply(float (&sum)[SUMS], int row, bool adds) const {
        multiply(sum, row, adds, [](unsigned long long, bool) {});
    }
    // ANCHOR_END: tiles

    // As load() in parts: first the bytes of both are expected.
    __device__ __forceinline__ static void expect(Mbarrier* full) { mbarrier_arrive_expect(full, BYTES); }
    template <class... G>
    __device__ __forceinline__ void issue_load_of_a(const TensorMap& A, int i, int k, Mbarrier* full, G... g) const {
        load_side<A_LIES, BM>(a, A, i, k, full, g...);
    }
    template <class... G>
    __device__ __forceinline__ void load_b(const TensorMap& B, int j, int k, Mbarrier* full, G... g) const {
        load_side<B_LIES, BN>(b, B, j, k, full, g...);
    }

  private:
    template <Along LIES> static constexpr int STEP_BYTES = LIES == ALONG_K ? STEP * sizeof(T) : STEP * SPAN;

    template <Along LIES, int SIDE, class... G>
    __device__ __forceinline__ static void load_side(T* to, const TensorMap& from, int m, int k, Mbarrier* full, G... g) {
        if constexpr (LIES == ALONG_K) {
            tensor_load(to, from, {k, m, g...}, full);
        } else {
#pragma unroll
            for (int p = 0; p < SIDE; p += PANEL) tensor_load(to + p * BK, from, {m + p, k, g...}, full);
        }
    }
    template <Along LIES> __device__ __forceinline__ static unsigned long long operand(const T* tile) {
        if constexpr (LIES == ALONG_K) return k_major<SPAN>(tile, 8 * SPAN);
        else return mn_major<SPAN>(tile, BK * SPAN, 8 * SPAN);
    }
};

}  // namespace lab
#endif

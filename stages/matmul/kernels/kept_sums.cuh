// The sums of a warpgroup on their way to C, kept in registers while the products of its next tile run.
#pragma once
#include "lab/staged_store.cuh"

namespace lab {

// ANCHOR: kept
// 64 rows, from `row` on, of a tile of BM x BN, rounded: half as many registers as the sums. Each thread has what wgmma gave it.
template <class T, int BM, int BN, class Order> struct KeptSums {
    using Store = StagedStore<T, BN>;
    static constexpr bool IN_TURNS = false;
    static constexpr int PANELS = BN / Store::PANEL, STEPS = 2;  // of k before each: a panel a step would hold up the next one
    const TensorMap& C;
    const Store& staged;
    Order order;
    int row, tile = -1;  // which one of the order; none
    int i, j, g;         // where it lies, known when its first panel is stored
    unsigned words[BN / 4];

    __device__ __forceinline__ KeptSums(const TensorMap& C, const Store& staged, Order order, int row)
        : C(C), staged(staged), order(order), row(row) {}

    __device__ __forceinline__ void keep(const float (&sum)[BN / 2], int n) {
        tile = n;
#pragma unroll
        for (int w = 0; w < BN / 4; ++w) words[w] = two_halves<T>(sum[2 * w], sum[2 * w + 1]);
    }
    // Panel p, if anything is kept: the first one first. Only now is it computed where the tile lies, for that takes some
    // divisions, and the tensor cores have work.
    __device__ __forceinline__ void store(int p) {
        if (tile < 0) return;
        if (p == 0) {
            auto [down, along, matrix] = order.at(tile);
            i = down * BM + row, j = along * BN, g = matrix;
        }
        int first = p * Store::PANEL;
        staged.store_panel(C, p, i, j + first, g, [&](int w) { return words[first / 4 + w]; });
    }
};
// ANCHOR_END: kept

}  // namespace lab

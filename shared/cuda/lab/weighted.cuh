// Two products with weights between them, the form of attention and of its gradients:
//
//   sum_ac += Σ_b w_ab Z_bc        w_ab = weigh(Σ_c own_ac X_bc)
//
// A block owns the rows a; X and Z, with rows b, come past it a tile at a time and take turns in
// one array. What of a product is a thread's own, and how tiles lie: lab/products.cuh.
#pragma once
#include "lab/products.cuh"

namespace lab {

// The block's shared memory: its own rows, those that come past, the weights between them.
template <int OWN, int PAST, int DH> struct WeightedTiles {
    static constexpr int BYTES = TILES_BYTES<OWN, PAST, DH>;
    static_assert(BYTES <= MOST_SHARED,
                  "an RTX 4060 has 99 KB of shared memory for a block: lower OWN or PAST");
    float (*own)[ROW<DH>];
    float (*past)[ROW<DH>];
    float (*weights)[SCORES_ROW<PAST>];

    __device__ __forceinline__ explicit WeightedTiles(float* memory)
        : own(reinterpret_cast<float(*)[ROW<DH>]>(memory)), past(own + OWN),
          weights(reinterpret_cast<float(*)[SCORES_ROW<PAST>]>(past + PAST)) {}
};

// The rows from `first` on, a multiple of PAST, to `end`. weigh(score, b0) turns a thread's
// products with the tile from b0 into weights; what lies past the end must weigh zero.
template <class L = InRows, int OWN, int PAST, int DH, int RC, class T, class Weigh>
__device__ __forceinline__ void weighted_products(float (&sum)[OWN / L::WI][RC],
                                                  WeightedTiles<OWN, PAST, DH> tiles,
                                                  Matrix<const T> X, Matrix<const T> Z, int first,
                                                  int end, Weigh weigh) {
    constexpr int RI = OWN / L::WI, RJ = PAST / L::WJ, PACK = 16 / sizeof(T);
    int ti = L::ti(), tj = L::tj();
    // ANCHOR: loop
    for (int b0 = first; b0 < end; b0 += PAST) {
        float score[RI][RJ] = {};
        load_tile<PAST, DH, PACK, L::THREADS>(tiles.past, X, b0);
        __syncthreads();  // a thread reads rows of both tiles that others have stored
        rows_times_rows<L>(score, tiles.own, tiles.past, X.columns);
        weigh(score, b0);
#pragma unroll
        for (int a = 0; a < RI; ++a)
#pragma unroll
            for (int b = 0; b < RJ; ++b) tiles.weights[ti + a * L::WI][tj + b * L::WJ] = score[a][b];
        __syncthreads();  // X is read: Z may overwrite it
        load_tile<PAST, DH, PACK, L::THREADS>(tiles.past, Z, b0);
        __syncthreads();  // a thread reads weights and rows of Z that others have stored
        scores_times_rows<L, PAST>(sum, tiles.weights, tiles.past);
        __syncthreads();  // Z and the weights are read: the next ones may overwrite them
    }
    // ANCHOR_END: loop
}

}  // namespace lab

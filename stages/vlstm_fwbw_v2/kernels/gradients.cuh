// What is made of a pair's two products, q_i·k_j and dh_i·v_j. With w_ij = s exp(F_i - F_j + i_j - m_i) / N_i,
//
//   c_ij  = (q_i·k_j) w_ij = C̃_ij / N_i        dS_ij = (dh_i·v_j + ρ_i) w_ij
//   G_ij  = c_ij (dh_i·v_j + ρ_i)              the gradient of the exponent: di is its sum over i
//
// ρ_i = N_i r_i is what the gradient through n brings; 0 where n is held constant.
#pragma once
#include "lab/reduce.cuh"
#include "lab/vlstm/pairs.cuh"

namespace lab {

// ANCHOR: queries
// dS_ij of a lane's two rows i in place of dh_i·v_j. On the diagonal only pairs j <= i count.
template <bool DIAGONAL, int N, class Weight>
__device__ __forceinline__ void weigh_queries(float (&product)[N], const float (&rho)[2], const Weight& weight) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        int r = n / 2 % 2, j = n / 4 * 8 + threadIdx.x % 4 * 2;
        float2 w = weight(j, r);
        product[n] = (product[n] + rho[r]) * w.x, product[n + 1] = (product[n + 1] + rho[r]) * w.y;
        if (DIAGONAL) {  // not 0 · NaN, where the position is a later one
            int i = own_row() + 8 * r;
            if (j > i) product[n] = 0;
            if (j >= i) product[n + 1] = 0;
        }
    }
}
// ANCHOR_END: queries

// ANCHOR: keys
// The other way round: a lane has two positions j and, of each eight that come past, two rows i. c_ij of q_i·k_j and dS_ij
// of dh_i·v_j, rounded, as A operands of the sums over i; adds G_ij to di_j, and leaves its sum over the lane's two j in
// `sum`, both in f32. `own` is the first of the two positions, where the first row is 0.
template <class T, bool DIAGONAL, int N, class Weight>
__device__ __forceinline__ void weigh_keys(unsigned (&c_pairs)[N / 8][4], unsigned (&dS_pairs)[N / 8][4],
                                           const float (&score)[N], const float (&product)[N], float (&di)[2],
                                           float (&sum)[N / 2], const float* rho, const Weight& weight, int own) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        int r = n / 2 % 2, i = n / 4 * 8 + threadIdx.x % 4 * 2;
        float2 w = weight(i, r), of_n = *reinterpret_cast<const float2*>(rho + i);
        float c[2] = {score[n] * w.x, score[n + 1] * w.y}, p[2] = {product[n] + of_n.x, product[n + 1] + of_n.y};
        float dS[2] = {p[0] * w.x, p[1] * w.y};
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            bool counts = !DIAGONAL || i + e >= own + 8 * r;  // not 0 · NaN, where the row is an earlier one
            if (!counts) c[e] = dS[e] = p[e] = 0;
            float G = c[e] * p[e];
            di[r] += G;
            int column = n / 4 * 2 + e;
            sum[column] = r > 0 ? sum[column] + G : G;
        }
        c_pairs[n / 8][n / 2 % 4] = two_halves<T>(c[0], c[1]);
        dS_pairs[n / 8][n / 2 % 4] = two_halves<T>(dS[0], dS[1]);
    }
}

// Sums over the eight lanes that have the same columns: of each step a lane keeps half of its columns, in the end two that
// are neighbours, from kept_column() on.
template <int LANES = 16, int COLUMNS>
__device__ __forceinline__ float2 sum_columns(const float (&all)[COLUMNS]) {
    bool upper = threadIdx.x / LANES % 2 > 0;
    float kept[COLUMNS / 2];
#pragma unroll
    for (int n = 0; n < COLUMNS / 2; ++n) {
        float low = all[n], high = all[n + COLUMNS / 2];
        kept[n] = (upper ? high : low) + __shfl_xor_sync(0xffffffff, upper ? low : high, LANES);
    }
    if constexpr (LANES > 4) return sum_columns<LANES / 2>(kept);
    else return make_float2(kept[0], kept[1]);
}
__device__ __forceinline__ int kept_column() {
    int lane = threadIdx.x % 32;
    return (lane / 16 * 4 + lane / 8 % 2 * 2 + lane / 4 % 2) * 8 + lane % 4 * 2;
}
// ANCHOR_END: keys

// di of a lane's two positions, of which each of four lanes has a part. `first` is the position of the tile's first.
__device__ __forceinline__ void store_sums(const float (&of_G)[2], float* di, int first, int S) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        int j = first + own_row() + 8 * r;
        float sum = warp_reduce<4>(of_G[r], Add());
        if (threadIdx.x % 4 == 0 && j < S) di[j] = sum;
    }
}

// Of whom a block has the n-th of `parts` shares of the work: of a head, and how many of its `tiles` have more pairs. Heads
// come `together` at a time, as many as the second-level cache has room for; of those, tiles with most pairs come first.
struct Share {
    int longer, head;

    __device__ __forceinline__ Share(int tiles, int together, int n, int parts) {
        int first = n / (together * tiles) * together, heads = min(together, parts / tiles - first);
        int at = n - first * tiles;
        longer = at / heads, head = first + at % heads;
    }
};

}  // namespace lab

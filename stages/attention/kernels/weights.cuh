// Weights of pairs from their scores, in registers as mma.sync leaves them: a lane has rows own_row() and 8 more, and two
// neighbours of each eight columns (lab/vlstm/pairs.cuh).
//
//   P_ij = exp(S_ij - lse_i) = 2^(q_i·k_j log2_scale - lse_i log2(e))      dS_ij = P_ij (do_i·v_j - δ_i)
//
// What a pair needs of its row i is two numbers, (lse_i log2(e), δ_i). Past the end of S they are (∞, 0), so that the weight
// is 0.
#pragma once
#include "lab/reduce.cuh"
#include "lab/vlstm/warp_tiles.cuh"

namespace lab {

// The columns of a tile that a lane's n-th number is of, as it and its neighbour.
__device__ __forceinline__ int own_column(int n) { return n / 4 * 8 + threadIdx.x % 4 * 2; }

// Scores of columns past `last` of their row become -∞: not 0 · NaN, where K's row is a later one. `column` is the tile's
// first.
template <int N> __device__ __forceinline__ void hide_later(float (&score)[N], const int (&last)[2], int column) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        int r = n / 2 % 2, j = column + own_column(n);
        if (j > last[r]) score[n] = lowest<float>();
        if (j >= last[r]) score[n + 1] = lowest<float>();
    }
}

// ANCHOR: running
// Of a lane's two rows: the largest scaled score so far, and this lane's part of the sum of powers below it.
struct Running {
    float top[2] = {lowest<float>(), lowest<float>()}, sum[2] = {};

    // Weights in place of a tile's scores, and by what all that was gathered before shrinks. Each row has a score that is
    // not -∞ in the first tile.
    template <int N> __device__ __forceinline__ float2 weigh(float (&score)[N], float log2_scale) {
        float shrinks[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float most = score[2 * r];
#pragma unroll
            for (int n = 2 * r; n < N; n += 4) most = max(most, max(score[n], score[n + 1]));
            most = max(top[r], warp_reduce<4>(most, Max{}) * log2_scale);
            shrinks[r] = power_of_two(top[r] - most);
            top[r] = most, sum[r] *= shrinks[r];
        }
#pragma unroll
        for (int n = 0; n < N; ++n) {
            int r = n / 2 % 2;
            score[n] = power_of_two(score[n] * log2_scale - top[r]);
            sum[r] += score[n];
        }
        return make_float2(shrinks[0], shrinks[1]);
    }

    // 1 / the sum of each row, and its lse, to the head's: `own` is the first of the lane's rows.
    __device__ __forceinline__ void finish(float (&inverse)[2], float* lse, int own, int S) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float all = warp_reduce<4>(sum[r], Add{});
            inverse[r] = 1 / all;
            if (threadIdx.x % 4 == 0 && own + 8 * r < S) lse[own + 8 * r] = (top[r] + log2f(all)) * LN2;
        }
    }
};

// Each of a lane's two rows times its factor.
template <int N> __device__ __forceinline__ void scale_rows(float (&out)[N], float2 factor) {
#pragma unroll
    for (int n = 0; n < N; ++n) out[n] *= n / 2 % 2 > 0 ? factor.y : factor.x;
}
// ANCHOR_END: running

// ANCHOR: slopes
// dS_ij of a lane's two rows i in place of do_i·v_j, by their scores. Where HIDES scores of -∞ do not count.
template <bool HIDES, int N>
__device__ __forceinline__ void slopes_of_rows(float (&product)[N], const float (&score)[N], const float2 (&rows)[2],
                                               float log2_scale) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
        float2 row = rows[n / 2 % 2];
        float slope = power_of_two(score[n] * log2_scale - row.x) * (product[n] - row.y);
        product[n] = HIDES && score[n] == lowest<float>() ? 0 : slope;  // not 0 · NaN, where V's row is a later one
    }
}

// The other way round: a lane has two positions j, and of each eight rows i that come past two. P_ij in place of the scores,
// dS_ij in place of do_i·v_j. Where DIAGONAL only rows i >= j count, of which `own` is the lane's first j.
template <bool DIAGONAL, int N>
__device__ __forceinline__ void slopes_of_columns(float (&score)[N], float (&product)[N], const float2* rows,
                                                  float log2_scale, int own) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        int i = own_column(n), first = own + n / 2 % 2 * 8;
        float4 two = *reinterpret_cast<const float4*>(rows + i);
        score[n] = power_of_two(score[n] * log2_scale - two.x);
        score[n + 1] = power_of_two(score[n + 1] * log2_scale - two.z);
        product[n] = score[n] * (product[n] - two.y), product[n + 1] = score[n + 1] * (product[n + 1] - two.w);
#pragma unroll
        for (int e = 0; e < 2; ++e)
            if (DIAGONAL && i + e < first) score[n + e] = product[n + e] = 0;  // not 0 · NaN, where the row is an earlier one
    }
}
// ANCHOR_END: slopes

// Numbers of those of a lane's two rows that are not among `rows` from its first on become 0.
template <int N> __device__ __forceinline__ void hide_rows(float (&x)[N], int rows) {
#pragma unroll
    for (int n = 0; n < N; ++n)
        if (n / 2 % 2 * 8 >= rows) x[n] = 0;
}

// A lane's rows of what has been summed up, times a factor, rounded. `first` is the row of the tile's first.
template <class T, int N>
__device__ __forceinline__ void store_rows(Matrix<T> to, const float (&sum)[N], const float (&factor)[2], int first) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        int r = n / 2 % 2;
        float two[2] = {sum[n] * factor[r], sum[n + 1] * factor[r]};
        to.template store<true, 2>(two, first + own_row() + 8 * r, own_column(n));
    }
}

}  // namespace lab

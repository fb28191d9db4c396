// The weights D with few exponentials and few registers. Of a chunk's 64 x 64 those behind the diagonal are 0. A warp has 16
// rows; in the sixteen columns on the diagonal it takes the exponentials one by one, and in the sixteens before them a
// weight is a factor of the row times one of the column (FactoredGates).
#pragma once
#include "lab/vlstm/scan.cuh"

namespace lab {

// s D_ij of rows lane / 4 and 8 more, at the columns on the diagonal that the lane has of a product.
__device__ __forceinline__ void diagonal_weights(float (&weight)[8], const Gates& gates) {
    int warp = threadIdx.x / 32 % 4, own = warp * 16 + threadIdx.x % 32 / 4;
    float2 of_row[2] = {gates.row[own], gates.row[own + 8]};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        float4 e = *reinterpret_cast<const float4*>(&gates.column[warp * 16 + n * 8 + threadIdx.x % 4 * 2]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            weight[4 * n + 2 * r] = power_of_two(sum_of(of_row[r], make_float2(e.x, e.y)));
            weight[4 * n + 2 * r + 1] = power_of_two(sum_of(of_row[r], make_float2(e.z, e.w)));
        }
    }
    compute_here(weight);
}

// ANCHOR: factored
// C̃ and l, as weigh() makes them.
template <class T>
__device__ __forceinline__ void weigh_factored(float (&l)[2], const float (&score)[36], const float (&diagonal)[8],
                                               const FactoredGates& gates, float up, T* pairs) {
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, own = warp * 16 + lane / 4;
    float2 of_row[2] = {gates.row[own], gates.row[own + 8]};
#pragma unroll
    for (int r = 0; r < 2; ++r) l[r] = gates.read[own + 8 * r] * up * (score[32 + 2 * r] + score[33 + 2 * r]);
#pragma unroll
    for (int block = 0; block < CHUNK / 16; ++block) {
        float by_row[2];
        unsigned words[4];
#pragma unroll
        for (int r = 0; r < 2; ++r) by_row[r] = power_of_two(sum_of(of_row[r], gates.anchor[block]));
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            int r = w % 2, row = own + 8 * r, column = block * 16 + w / 2 * 8 + lane % 4 * 2, own_at = w / 2 * 4 + 2 * r;
            float2 factor = *reinterpret_cast<const float2*>(&gates.factor[column]);
            float a = block == warp ? diagonal[own_at] : by_row[r] * factor.x;
            float b = block == warp ? diagonal[own_at + 1] : by_row[r] * factor.y;
            // Not 0 · NaN, where K's row is a later one.
            float x = column <= row ? score[8 * block + own_at] * a : 0;
            float y = column < row ? score[8 * block + own_at + 1] * b : 0;
            l[r] += x + y;
            words[w] = two_halves<T>(x, y);
        }
        store_matrices(cell(pairs, warp * 16 + lane % 16, block * 16 + lane / 16 * 8), words);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
        for (int d = 1; d < 4; d *= 2) l[r] += __shfl_xor_sync(0xffffffff, l[r], d);
}
// ANCHOR_END: factored

}  // namespace lab

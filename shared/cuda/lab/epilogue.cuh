// What comes behind a product, in the registers of a warpgroup, where wgmma leaves its sums: 64 rows of BN.
//
// Thread t of the warpgroup has of columns 8 n + 2 (t % 4) and the next those of rows t / 32 * 16 + t % 32 / 4, in
// sum[4 n] and sum[4 n + 1], and of the row 8 below, in sum[4 n + 2] and sum[4 n + 3].
#pragma once
#include "lab/halves.cuh"
#include "lab/tile.cuh"

namespace lab {

// sum = scale · sum.
template <int SUMS> __device__ __forceinline__ void scale_sums(float (&sum)[SUMS], float scale) {
#pragma unroll
    for (int n = 0; n < SUMS; ++n) sum[n] *= scale;
}

// A number of each column is added. In shared memory, 8 bytes aligned.
template <int BN> __device__ __forceinline__ void add_to_columns(float (&sum)[BN / 2], const float* of_column) {
    const float* own = of_column + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < BN / 8; ++j) {
        float2 two = *reinterpret_cast<const float2*>(own + 8 * j);
        sum[4 * j] += two.x, sum[4 * j + 1] += two.y, sum[4 * j + 2] += two.x, sum[4 * j + 3] += two.y;
    }
}

// f of each sum. As PyTorch has them: GELU by erf, and a ReLU that leaves NaN.
enum Activation { IDENTITY, RELU, GELU, SILU };
template <int SUMS> __device__ __forceinline__ void activate(float (&sum)[SUMS], int activation) {
    if (activation == IDENTITY) return;
#pragma unroll
    for (int n = 0; n < SUMS; ++n) {
        float v = sum[n];
        if (activation == RELU) sum[n] = v < 0 ? 0 : v;
        else if (activation == GELU) sum[n] = 0.5f * v * (1 + erff(v * 0.70710678f));
        else sum[n] = v / (1 + __expf(-v));
    }
}

// The 64 rows of R from i on and its columns from j on are added; columns in pairs.
template <int BN, class R>
__device__ __forceinline__ void add_matrix(float (&sum)[BN / 2], Matrix<const R> added, int i, int j) {
    int row = i + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, column = j + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < BN / 8; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (!added.inside(row + 8 * h, column + 8 * n)) continue;
            const R* two = added.at(row + 8 * h, column + 8 * n);
            float2 values;
            if constexpr (sizeof(R) == 2) values = floats_of<R>(*reinterpret_cast<const unsigned*>(two));
            else values = *reinterpret_cast<const float2*>(two);
            sum[4 * n + 2 * h] += values.x, sum[4 * n + 2 * h + 1] += values.y;
        }
}

}  // namespace lab

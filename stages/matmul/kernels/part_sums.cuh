// Tiles whose products several blocks of a grid share, each some of k: their sums go by way of device memory.
#pragma once
#include <cooperative_groups.h>

#include "tensor.cuh"

namespace lab {

// ANCHOR: part_sums
// The sums of all parts of a tile, one part behind the other.
template <int BM, int BN> struct PartSums {
    float* x;

    // Those of this block's part.
    __device__ __forceinline__ Matrix<float> of(int part) const { return {x + part * BM * BN, BM, BN}; }

    // A warpgroup's, 64 rows from `row` on.
    __device__ __forceinline__ void store(int part, const float (&sum)[BN / 2], int row) const {
        int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        float* own = x + (part * BM + row + warp * 16 + lane / 4) * BN + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < BN / 8; ++n) {
            *reinterpret_cast<float2*>(own + n * 8) = make_float2(sum[4 * n], sum[4 * n + 1]);
            *reinterpret_cast<float2*>(own + n * 8 + 8 * BN) = make_float2(sum[4 * n + 2], sum[4 * n + 3]);
        }
    }

    // Four neighbours of row r, those of all parts added up, in their order.
    __device__ __forceinline__ void load(float (&four)[4], int parts, int r, int c) const {
        for (int part = 0; part < parts; ++part) {
            float4 own = *reinterpret_cast<float4*>(x + (part * BM + r) * BN + c);
            four[0] += own.x, four[1] += own.y, four[2] += own.z, four[3] += own.w;
        }
    }
};
// ANCHOR_END: part_sums

}  // namespace lab

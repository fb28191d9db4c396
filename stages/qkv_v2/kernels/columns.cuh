// Four columns of C from all parts of K^T V: sums in f32, then rounded to T, each times its power of two.
#pragma once
#include "column_power.cuh"
#include "lab/halves.cuh"
#include "lab/reduce.cuh"

namespace lab {

// Of a warp, whose lanes have every 32nd row.
template <class T, int DQK> struct Columns {
    static constexpr int EACH = DQK / 32;
    float sum[EACH][4] = {}, power[4];

    // Of a part whose 32 rows are 32 `row` floats, from this lane's first row on.
    __device__ __forceinline__ void add(const float* part, int row) {
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            float4 four = *reinterpret_cast<const float4*>(part + n * 32 * row);
            sum[n][0] += four.x, sum[n][1] += four.y, sum[n][2] += four.z, sum[n][3] += four.w;
        }
    }

    // When all parts are added.
    __device__ __forceinline__ void find_powers(int dhqk) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            float most = fabsf(sum[0][c]);
#pragma unroll
            for (int n = 0; n < EACH; ++n) {
                if (lane + n * 32 >= dhqk) sum[n][c] = 0;  // K has no such column: not its 0 · ∞, which is NaN
                most = fmaxf(most, fabsf(sum[n][c]));
            }
            power[c] = column_power(warp_reduce(most, Max{}));
        }
    }

    // As columns j to j + 3 of C: swizzled, in panels of 64 columns.
    __device__ __forceinline__ void store(T* state, int j) const {
        T* panel = state + j / 64 * DQK * 64 + j % 8;
        int lane = threadIdx.x % 32, chunk = j % 64 / 8;
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            int i = lane + n * 32;
            uint2 four = make_uint2(two_halves<T>(sum[n][0] * power[0], sum[n][1] * power[1]),
                                    two_halves<T>(sum[n][2] * power[2], sum[n][3] * power[3]));
            *reinterpret_cast<uint2*>(panel + i * 64 + (chunk ^ i % 8) * 8) = four;
        }
    }

    // What the columns of O take for scale: one lane stores it.
    __device__ __forceinline__ void store_factors(float* factor, int j, float scale) const {
        *reinterpret_cast<float4*>(factor + j) =
            make_float4(scale / power[0], scale / power[1], scale / power[2], scale / power[3]);
    }
};

}  // namespace lab

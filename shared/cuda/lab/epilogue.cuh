// What comes behind a product, in the registers of the warpgroup that has its sums.
#pragma once
#include "lab/ptx/ex2.cuh"
#include "lab/ptx/rcp.cuh"
#include "lab/quick.cuh"

namespace lab {

// A number of each column is added to 64 rows of BN. In shared memory, 8 bytes aligned.
template <int BN> __device__ __forceinline__ void add_to_columns(float (&sum)[BN / 2], const float* of_column) {
    const float* own = of_column + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < BN / 8; ++j) {
        float2 two = *reinterpret_cast<const float2*>(own + 8 * j);
        sum[4 * j] += two.x, sum[4 * j + 1] += two.y, sum[4 * j + 2] += two.x, sum[4 * j + 3] += two.y;
    }
}

// ANCHOR: activations
struct Identity {
    __device__ __forceinline__ float operator()(float v) const { return v; }
};
// NaN stays NaN, as in PyTorch.
struct Relu {
    __device__ __forceinline__ float operator()(float v) const { return v < 0 ? 0 : v; }
};
// v Φ(v) = max(v, 0) - |v| (1 - erf(|v| / √2)) / 2. Abramowitz and Stegun, 7.1.26: off by 1.5e-7 |v| / 2; half as many
// instructions as erff.
struct Gelu {
    __device__ __forceinline__ float operator()(float v) const {
        constexpr float LOG2E = 1.44269504f, P = 0.3275911f * 0.70710678f;
        float size = fminf(fabsf(v), 16.0f), t = quick_reciprocal(1 + P * size);  // behind 16 the rest is 0, and not 0 · ∞
        float rest = (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
        rest *= t * power_of_two(-0.5f * LOG2E * size * size);
        return Relu{}(v) - 0.5f * size * rest;
    }
};
struct Silu {
    __device__ __forceinline__ float operator()(float v) const { return v * quick_sigmoid(v); }
};

// As a launch names them.
enum Activation { IDENTITY, RELU, GELU, SILU };
// ANCHOR_END: activations

}  // namespace lab

// The forget gates of the vLSTM: what is left at position i of position j's share is
// exp(F_i - F_j), with F_i - F_j = Σ_{j < t <= i} log sigmoid(f_t).
//
// F itself, from the first position on, is of no use in f32: after 1024 gates of -100 it is
// -102400, where floats lie 0.008 apart, and so would all later differences. Here sums are made in
// f64, of a tile or of all, and handed on as the sum of two floats.
#pragma once
#include "lab/ptx/ex2.cuh"
#include "lab/scalar.cuh"

namespace lab {

// ANCHOR: log_sigmoid
// log(1 / (1 + exp(-x))), never above 0. The exponential is of -|x|: it cannot overflow, and is not
// lost beside the 1.
__device__ __forceinline__ float log_sigmoid(float x) {
    return fminf(x, 0.0f) - log1pf(expf(-fabsf(x)));
}
// ANCHOR_END: log_sigmoid

// ANCHOR: log_kept
// A forget gate of at most SHUT, -∞ too, lets nothing through: what was before is gone, and the head
// starts anew. One number stands for all of them: sums of larger ones would lose the digits of the
// gates between.
constexpr float SHUT = -1e5f;

__device__ __forceinline__ float log_kept(float f) { return log_sigmoid(f < SHUT ? SHUT : f); }

// The gradient by f of what log_kept(f) comes to, from that by log_kept(f).
__device__ __forceinline__ float gradient_of_kept(float f, float dF) {
    return f <= SHUT ? 0.0f : dF / (1.0f + expf(f));
}
// ANCHOR_END: log_kept

// ANCHOR: two_floats
// A sum as two floats, x + y: 48 bits. Of two of them that nearly cancel, the difference is right.
__device__ __forceinline__ float2 two_floats(double sum) {
    float x = static_cast<float>(sum);
    bool infinite = fabsf(x) == -lowest<float>();  // ∞ - ∞ would be NaN
    return make_float2(x, infinite ? 0.0f : static_cast<float>(sum - x));
}

// F_i - F_j, both from the same position on. The x cancel without a rounding where they are close;
// what they have left out is in the y.
__device__ __forceinline__ float difference(float2 F_i, float2 F_j) {
    return (F_i.x - F_j.x) + (F_i.y - F_j.y);
}
// ANCHOR_END: two_floats

__device__ __forceinline__ float2 negative(float2 sum) { return make_float2(-sum.x, -sum.y); }

// ANCHOR: in_twos
constexpr float LOG2E = 1.44269504f, LN2 = 0.693147181f;

// (F + a) log2(e), as two floats: an exponent of 2, or its part that one row brings. LOG2E is not
// log2(e), but the same factor in both parts.
__device__ __forceinline__ float2 in_twos(float2 F, float a) {
    float x = F.x + a, of_a = x - F.x;
    float y = F.y + ((F.x - (x - of_a)) + (a - of_a));  // with what the sum has rounded off
    // Not x * LOG2E: fused with the sum that it goes into, it would not be rounded, and what the
    // other half makes up for would be there twice.
    float twos = __fmul_rn(x, LOG2E);
    bool infinite = fabsf(twos) == -lowest<float>();  // ∞ - ∞ would be NaN
    return make_float2(twos, infinite ? 0.0f : fmaf(x, LOG2E, -twos) + y * LOG2E);
}

// One number of two parts. The x cancel without a rounding where they are close; what they have
// left out is in the y.
__device__ __forceinline__ float sum_of(float2 a, float2 b) { return (a.x + b.x) + (a.y + b.y); }
// ANCHOR_END: in_twos

// ANCHOR: sums
// sum[n] = Σ_{r0 <= t <= r0 + 32 n + lane} log sigmoid(f_t), for ROWS rows, shared out over a warp;
// gates past the end are open. All lanes get the sum of all rows.
template <int ROWS>
__device__ __forceinline__ double sum_gates(double (&sum)[ROWS / 32], const float* f, int r0,
                                            int S) {
    static_assert(ROWS % 32 == 0, "a lane has every 32nd row: change the tile's rows");
    constexpr unsigned ALL = 0xffffffff;
    int lane = threadIdx.x % 32;
    double total = 0;
#pragma unroll
    for (int n = 0; n < ROWS / 32; ++n) {
        int t = r0 + 32 * n + lane;
        sum[n] = t < S ? log_kept(f[t]) : 0;
        for (int d = 1; d < 32; d *= 2) {  // after step d: the sum over 2 d lanes up to this one
            double before = __shfl_up_sync(ALL, sum[n], d);
            if (lane >= d) sum[n] += before;
        }
        sum[n] += total;
        total = __shfl_sync(ALL, sum[n], 31);
    }
    return total;
}
// ANCHOR_END: sums

}  // namespace lab

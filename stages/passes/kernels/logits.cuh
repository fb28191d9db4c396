// A row of logits: the cap, sums of exponentials, and where its columns lie. The equations: cross_entropy.cu.
#pragma once
#include "lab/quick.cuh"
#include "strip.cuh"

namespace lab {

constexpr float LOG2E = 1.44269504f, LOWEST = -3.40282347e38f;

// ANCHOR: cap
// z of logits. Where all of a pack are within half of the cap, tanh(y) / y is a polynomial in y², off by 6e-8 of
// itself: six instructions, where a power and a reciprocal would keep the special function units busy for eight.
template <class T, bool CAPPED> struct Cap {
    float cap, inverse, a[4];

    __device__ __forceinline__ explicit Cap(float cap) : cap(cap), inverse(1.0f / cap) {
        constexpr float OF_Y[4] = {-0.33333311f, 0.13330476f, -0.053387111f, 0.017988744f};
        float power = 1;
#pragma unroll
        for (int k = 0; k < 4; ++k) a[k] = OF_Y[k] * (power *= inverse * inverse);
    }

    template <int N> __device__ __forceinline__ void bound(float (&x)[N]) const {
        if constexpr (!CAPPED) return;
        if constexpr (sizeof(T) == sizeof(float)) {
#pragma unroll
            for (int i = 0; i < N; ++i) x[i] = cap * tanhf(x[i] * inverse);
            return;
        }
        float largest = fabsf(x[0]);
#pragma unroll
        for (int i = 1; i < N; ++i) largest = fmaxf(largest, fabsf(x[i]));
        if (largest <= 0.5f * cap) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                float w = x[i] * x[i];
                x[i] += x[i] * w * (a[0] + w * (a[1] + w * (a[2] + w * a[3])));
            }
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) x[i] = cap * quick_tangent(x[i] * inverse);
        }
    }
};
// ANCHOR_END: cap

// exp(z − offset). With a cap both are small, and z log₂ e − offset log₂ e is one instruction; else the difference
// comes first: it is exact where z is the maximum, however large.
template <bool CAPPED> __device__ __forceinline__ float power(float z, float offset) {
    return power_of_two(CAPPED ? fmaf(z, LOG2E, -offset * LOG2E) : (z - offset) * LOG2E);
}

// Σ exp(z − offset) of what this thread has seen. Without a cap `offset` is the maximum so far. It begins at the
// lowest finite number: −∞, a mask, adds nothing then, where exp(−∞ − (−∞)) would be NaN.
template <bool CAPPED> struct Powers {
    float offset, sum = 0;
    __device__ __forceinline__ explicit Powers(float cap) : offset(CAPPED ? cap : LOWEST) {}

    template <int N> __device__ __forceinline__ void take(const float (&z)[N]) {
        if constexpr (!CAPPED) {
            float largest = offset;
#pragma unroll
            for (int i = 0; i < N; ++i) largest = fmaxf(largest, z[i]);
            if (largest != offset) sum *= power_of_two((offset - largest) * LOG2E), offset = largest;
        }
#pragma unroll
        for (int i = 0; i < N; ++i) sum += power<CAPPED>(z[i], offset);
    }

    // lse, in every thread.
    template <int THREADS> __device__ __forceinline__ float over_block() {
        if constexpr (!CAPPED) {
            float own = offset;
            offset = block_reduce<THREADS>(offset, Max{}, LOWEST);
            sum *= power_of_two((own - offset) * LOG2E);
        }
        return offset + logf(block_reduce<THREADS>(sum, Add{}, 0.0f));
    }
};

__device__ __forceinline__ bool is_counted(int target, int vocabulary) {
    return target >= 0 && target < vocabulary;
}

// What a row's gradient is made of: from z to the gradient of the logits of columns c, c + 1, …
template <bool CAPPED> struct Gradient {
    float inverse, lse, of_power, scale;
    int target;
    template <int N> __device__ __forceinline__ void replace(float (&z)[N], int c) const {
        float of_target = unsigned(target - c) < N ? scale : 0.0f;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            float d = power<CAPPED>(z[i], lse) * of_power, t = z[i] * inverse;
            if (of_target != 0 && c + i == target) d -= of_target;
            z[i] = CAPPED ? d * (1.0f - t * t) : d;
        }
        if (scale != 0) return;
#pragma unroll
        for (int i = 0; i < N; ++i) z[i] = 0;  // ignored, whatever its logits are
    }
};

// A pack that waits in registers, as numbers.
template <int N, class T> __device__ __forceinline__ void cells_of(float (&cells)[N], const Raw<T>& raw) {
    if constexpr (N > 1) {
        Pack<T> pack = in_math(raw);
#pragma unroll
        for (int i = 0; i < N; ++i) cells[i] = pack.v[i];
    }
}

// Where a row's logits lie: whole packs, N columns each, then fewer than N single ones, and padding.
template <int THREADS, int N> struct Columns {
    int packs;
    __device__ __forceinline__ explicit Columns(int vocabulary) : packs(vocabulary / N) {}
    __device__ __forceinline__ static int pack(int p) { return p * THREADS + threadIdx.x; }
    __device__ __forceinline__ int single() const { return packs * N + threadIdx.x; }
};

}  // namespace lab

// What cells that go through time share: the steps that a row has, where its h is, which unit a thread
// has, and the products of a unit's weights.
#pragma once
#include "lab/scalar.cuh"

namespace lab {

// ANCHOR: activation
// tanh(v) or 1 / (1 + e^−v), in the same instructions: lanes that differ in that do not wait for each
// other. Every step waits for two of them, so the division is the fast one, of 2 ulp.
__device__ __forceinline__ float activation(float v, bool tangent) {
    float u = exponential(tangent ? -2 * fabsf(v) : -v);  // may be inf: then the quotient is 0
    float quotient = __fdividef(tangent ? 1 - u : 1.0f, 1 + u);
    // Near zero, 1 − u has few digits left; five terms of the series have all.
    float w = v * v;
    float series = v + v * w * (-1 / 3.0f + w * (2 / 15.0f + w * (-17 / 315.0f + w * (62 / 2835.0f))));
    float odd = fabsf(v) < 0.25f ? series : copysignf(quotient, v);
    return tangent ? odd : quotient;
}
// ANCHOR_END: activation
__device__ __forceinline__ double activation(double v, bool tangent) {
    return tangent ? tanh(v) : 1 / (1 + exponential(-v));
}
template <class M> __device__ __forceinline__ M tangent(M v) { return activation(v, true); }
template <class M> __device__ __forceinline__ M sigmoid(M v) { return activation(v, false); }

// ANCHOR: steps
// A row has the steps from 0 to its length, and takes them in this order or in reverse.
struct Steps {
    const int* lengths;
    bool reverse;

    __device__ __forceinline__ bool has(int t, int row) const { return t < lengths[row]; }
    __device__ __forceinline__ int first(int row) const { return reverse ? lengths[row] - 1 : 0; }
    __device__ __forceinline__ int last(int row) const { return reverse ? 0 : lengths[row] - 1; }
    __device__ __forceinline__ int before(int t) const { return reverse ? t + 1 : t - 1; }
    __device__ __forceinline__ int after(int t) const { return reverse ? t - 1 : t + 1; }
};
// ANCHOR_END: steps

// The h of one direction of a layer: those of all steps stand in y, T x B rows of `stride`
// elements, at its columns; those before the first step in h0, a row of H each.
template <class T> struct Hidden {
    const T *h0, *y;
    int B, H, stride;

    // Before step t of a row.
    __device__ __forceinline__ const T* before(Steps steps, int t, int row) const {
        if (t == steps.first(row)) return h0 + row * 1ll * H;
        return y + (steps.before(t) * 1ll * B + row) * stride;
    }
};

// Which unit of which row a thread has.
template <int THREADS> struct Unit {
    int row, j;
    bool inside;

    __device__ __forceinline__ Unit(int B, int H) {
        long long n = blockIdx.x * 1ll * THREADS + threadIdx.x;
        row = n / H, j = n % H, inside = n < B * 1ll * H;
    }
    __device__ __forceinline__ long long of_state(int state, int B, int H) const {
        return (state * 1ll * B + row) * H + j;
    }
};

// ANCHOR: product
// a_g += Σ_k w_{gH+j,k} x_k, for the gates g of unit j.
template <class T, int GATES>
__device__ __forceinline__ void add_products(math_t<T> (&a)[GATES], const T* __restrict__ w,
                                             const T* x, int j, int H, int columns) {
    const T* rows = w + j * 1ll * columns;
    for (int k = 0; k < columns; ++k) {
        math_t<T> x_k = to_math(x[k]);
#pragma unroll
        for (int g = 0; g < GATES; ++g) a[g] += to_math(rows[g * 1ll * H * columns + k]) * x_k;
    }
}
// ANCHOR_END: product

}  // namespace lab

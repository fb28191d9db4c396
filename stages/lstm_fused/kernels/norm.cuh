// Layer norm over the H units of a row, of each gate and of c:
//
//   n = (a − mean(a)) / √(var(a) + ε)        norm(a) = n w + b
//
// and backward, with d the gradient by norm(a), and e = w d,
//
//   da = (e − mean(e) − n mean(e n)) / √(var(a) + ε)        dw = Σ d n        db = Σ d
#pragma once
#include "lstm.cuh"

namespace lab {

// What a row has a norm of: the gates, and behind them c.
constexpr int C = GATES, PARTS = GATES + 1;

// Never fused with the sum behind it: e is rounded alike wherever it stands, and e − mean(e) of a
// unit alone is zero.
__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }

// Weights and biases of the norms of the gates and of c.
template <class T> struct Norms {
    const T *weight, *bias, *c_weight, *c_bias;
    int H;

    __device__ __forceinline__ const T* of(int part) const {
        return part == C ? c_weight : weight + part * H;
    }
    __device__ __forceinline__ const T* bias_of(int part) const {
        return part == C ? c_bias : bias + part * H;
    }
    // norm(a) of unit j, from its n.
    __device__ __forceinline__ math_t<T> output(const math_t<T>* n, int part, int j) const {
        return n[part * H + j] * to_math(of(part)[j]) + to_math(bias_of(part)[j]);
    }
};

// ANCHOR: lanes
// A norm where thread 4 j + g of a block has a number of unit j, and the threads of each g are a row of
// their own. A warp has eight units of each. What it has of two sums goes to all others through HT
// numbers of shared memory: one barrier. Where there is no unit, a, w and b are 0, and so are norm(a) and e.
template <class T, int HT> struct NormOfLanes {
    using M = math_t<T>;
    static constexpr int WARPS = HT / 8, EACH = 8;
    M (*first)[GATES], (*second)[GATES];  // of each warp
    int H, g;
    bool unit;
    M w, b;

    __device__ __forceinline__ NormOfLanes(M* memory, const Norms<T>& norms, int part)
        : first(reinterpret_cast<M(*)[GATES]>(memory)), second(first + WARPS), H(norms.H),
          g(threadIdx.x % GATES) {
        int j = threadIdx.x / GATES;
        unit = j < H;
        w = unit ? to_math(norms.of(part)[j]) : M(0);
        b = unit ? to_math(norms.bias_of(part)[j]) : M(0);
    }
    // n of a, and its scale: 1 / √(var + ε). A warp leaves the mean of its own units, and the squares by
    // which they are off; on top come those by which its mean is off.
    __device__ __forceinline__ M normalise(M a, M eps, M& scale) const {
        M own = warp_sum(a) / max(units(threadIdx.x / 32), 1);
        M off = unit ? a - own : M(0);
        leave(own, warp_sum(off * off));
        M mean = 0, squares = 0;
        each_warp([&](int n) { mean += units(n) * first[n][g]; });
        mean = warp_sum(mean) / H;
        each_warp([&](int n) {
            M off = first[n][g] - mean;
            squares += second[n][g] + units(n) * (off * off);
        });
        scale = 1 / root(warp_sum(squares) / H + eps);
        return (a - mean) * scale;
    }
    // norm(a), from its n.
    __device__ __forceinline__ M output(M n) const { return n * w + b; }
    // The gradient by a, from d.
    __device__ __forceinline__ M back(M n, M d, M scale) const {
        M e = product(w, d), mean = e, along = e * n;
        warp_sums(mean, along);
        leave(mean, along);
        mean = along = 0;
        each_warp([&](int n) { mean += first[n][g], along += second[n][g]; });
        warp_sums(mean, along);
        return (e - mean / H - n * (along / H)) * scale;
    }

    __device__ __forceinline__ int units(int warp) const {
        return max(min(H - EACH * warp, EACH), 0);
    }
    // Over the lanes of this g.
    __device__ __forceinline__ static M warp_sum(M v) {
#pragma unroll
        for (int d = GATES; d < 32; d *= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
        return v;
    }
    // Two of them, neither of which waits for the other.
    __device__ __forceinline__ static void warp_sums(M& a, M& b) {
#pragma unroll
        for (int d = GATES; d < 32; d *= 2) {
            M more = __shfl_xor_sync(0xffffffffu, a, d);
            b += __shfl_xor_sync(0xffffffffu, b, d), a += more;
        }
    }
    __device__ __forceinline__ void leave(M a, M b) const {
        int warp = threadIdx.x / 32;
        if (threadIdx.x % 32 < GATES) first[warp][g] = a, second[warp][g] = b;
        __syncthreads();  // all read what each warp has left
    }
    // Its part of the warps for each of the lanes of this g.
    template <class F> __device__ __forceinline__ static void each_warp(F of) {
#pragma unroll
        for (int from = 0; from < WARPS; from += EACH) {
            int n = from + threadIdx.x % 32 / GATES;
            if (n < WARPS) of(n);
        }
    }
};
// ANCHOR_END: lanes

}  // namespace lab

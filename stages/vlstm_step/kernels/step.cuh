// What a position does to a head's state, C [dhqk, dhhv], n [dhqk] and m, which all its versions share.
//
//   m' = max(log sigmoid(f) + m, i)
//   kept = exp(log sigmoid(f) + m - m')       written = exp(i - m')
//   C' = kept C + written k vᵀ                n' = kept n + written k
//   l = s q·n',  s = 1 / √dhqk                h = s C'ᵀq / (max(|l|, exp(-m')) + ε)
#pragma once
#include "lab/gates.cuh"

namespace lab {

// ANCHOR: weights
// NaN where either is; fmaxf would drop it.
__device__ __forceinline__ float larger(float a, float b) { return a > b || a != a ? a : b; }

// What the gates of a head come to. No exponent is above 0.
struct Weights {
    float m, kept, written;

    __device__ __forceinline__ Weights(float i_gate, float f_gate, float before) {
        float old = log_sigmoid(f_gate) + before;
        m = larger(old, i_gate);
        kept = share(old);
        written = share(i_gate);
    }
    // 0 of -∞: that may be m, too, and -∞ - (-∞) is NaN.
    __device__ __forceinline__ float share(float exponent) const {
        return exponent == lowest<float>() ? 0.0f : expf(exponent - m);
    }
    // What is left of a number of the state. Where nothing is left nothing is read: 0 · ∞ would be NaN. The product is
    // rounded, and what is added to it is fused, so that each instantiation makes the same bits.
    __device__ __forceinline__ float keep(float x) const { return kept == 0 ? 0.0f : __fmul_rn(kept, x); }
};

// What h is divided by.
__device__ __forceinline__ float normaliser(float l, float m, float eps) {
    return larger(fabsf(l), expf(-m)) + eps;
}
// ANCHOR_END: weights

}  // namespace lab

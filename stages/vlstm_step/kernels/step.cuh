// What a position does to a head's state, C [dhqk, dhhv], n [dhqk] and m, which all its versions share.
//
//   m' = max(log sigmoid(f) + m, i)
//   kept = exp(log sigmoid(f) + m - m')       written = exp(i - m')
//   C' = kept C + written k vᵀ                n' = kept n + written k
//   l = s q·n',  s = 1 / √dhqk                h = s C'ᵀq / (max(|l|, exp(-m')) + ε)
//
// Its relatives have other gates and another normaliser, as lab/vlstm/policy.cuh has them. Without m, kept and written are what the
// gates say. Without a normaliser there is no n, and h = s C'ᵀq.
#pragma once
#include "lab/vlstm/policy.cuh"

namespace lab {

// ANCHOR: weights
// NaN where either is; fmaxf would drop it.
__device__ __forceinline__ float larger(float a, float b) { return a > b || a != a ? a : b; }

// What the gates of a head come to. No exponent is above 0.
template <class GATES = Exponential> struct StepWeights {
    float m, kept, written;

    __device__ __forceinline__ StepWeights(const float* i_gate, const float* f_gate, const float* before, long long head) {
        float i = GATES::input(i_gate, head), f = f_gate[head];
        if constexpr (GATES::STABILISED) {
            float last = before[head];  // asked for beside the gates: behind log_sigmoid, a register more would be spilled
            float old = log_sigmoid(f) + last;
            m = larger(old, i);
            kept = share(old);
            written = share(i);
        } else {
            m = 0;
            kept = expf(GATES::log_kept(f));
            written = GATES::weight(i);
        }
    }
    // 0 of -∞: that may be m, too, and -∞ - (-∞) is NaN.
    __device__ __forceinline__ float share(float exponent) const {
        return exponent == lowest<float>() ? 0.0f : expf(exponent - m);
    }
    // What is left of a number of the state. Where nothing is left nothing is read: 0 · ∞ would be NaN. The product is
    // rounded, and what is added to it is fused, so that each instantiation makes the same bits.
    __device__ __forceinline__ float keep(float x) const { return kept == 0 ? 0.0f : __fmul_rn(kept, x); }
};

// h of a sum over all rows: divided, where there is a normaliser.
template <class NORMALIZER = MaxExp>
__device__ __forceinline__ float normalised(float sum, float l, float m, float eps) {
    if constexpr (NORMALIZER::DIVIDES) return sum / (larger(fabsf(l), NORMALIZER::floor(m)) + eps);
    return sum;
}
// ANCHOR_END: weights

}  // namespace lab

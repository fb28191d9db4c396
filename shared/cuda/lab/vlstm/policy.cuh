// What sets the vLSTM's relatives apart: gates and normaliser, as types that a walk is made of. All walk
//
//   C_t = exp(g_t) C_{t-1} + w_t k_t v_tᵀ        h_t = s C_tᵀ q_t / N_t
//
//   gates         g_t                 w_t                             normaliser   N_t
//   Exponential   log sigmoid(f_t)    exp(i_t), divided by exp(m_t)   MaxExp       max(|s n_t·q_t|, exp(-m_t)) + eps
//   Sigmoid       log sigmoid(f_t)    sigmoid(i_t)                    One          max(|s n_t·q_t|, 1) + eps
//   Decay         g_t, given          1                               None         1
//
// Where no weight grows without bound nothing needs m: it is 0 everywhere. Without N nothing needs n.
#pragma once
#include "lab/gates.cuh"

namespace lab {

// ANCHOR: policy
// STABILISED: whether m is kept, and weights are divided by its exponential. WEIGHED: whether an input gate says the weight, and has
// a gradient. A position past the end has nothing() in place of its input gate, whose weight is 0, and open() in place of the other.
struct Exponential {
    static constexpr bool STABILISED = true, WEIGHED = true;
    __device__ __forceinline__ static float input(const float* i, int t) { return i[t]; }
    __device__ __forceinline__ static float nothing() { return lowest<float>(); }
    __device__ __forceinline__ static float log_weight(float i) { return i; }
    __device__ __forceinline__ static float log_kept(float f) { return lab::log_kept(f); }
    __device__ __forceinline__ static float open() { return -lowest<float>(); }
    // By f, from that by log_kept(f).
    __device__ __forceinline__ static float gradient_of_kept(float f, float dF) { return lab::gradient_of_kept(f, dF); }
};

struct Sigmoid : Exponential {
    static constexpr bool STABILISED = false;
    __device__ __forceinline__ static float log_weight(float i) { return log_sigmoid(i); }
};

struct Decay {
    static constexpr bool STABILISED = false, WEIGHED = false;
    __device__ __forceinline__ static float input(const float*, int) { return 0; }
    __device__ __forceinline__ static float nothing() { return lowest<float>(); }
    __device__ __forceinline__ static float log_weight(float i) { return i; }
    // As a forget gate that is shut: -∞ would leave NaN behind it. NaN stays.
    __device__ __forceinline__ static float log_kept(float g) { return g < SHUT ? SHUT : g; }
    __device__ __forceinline__ static float open() { return 0; }
    __device__ __forceinline__ static float gradient_of_kept(float g, float dG) { return g <= SHUT ? 0 : dG; }
};

// DIVIDES: whether there is an N, and so an n. floor(m): the least that |l| counts.
struct MaxExp {
    static constexpr bool DIVIDES = true;
    __device__ __forceinline__ static float floor(double m) { return expf(static_cast<float>(-m)); }
};

struct One {
    static constexpr bool DIVIDES = true;
    __device__ __forceinline__ static float floor(double) { return 1; }
};

struct None {
    static constexpr bool DIVIDES = false;
};
// ANCHOR_END: policy

}  // namespace lab

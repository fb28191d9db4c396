// What sets the vLSTM's relatives apart: gates and normaliser, as types that a walk is made of. All walk
//
//   C_t = exp(g_t) C_{t-1} + w_t k_t v_tᵀ        h_t = s C_tᵀ q_t / N_t
//
//   gates         g_t                 w_t                             normaliser   N_t
//   Exponential   log sigmoid(f_t)    exp(i_t), divided by exp(m_t)   MaxExp       max(|s n_t·q_t|, exp(-m_t)) + eps
//   Sigmoid       log sigmoid(f_t)    sigmoid(i_t)                    One          max(|s n_t·q_t|, 1) + eps
//   Decay         g_t, given          w_t > 0, given, or 1            None         1
//
// Where no weight is an exponential of an input, nothing needs m: it is 0 everywhere. Without N nothing needs n.
#pragma once
#include "lab/gates.cuh"

namespace lab {

// ANCHOR: policy
// STABILISED: whether m is kept, and weights are divided by its exponential. MAY_BE_ONE: whether input gates may be left out, a null
// pointer. A position past the end has nothing() in place of its input gate, whose weight is 0, and open() in place of the other.
// weight(i): the exponential of log_weight(i), where weights are not divided.
struct Exponential {
    static constexpr bool STABILISED = true, MAY_BE_ONE = false;
    template <class At> __device__ __forceinline__ static float input(const float* i, At t) { return i[t]; }
    __device__ __forceinline__ static float nothing() { return lowest<float>(); }
    __device__ __forceinline__ static float log_weight(float i) { return i; }
    __device__ __forceinline__ static float log_kept(float f) { return lab::log_kept(f); }
    __device__ __forceinline__ static float open() { return -lowest<float>(); }
    // By f, from that by log_kept(f); by i, from that by log_weight(i).
    __device__ __forceinline__ static float gradient_of_kept(float f, float dF) { return lab::gradient_of_kept(f, dF); }
    __device__ __forceinline__ static float gradient_of_weight(const float*, long long, float dx) { return dx; }
};

struct Sigmoid : Exponential {
    static constexpr bool STABILISED = false;
    __device__ __forceinline__ static float log_weight(float i) { return log_sigmoid(i); }
    __device__ __forceinline__ static float weight(float i) { return 1 / (1 + expf(-i)); }
    // Weights are at most 1, so a gate that keeps less than f32's least normal number leaves nothing of the state before it, and dF is 0, but
    // for what roundings leave. (With m a state may outweigh whatever is written behind a gate, however little that keeps.)
    __device__ __forceinline__ static float gradient_of_kept(float f, float dF) {
        return f < -87.33654f ? 0 : lab::gradient_of_kept(f, dF);
    }
    __device__ __forceinline__ static float gradient_of_weight(const float* i, long long t, float dx) {
        return dx / (1 + expf(i[t]));
    }
};

struct Decay {
    static constexpr bool STABILISED = false, MAY_BE_ONE = true;
    template <class At> __device__ __forceinline__ static float input(const float* w, At t) { return w ? w[t] : 1; }
    __device__ __forceinline__ static float nothing() { return 0; }
    __device__ __forceinline__ static float log_weight(float w) { return logf(w); }
    __device__ __forceinline__ static float weight(float w) { return w; }
    // As a forget gate that is shut: -∞ would leave NaN behind it. NaN stays.
    __device__ __forceinline__ static float log_kept(float g) { return g < SHUT ? SHUT : g; }
    __device__ __forceinline__ static float open() { return 0; }
    __device__ __forceinline__ static float gradient_of_kept(float g, float dG) { return g <= SHUT ? 0 : dG; }
    // Of a weight of 0 nothing is known: 0.
    __device__ __forceinline__ static float gradient_of_weight(const float* w, long long t, float dx) {
        return w[t] == 0 ? 0 : dx / w[t];
    }
};

// DIVIDES: whether there is an N, and so an n. floor(m): the least that |l| counts.
struct MaxExp {
    static constexpr bool DIVIDES = true;
    // Of a sum in f64, or of m in f32.
    template <class M> __device__ __forceinline__ static float floor(M m) { return expf(static_cast<float>(-m)); }
};

struct One {
    static constexpr bool DIVIDES = true;
    template <class M> __device__ __forceinline__ static float floor(M) { return 1; }
};

struct None {
    static constexpr bool DIVIDES = false;
};
// ANCHOR_END: policy

}  // namespace lab

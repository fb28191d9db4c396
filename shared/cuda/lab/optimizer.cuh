// One step of an optimizer over all parameters, which lie in one buffer, as their gradients do.
//
//   norm   = sqrt(Σ g²) / scale             of all gradients, `scale` that of the loss
//   g      ← g / scale · min(1, max_norm / (norm + 1e-6))
//   SGD:   g ← g + decay p   v ← β₁ v + g   p ← p − lr v
//   Adam:  g ← g + decay p   (AdamW: p ← p − lr decay p)
//          m ← β₁ m + (1 − β₁) g   v ← β₂ v + (1 − β₂) g²
//          p ← p − lr m / (1 − β₁ᵗ) / (sqrt(v / (1 − β₂ᵗ)) + ε)
//
// Two launches: sums of squares, one a block, and the update, in which each block adds those up in the
// same order. Few parameters need but the second, in which each block squares all gradients itself: a
// launch is dearer than that. A gradient that is not finite changes nothing; with a scale that follows the
// gradients it is halved then and the step is over, else training stops.
#pragma once
#include "lab/optimizer_step.cuh"

namespace lab {

// Numbers that a thread fetches before it needs the first: it would wait for each of them in turn.
constexpr int FETCHED = 4;

// Σ g² of every `stride`-th from `first` on, and of the block's threads together.
template <class T>
__device__ __forceinline__ double squares_of(const T* g, long long first, long long stride,
                                             long long N) {
    constexpr int EACH = 2 * FETCHED;
    double sum = 0;
    for (long long n = first; n < N; n += EACH * stride) {
        double fetched[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            fetched[i] = n + i * stride < N ? double(to_math(g[n + i * stride])) : 0.0;
#pragma unroll
        for (int i = 0; i < EACH; ++i) sum += fetched[i] * fetched[i];
    }
    return block_reduce<OPTIMIZER_THREADS>(sum, Add{}, 0.0);
}

// Of those that this block has.
template <class T> __device__ __forceinline__ double own_squares(const T* g, long long N) {
    return squares_of(g, blockIdx.x * 1ll * OPTIMIZER_THREADS + threadIdx.x,
                      gridDim.x * 1ll * OPTIMIZER_THREADS, N);
}

// Of all: the same in every block.
template <class T> __device__ __forceinline__ double all_squares(const T* g, long long N) {
    return squares_of(g, threadIdx.x, OPTIMIZER_THREADS, N);
}

// squares: one a block.
template <class T>
__global__ void __launch_bounds__(OPTIMIZER_THREADS)
    gradient_squares(const T* __restrict__ g, double* __restrict__ squares, long long N) {
    double sum = own_squares(g, N);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// p: in the arithmetic's type; `copy`: what the network reads, where that is another type, else not
// touched. v is not touched by SGD. rates and losses: one a step of the epoch. `every`: steps after
// which the loss scale doubles, 0 where it stays. max_norm is 0 where the gradient is not clipped.
// `blocks` sums in `squares`; 0 where each block squares all gradients itself.
template <class T, int RULE>
__global__ void __launch_bounds__(OPTIMIZER_THREADS)
    update(math_t<T>* __restrict__ p, T* __restrict__ copy, const T* __restrict__ g,
           math_t<T>* __restrict__ m, math_t<T>* __restrict__ v,
           const double* __restrict__ squares, const double* __restrict__ rates,
           const double* __restrict__ losses, long long* counts, double* numbers, double beta1,
           double beta2, double eps, double decay, double max_norm, int every, int blocks,
           long long N) {
    using M = math_t<T>;
    Progress at{counts, numbers};
    double sum = blocks == 0 ? all_squares(g, N) : sum_of(squares, blocks);
    double scale = numbers[SCALE], norm = sqrt(sum) / scale, factor = 1 / scale;
    if (max_norm > 0 && max_norm / (norm + 1e-6) < 1) factor *= max_norm / (norm + 1e-6);
    Verdict what = verdict(at, losses[counts[STEP]], norm, every > 0);
    if (blockIdx.x == 0 && threadIdx.x == 0) advance(at, what, beta1, beta2, every);
    if (!what.updates) return;

    M lr = M(rates[counts[STEP]]);
    M unbias1 = M(1 / (1 - numbers[POWER1] * beta1)), unbias2 = M(1 / (1 - numbers[POWER2] * beta2));
    long long stride = gridDim.x * 1ll * OPTIMIZER_THREADS;
    for (long long first = blockIdx.x * 1ll * OPTIMIZER_THREADS + threadIdx.x; first < N;
         first += FETCHED * stride) {
        M p_n[FETCHED], g_n[FETCHED], m_n[FETCHED], v_n[FETCHED];
#pragma unroll
        for (int i = 0; i < FETCHED; ++i) {
            long long n = first + i * stride;
            if (n >= N) continue;
            p_n[i] = p[n], m_n[i] = m[n], g_n[i] = M(double(to_math(g[n])) * factor);
            if constexpr (RULE != SGD) v_n[i] = v[n];
        }
#pragma unroll
        for (int i = 0; i < FETCHED; ++i) {
            long long n = first + i * stride;
            if (n >= N) continue;
            update_one<RULE>(p_n[i], g_n[i], m_n[i], v_n[i], lr, M(decay), M(beta1), M(beta2),
                             M(eps), unbias1, unbias2);
            p[n] = p_n[i], m[n] = m_n[i];
            if constexpr (RULE != SGD) v[n] = v_n[i];
            if constexpr (sizeof(T) < sizeof(M)) copy[n] = from_math<T>(p_n[i]);
        }
    }
}

}  // namespace lab

// What each block of a head makes of its n.
#pragma once
#include "lab/ticket.cuh"
#include "strip.cuh"

namespace lab {

// l of a head, for all threads, of which each has every THREADS-th key. Behind its barrier the keys of all rows are there,
// and all have read n, and m before it. Without a normaliser there is no n, and l is 0.
template <int THREADS, class NORMALIZER = MaxExp, class Weights, class T>
__device__ __forceinline__ float read_keys(Key* key, const Weights& w, const T* q, const T* k, const float* n, int dhqk,
                                           float scale) {
    float l = 0;
    for (int r = threadIdx.x; r < dhqk; r += THREADS) {
        key[r] = {scale * to_math(q[r]), w.written * to_math(k[r])};
        if constexpr (NORMALIZER::DIVIDES) l = fmaf(key[r].q, w.keep(n[r]) + key[r].k, l);
    }
    if constexpr (NORMALIZER::DIVIDES) return block_reduce<THREADS>(l, Add{}, 0.0f);
    __syncthreads();  // the keys of all rows are there
    return l;
}

// n', once nobody else reads n: the same numbers again, for to keep them would take registers all the way.
template <int THREADS, class Weights>
__device__ __forceinline__ void write_keys(float* n, const Weights& w, const Key* key, int dhqk) {
    for (int r = threadIdx.x; r < dhqk; r += THREADS) n[r] = w.keep(n[r]) + key[r].k;
}

}  // namespace lab

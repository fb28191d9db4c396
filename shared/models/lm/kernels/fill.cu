// Weights for timing: to_n = middle + spread u_n, u uniform in [-1, 1), a hash of n.
//
// Work split: a thread 16 bytes, by one store where `to` begins at a multiple of that.
#include "lab/pack.cuh"

using namespace lab;

constexpr int THREADS = 256;

// Murmur3's last steps (Appleby 2011): each bit of the result depends on each of h.
__device__ __forceinline__ unsigned mix(unsigned h) {
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    fill_uniform(T* __restrict__ to, long long n, float middle, float spread, unsigned seed, bool aligned) {
    constexpr int N = 16 / sizeof(T);
    long long first = (blockIdx.x * 1ll * THREADS + threadIdx.x) * N;
    T element[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        unsigned hash = mix(static_cast<unsigned>(first + i) ^ mix(seed + static_cast<unsigned>((first + i) >> 32)));
        float v = middle + spread * (2.0f * 5.9604645e-8f * (hash >> 8) - 1.0f);
        if constexpr (sizeof(T) == 1) element[i] = static_cast<signed char>(v);
        else element[i] = from_math<T>(v);
    }
    if (aligned && first + N <= n) {
        uint4 raw;
        memcpy(static_cast<void*>(&raw), element, 16);
        *reinterpret_cast<uint4*>(to + first) = raw;
    } else {
        for (int i = 0; i < N && first + i < n; ++i) to[first + i] = element[i];
    }
}

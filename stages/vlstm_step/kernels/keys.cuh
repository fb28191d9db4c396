// What each block of a head makes of its n, and which of them writes it.
#pragma once
#include "strip.cuh"

namespace lab {

// n' of a head, each thread with every THREADS-th key.
template <int THREADS> struct KeySums {
    static constexpr int KEYS = (MOST_KEYS + THREADS - 1) / THREADS;
    float after[KEYS];

    // l for all threads. Behind its barrier the keys of all rows are there, and all have read n, and m before it.
    template <class T>
    __device__ __forceinline__ float read(Key* key, const Weights& w, const T* q, const T* k, const float* n, int dhqk,
                                          float scale) {
        float l = 0;
#pragma unroll
        for (int j = 0; j < KEYS; ++j) {
            int r = j * THREADS + threadIdx.x;
            if (r >= dhqk) break;
            key[r] = {scale * to_math(q[r]), w.written * to_math(k[r])};
            after[j] = w.keep(n[r]) + key[r].k;
            l = fmaf(key[r].q, after[j], l);
        }
        return block_reduce<THREADS>(l, Add{}, 0.0f);
    }
    __device__ __forceinline__ void write(float* n, int dhqk) const {
#pragma unroll
        for (int j = 0; j < KEYS; ++j) {
            int r = j * THREADS + threadIdx.x;
            if (r < dhqk) n[r] = after[j];
        }
    }
};

// ANCHOR: ticket
// Whether all `blocks` blocks of a head are here, all threads of which have met at a barrier since they read. One thread
// asks. The ticket wraps to zero, for the next launch.
__device__ __forceinline__ bool last_to_come(unsigned* ticket, unsigned blocks) {
    __threadfence();
    bool last = atomicInc(ticket, blocks - 1) == blocks - 1;
    __threadfence();
    return last;
}
// ANCHOR_END: ticket

}  // namespace lab

// Weights that stay with their threads from step to step: in registers, in shared memory, and what
// finds no place there in device memory. A thread has one product of them with a vector that all
// threads read from shared memory.
#pragma once
#include "lab/pack.cuh"

// Four neighbours, 16 bytes at a time.
template <class M> __device__ __forceinline__ void load_four(M (&to)[4], const M* from) {
    constexpr int N = Pack<M>::N;
#pragma unroll
    for (int i = 0; i < 4; i += N) {
        Pack<M> pack = load_pack(from + i);
#pragma unroll
        for (int p = 0; p < N; ++p) to[i + p] = pack.v[p];
    }
}

// ANCHOR: weights
// MOST weights of a thread, of THREADS in its block: weight k is of(k).
template <class M, int THREADS, int MOST, int KEPT, int IN_SHARED, class Of> struct Weights {
    static constexpr int RESIDENT = KEPT + IN_SHARED;
    static_assert(KEPT % 4 == 0 && IN_SHARED % 4 == 0, "weights meet h in fours");
    static_assert(RESIDENT <= MOST, "no more than there are");
    M kept[KEPT];
    M* shared;  // k of it at THREADS k: neighbouring threads read neighbours
    Of of;
    int end;  // no weights from here on

    __device__ __forceinline__ Weights(M* memory, int end, Of of)
        : shared(memory + threadIdx.x), of(of), end(end) {
#pragma unroll
        for (int k = 0; k < KEPT; ++k) kept[k] = weight(k);
        for (int k = 0; k < IN_SHARED; ++k) shared[k * THREADS] = weight(KEPT + k);
    }
    __device__ __forceinline__ M weight(int k) const { return k < end ? of(k) : M(0); }

    // Σ_k w_k v_rk of each row; the rows of v lie STRIDE apart.
    template <int STRIDE, int ROWS>
    __device__ __forceinline__ void dots(M (&dot)[ROWS], const M* v) const {
        M sum[ROWS][4] = {};
#pragma unroll
        for (int k = 0; k < KEPT; k += 4)
            add_four<STRIDE>(sum, v, k, kept[k], kept[k + 1], kept[k + 2], kept[k + 3]);
#pragma unroll 4
        for (int k = 0; k < IN_SHARED; k += 4) {
            const M* w = shared + k * THREADS;
            add_four<STRIDE>(sum, v, KEPT + k, w[0], w[THREADS], w[2 * THREADS], w[3 * THREADS]);
        }
        if constexpr (RESIDENT < MOST)
            for (int k = RESIDENT; k < end; k += 4)
                add_four<STRIDE>(sum, v, k, weight(k), weight(k + 1), weight(k + 2), weight(k + 3));
#pragma unroll
        for (int r = 0; r < ROWS; ++r) dot[r] = (sum[r][0] + sum[r][1]) + (sum[r][2] + sum[r][3]);
    }

    template <int STRIDE, int ROWS>
    __device__ __forceinline__ static void add_four(M (&sum)[ROWS][4], const M* v, int k, M w0,
                                                    M w1, M w2, M w3) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            M v_k[4];
            load_four(v_k, v + r * STRIDE + k);
            sum[r][0] += w0 * v_k[0];
            sum[r][1] += w1 * v_k[1];
            sum[r][2] += w2 * v_k[2];
            sum[r][3] += w3 * v_k[3];
        }
    }
};

template <class M, int THREADS, int MOST, int KEPT, int IN_SHARED, class Of>
__device__ __forceinline__ Weights<M, THREADS, MOST, KEPT, IN_SHARED, Of> resident(M* memory, int end,
                                                                                   Of of) {
    return {memory, end, of};
}
// ANCHOR_END: weights

// stmatrix, sm_90: 8 x 8 matrices of halves from where mma.sync has them to rows of 16 bytes in shared memory; what
// ldmatrix does, the other way round. PTX ISA, "Warp-level matrix store instruction: stmatrix".
//
// Lane l of the first 8 N names row l % 8 of matrix l / 8, at a multiple of 16 bytes. Of each matrix it has two neighbours of row l / 4, from column
// 2 (l % 4) on, in one word. Transposed, what it has is stored as two neighbours of a column.
#pragma once
#include "lab/ptx/cluster.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

#ifdef LAB_EMULATOR
namespace stmatrix {
// The row of 16 bytes that this lane names, brought together from the lanes that have it.
template <int N, bool TRANSPOSED> __device__ __forceinline__ void store(void* row, const unsigned (&from)[N]) {
    int lane = cooperative_groups::this_thread_block().thread_rank() % 32, r = lane % 8;
    unsigned words[4] = {};
    for (int m = 0; m < N; ++m)
        for (int c = 0; c < 4; ++c) {
            unsigned word;
            if (TRANSPOSED) {
                unsigned left = __shfl_sync(0xffffffffu, from[m], 8 * c + r / 2);
                unsigned right = __shfl_sync(0xffffffffu, from[m], 8 * c + 4 + r / 2);
                word = (left >> r % 2 * 16 & 0xffffu) | right >> r % 2 * 16 << 16;
            } else {
                word = __shfl_sync(0xffffffffu, from[m], 4 * r + c);
            }
            if (lane / 8 == m) words[c] = word;
        }
    if (lane < 8 * N) *static_cast<uint4*>(row) = make_uint4(words[0], words[1], words[2], words[3]);
}
}  // namespace stmatrix
#endif

#ifndef LAB_EMULATOR
namespace stmatrix {
template <int N, bool TRANSPOSED> __device__ __forceinline__ void store(void* row, const unsigned (&from)[N]) {
#define LAB_STORE(SHAPE, WORDS, ...)                                                                          \
    if constexpr (TRANSPOSED)                                                                                 \
        asm volatile("stmatrix.sync.aligned.m8n8." SHAPE ".trans.shared.b16 [%0], " WORDS ";" ::"r"(          \
                         shared_address(row)),                                                                \
                     __VA_ARGS__                                                                              \
                     : "memory");                                                                             \
    else                                                                                                      \
        asm volatile("stmatrix.sync.aligned.m8n8." SHAPE ".shared.b16 [%0], " WORDS ";" ::"r"(                \
                         shared_address(row)),                                                                \
                     __VA_ARGS__                                                                              \
                     : "memory")
    if constexpr (N == 1) {
        LAB_STORE("x1", "{%1}", "r"(from[0]));
    } else if constexpr (N == 2) {
        LAB_STORE("x2", "{%1, %2}", "r"(from[0]), "r"(from[1]));
    } else {
        LAB_STORE("x4", "{%1, %2, %3, %4}", "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]));
    }
#undef LAB_STORE
}
}  // namespace stmatrix
#endif

// N matrices, 1, 2 or 4, as the lanes have them.
template <int N> __device__ __forceinline__ void store_matrices(void* row, const unsigned (&from)[N]) {
    static_assert(N == 1 || N == 2 || N == 4, "1, 2 or 4 matrices");
    stmatrix::store<N, false>(row, from);
}

// The same, transposed.
template <int N> __device__ __forceinline__ void store_matrices_transposed(void* row, const unsigned (&from)[N]) {
    static_assert(N == 1 || N == 2 || N == 4, "1, 2 or 4 matrices");
    stmatrix::store<N, true>(row, from);
}

}  // namespace lab
#endif

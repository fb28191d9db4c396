// Fragments of mma.sync of 16 x 16 from panels in shared memory (lab/vlstm/pairs.cuh), and 16 x 16 of a product to rows in device
// memory.
#pragma once
#include "lab/vlstm/warp_tiles.cuh"

namespace lab {

// Where a lane's row of 16 x 16 begins in a panel, in elements: of four matrices row by row, or column by column. Rows and columns are
// multiples of 16. So a column more is an exclusive or with it, as the swizzle is (`cell`), and little is left to add up.
__device__ __forceinline__ int offset_by_rows() {
    int lane = threadIdx.x % 32;
    return lane % 16 * PANEL + (lane / 16 ^ lane % 8) * 8;
}
__device__ __forceinline__ int offset_by_columns() {
    int lane = threadIdx.x % 32;
    return (lane / 16 * 8 + lane % 8) * PANEL + (lane / 8 % 2 ^ lane % 8) * 8;
}

// The left operand, whose rows are the panel's rows from r on, along the sum its columns from k on.
template <class T> __device__ __forceinline__ void load_left(unsigned (&a)[4], const T* panel, int r, int k) {
    load_matrices(a, panel + r * PANEL + (offset_by_rows() ^ k));
}
// The same of a panel that lies turned: along the sum its rows.
template <class T> __device__ __forceinline__ void load_left_turned(unsigned (&a)[4], const T* panel, int r, int k) {
    load_matrices_transposed(a, panel + k * PANEL + (offset_by_columns() ^ r));
}
// The right operand, whose columns are the panel's columns from c on, along the sum its rows from k on.
template <class T> __device__ __forceinline__ void load_right(unsigned (&b)[4], const T* panel, int k, int c) {
    load_matrices_transposed(b, panel + k * PANEL + (offset_by_rows() ^ c));
}

// Four words of each of four neighbours: lane t of them gets the t-th of all.
__device__ __forceinline__ void transpose_words(unsigned (&words)[4]) {
    constexpr unsigned ALL = 0xffffffff;
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
        bool upper = threadIdx.x & d;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            if (w & d) continue;
            unsigned other = __shfl_xor_sync(ALL, upper ? words[w] : words[w + d], d);
            words[w] = upper ? other : words[w];
            words[w + d] = upper ? words[w + d] : other;
        }
    }
}

// 16 x 16 of a product's sums, rounded, to rows of `columns` from `corner` on: 32 bytes of a row at a time. Rows from `rows` on are
// not there.
template <class T>
__device__ __forceinline__ void store_words(T* corner, int columns, const unsigned (&words)[4], int rows) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    unsigned own[4] = {words[0], words[1], words[2], words[3]};
    transpose_words(own);
    int r = g + t % 2 * 8;
    if (r < rows)
        *reinterpret_cast<uint4*>(corner + r * columns + t / 2 * 8) = make_uint4(own[0], own[1], own[2], own[3]);
}

}  // namespace lab

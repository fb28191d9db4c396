// Products of tiles of L positions by mma.sync: of a block of L / 16 warps each has 16 rows, and the other tile for all
// of them lies in panels in shared memory.
#pragma once
#include "lab/ptx/cp_async.cuh"
#include "lab/ptx/ldmatrix.cuh"
#include "lab/tile.cuh"
#include "lab/vlstm/pairs.cuh"

namespace lab {

// COLUMNS columns of L rows, from r0 and c0 on, on their way; zeros past the matrix.
template <int COLUMNS, int L, class T>
__device__ __forceinline__ void copy_panels(T (*to)[L * PANEL], Matrix<const T> from, int r0, int c0) {
#pragma unroll 4
    for (int e = threadIdx.x * 8; e < L * COLUMNS; e += L * 2 * 8) {
        int r = e / COLUMNS, c = e % COLUMNS;
        async_copy_or_zero<16>(cell(to[c / PANEL], r, c % PANEL), from.at(r0 + r, c0 + c), from.inside(r0 + r, c0 + c));
    }
}

// c += A B of 16 columns, whose sums lie side by side.
template <class T>
__device__ __forceinline__ void multiply_add_16(float* c, const unsigned (&a)[4], const unsigned (&b)[4]) {
    multiply_add<T>(*reinterpret_cast<float(*)[4]>(c), a, b[0], b[1]);
    multiply_add<T>(*reinterpret_cast<float(*)[4]>(c + 4), a, b[2], b[3]);
}

// ANCHOR: products
// score = Q Kᵀ of a warp's 16 rows.
template <class T, int KEY, int L>
__device__ __forceinline__ void multiply_scores(float (&score)[L / 2], T (*q)[L * PANEL], T (*k)[L * PANEL]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < L / 2; ++n) score[n] = 0;
#pragma unroll
    for (int c = 0; c < KEY; c += 16) {
        unsigned a[4], b[4];
        load_matrices(a, cell(q[c / PANEL], warp * 16 + lane % 16, c % PANEL + lane / 16 * 8));
#pragma unroll
        for (int j = 0; j < L; j += 16) {
            load_matrices(b, cell(k[c / PANEL], j + lane / 16 * 8 + lane % 8, c % PANEL + lane / 8 % 2 * 8));
            multiply_add_16<T>(score + j / 2, a, b);
        }
    }
}

// out += C̃ V of a warp's 16 rows.
template <class T, int VALUE, int L>
__device__ __forceinline__ void multiply_values(float (&out)[VALUE / 2], const unsigned (&pairs)[L / 16][4],
                                                T (*v)[L * PANEL]) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < L; j += 16)
#pragma unroll
        for (int c = 0; c < VALUE; c += 16) {
            unsigned b[4];
            load_matrices_transposed(b, cell(v[c / PANEL], j + lane % 16, c % PANEL + lane / 16 * 8));
            multiply_add_16<T>(out + c / 2, pairs[j / 16], b);
        }
}
// ANCHOR_END: products

}  // namespace lab

// Sums over many rows, by blocks of 256 threads: a tile of 32 x 32 results of a product, and, once a
// block, the sums of 32 columns. A block goes along the whole sum, from its first term to its last, so
// that it is the same at every run: nobody adds to what another has written.
//
// Work split: of a product a thread has 4 results; of a column 8 threads share the rows.
#pragma once
#include "lab/scalar.cuh"

constexpr int THREADS = 256, TILE = 32, LANES = THREADS / TILE, EACH = TILE / LANES;

// ANCHOR: product
// sum_e = Σ_k a(m, k) b(k, n) for m = ti + 8 e and n = tj, places within the tile. a and b are zero
// outside of their matrices. Neighbouring threads load neighbours: of a along m if ALONG_M, of b
// along n if ALONG_N, where the n that b is asked for is the thread's own; else along k.
template <bool ALONG_M, bool ALONG_N, class M, class A, class B>
__device__ __forceinline__ void tile_product(M (&sum)[EACH], int K, A a, B b,
                                             bool wanted = true) {
    __shared__ M as[TILE][TILE + 1], bs[TILE][TILE + 1];  // as[k][m], bs[k][n]
    int ti = threadIdx.x / TILE, tj = threadIdx.x % TILE;
    for (int k0 = 0; k0 < K; k0 += TILE) {
#pragma unroll
        for (int r = ti; r < TILE; r += LANES) {
            if constexpr (ALONG_M) as[r][tj] = a(tj, k0 + r);
            else as[tj][r] = a(r, k0 + tj);
            if constexpr (ALONG_N) bs[r][tj] = b(k0 + r, tj);
            else bs[tj][r] = b(k0 + tj, r);
        }
        __syncthreads();  // a thread multiplies what others have stored
        if (wanted)
            for (int k = 0; k < TILE; ++k)
#pragma unroll
                for (int e = 0; e < EACH; ++e) sum[e] += as[k][ti + LANES * e] * bs[k][tj];
        __syncthreads();  // the tiles are read: the next ones may overwrite them
    }
}
// ANCHOR_END: product

// The results of the tile from row m0 on of a matrix of `rows` x `columns`, a thread those of column n.
template <class T>
__device__ __forceinline__ void store_results(const math_t<T> (&sum)[EACH], T* to, int m0, int n,
                                              int rows, int columns) {
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        int m = m0 + threadIdx.x / TILE + LANES * e;
        if (m < rows && n < columns) to[m * 1ll * columns + n] = from_math<T>(sum[e]);
    }
}

// Σ_r of N numbers of a column, in the thread of its first lane: a lane adds up those of every 8th row,
// by `add(own, r)`, and the first adds up the lanes.
template <int N, class M, class Add>
__device__ __forceinline__ void column_sums(M (&sum)[N], int rows, Add add) {
    __shared__ M partial[N][LANES][TILE];
    int lane = threadIdx.x / TILE, n = threadIdx.x % TILE;
    M own[N] = {};
    for (int r = lane; r < rows; r += LANES) add(own, r);
#pragma unroll
    for (int i = 0; i < N; ++i) partial[i][lane][n] = own[i];
    __syncthreads();  // the sums of all lanes are written
    if (lane != 0) return;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        sum[i] = 0;
        for (int l = 0; l < LANES; ++l) sum[i] += partial[i][l][n];
    }
}

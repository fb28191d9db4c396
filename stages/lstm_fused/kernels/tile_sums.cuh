// Sums over many rows, by blocks of 256 threads: a tile of 32 x 32 results of a product, and, once a
// block, the sums of 32 columns. A block goes along the whole sum, from its first term to its last, so
// that it is the same at every run: nobody adds to what another has written.
//
// Work split: of a product a thread has 4 results, one below the other; of a column 8 threads share the
// rows.
#pragma once
#include "lab/pack.cuh"

namespace lab {

// The tile, and what is done with it.
struct SumTile {
    static constexpr int THREADS = 256, TILE = 32, LANES = THREADS / TILE, EACH = TILE / LANES;

    // Where in the tile this thread's result e is, of a column that neighbouring threads have side by side.
    static __device__ __forceinline__ int own_row(int e) { return threadIdx.x / TILE * EACH + e; }

    // A thread's numbers of a row in shared memory, 16 bytes at a time.
    template <class M> static __device__ __forceinline__ void load_own(M (&to)[EACH], const M* from) {
        constexpr int N = Pack<M>::N;
#pragma unroll
        for (int e = 0; e < EACH; e += N) {
            Pack<M> pack = load_pack(from + e);
#pragma unroll
            for (int i = 0; i < N; ++i) to[e + i] = pack.v[i];
        }
    }
    template <class M> static __device__ __forceinline__ void store_own(M* to, const M (&from)[EACH]) {
        constexpr int N = Pack<M>::N;
#pragma unroll
        for (int e = 0; e < EACH; e += N) {
            Pack<M> pack;
#pragma unroll
            for (int i = 0; i < N; ++i) pack.v[i] = from[e + i];
            store_pack(to + e, pack);
        }
    }

    // Of the tiles of a and b that begin with term k0, what this thread loads.
    template <bool ALONG_M, bool ALONG_N, class M, class A, class B>
    static __device__ __forceinline__ void fetch(M (&as)[EACH], M (&bs)[EACH], int k0, A a, B b) {
        int ti = threadIdx.x / TILE, tj = threadIdx.x % TILE;
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            int r = ti + LANES * e;
            as[e] = ALONG_M ? a(tj, k0 + r) : a(own_row(e), k0 + tj);
            bs[e] = ALONG_N ? b(k0 + r, tj) : b(k0 + tj, r);
        }
    }

    // ANCHOR: product
    // sum_e = Σ_k a(m, k) b(k, n) for m = own_row(e) and n = tj, places within the tile. a and b are zero
    // outside of their matrices. Neighbouring threads load neighbours: of a along m if ALONG_M, of b
    // along n if ALONG_N, where the n that b is asked for is the thread's own; else along k. The next tile is
    // on its way while this one is multiplied.
    template <bool ALONG_M, bool ALONG_N, class M, class A, class B>
    static __device__ __forceinline__ void product(M (&sum)[EACH], int K, A a, B b,
                                                   bool wanted = true) {
        // as[k][m], whose rows are packs; bs[k][n].
        __shared__ __align__(16) M as[TILE][TILE + EACH];
        __shared__ M bs[TILE][TILE + 1];
        int ti = threadIdx.x / TILE, tj = threadIdx.x % TILE;
        M next_a[EACH], next_b[EACH];
        fetch<ALONG_M, ALONG_N>(next_a, next_b, 0, a, b);
        for (int k0 = 0; k0 < K; k0 += TILE) {
#pragma unroll
            for (int e = 0; e < EACH; ++e) {
                int r = ti + LANES * e;
                if constexpr (ALONG_M) as[r][tj] = next_a[e];
                if constexpr (ALONG_N) bs[r][tj] = next_b[e];
                else bs[tj][r] = next_b[e];
            }
            if constexpr (!ALONG_M) store_own(&as[tj][own_row(0)], next_a);
            __syncthreads();  // a thread multiplies what others have stored
            if (k0 + TILE < K) fetch<ALONG_M, ALONG_N>(next_a, next_b, k0 + TILE, a, b);
            if (wanted)
#pragma unroll 8
                for (int k = 0; k < TILE; ++k) {
                    M a_k[EACH];
                    load_own(a_k, &as[k][own_row(0)]);
#pragma unroll
                    for (int e = 0; e < EACH; ++e) sum[e] += a_k[e] * bs[k][tj];
                }
            __syncthreads();  // the tiles are read: the next ones may overwrite them
        }
    }
    // ANCHOR_END: product

    // The results of the tile from row m0 on of a matrix of `rows` x `columns`, a thread those of column n.
    template <class T>
    static __device__ __forceinline__ void store(const math_t<T> (&sum)[EACH], T* to, int m0, int n,
                                                 int rows, int columns) {
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            int m = m0 + own_row(e);
            if (m < rows && n < columns) to[m * 1ll * columns + n] = from_math<T>(sum[e]);
        }
    }

    // Σ_r of N numbers of a column, in the thread of its first lane: a lane adds up those of every 8th row,
    // by `add(own, r)`, and the first adds up the lanes.
    template <int N, class M, class Add>
    static __device__ __forceinline__ void column_sums(M (&sum)[N], int rows, Add add) {
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
};

}  // namespace lab

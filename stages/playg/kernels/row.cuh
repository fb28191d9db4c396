// A row of a matrix in the registers of one block, so that it crosses device memory once however
// often the kernel looks at it.
//
// Thread t of THREADS holds PACKS packs of N elements; its pack p starts at column
// (p THREADS + t) N. With N = Pack<T>::N each pack is one 16-byte access, which asks that columns be
// a multiple of N (so that every row starts at a multiple of 16 bytes); with N = 1 anything goes.
#pragma once
#include "lab/pack.cuh"

namespace lab {

template <class T, int THREADS, int PACKS, int N> struct Row {
    static_assert(N == 1 || N == Pack<T>::N, "N is 1, or as many elements as 16 bytes hold");
    static_assert(PACKS * N <= 64, "a row's share must fit a thread's registers: raise THREADS");
    using M = math_t<T>;
    M v[PACKS][N];

    __device__ __forceinline__ static int column(int p) { return (p * THREADS + threadIdx.x) * N; }

    // The cells of pack p; those past the end of the row get `fill`.
    __device__ __forceinline__ static void load_cells(M (&cells)[N], const T* row, int p,
                                                      int columns, M fill) {
        int c = column(p);
        if constexpr (N == 1) {
            cells[0] = c < columns ? to_math(row[c]) : fill;
        } else if (c < columns) {
            Pack<T> pack = load_pack(row + c);
#pragma unroll
            for (int i = 0; i < N; ++i) cells[i] = pack.v[i];
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) cells[i] = fill;
        }
    }

    __device__ __forceinline__ void load(const T* row, int columns, M fill) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) load_cells(v[p], row, p, columns, fill);
    }

    __device__ __forceinline__ void store(T* row, int columns) const {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            int c = column(p);
            if (c >= columns) continue;
            if constexpr (N == 1) {
                row[c] = from_math<T>(v[p][0]);
            } else {
                Pack<T> pack;
#pragma unroll
                for (int i = 0; i < N; ++i) pack.v[i] = v[p][i];
                store_pack(row + c, pack);
            }
        }
    }

    // f(cell) for each cell of the packs that are inside the row; a pack is inside as a whole.
    template <class F> __device__ __forceinline__ void for_each_cell(int columns, F f) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            if (column(p) >= columns) continue;
#pragma unroll
            for (int i = 0; i < N; ++i) f(v[p][i]);
        }
    }
};

}  // namespace lab

// A matrix in device memory, row-major, that is cut into tiles and may end within one: what lies
// outside reads as zero, and is not written.
//
// N cells of a row at a time: with N = 1 anything goes; more are one access of N elements, which
// asks that the columns be a multiple of N (so that every row starts at a multiple of its bytes,
// and N cells are inside or outside as a whole).
#pragma once
#include "lab/pack.cuh"

namespace lab {

// What moves so many bytes in one access.
template <int BYTES> struct word;
template <> struct word<4> { using type = unsigned; };
template <> struct word<8> { using type = unsigned long long; };
template <> struct word<16> { using type = uint4; };
template <int BYTES> using word_t = typename word<BYTES>::type;

template <class T> struct Matrix {
    T* x;
    int rows, columns;

    // ANCHOR: guard
    __device__ __forceinline__ bool inside(int r, int c) const { return r < rows && c < columns; }
    __device__ __forceinline__ T* at(int r, int c) const { return x + r * 1ll * columns + c; }

    __device__ __forceinline__ float cell(int r, int c) const {
        return inside(r, c) ? to_math(*at(r, c)) : 0.0f;
    }
    // ANCHOR_END: guard

    template <int N> __device__ __forceinline__ void load(float (&to)[N], int r, int c) const {
        static_assert(N == 1 || N == 16 / sizeof(T), "N is 1, or as many elements as 16 bytes hold");
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = 0.0f;
        if (!inside(r, c)) return;
        if constexpr (N == 1) {
            to[0] = to_math(*at(r, c));
        } else {
            auto pack = load_pack(at(r, c));
#pragma unroll
            for (int i = 0; i < N; ++i) to[i] = pack.v[i];
        }
    }

    // N neighbours; one access if WIDE.
    template <bool WIDE, int N = 4>
    __device__ __forceinline__ void store(const float* from, int r, int c) const {
        if constexpr (WIDE) {
            if (!inside(r, c)) return;
            T element[N];
#pragma unroll
            for (int i = 0; i < N; ++i) element[i] = from_math<T>(from[i]);
            using Word = word_t<N * sizeof(T)>;
            Word raw;
            memcpy(static_cast<void*>(&raw), element, sizeof raw);
            *reinterpret_cast<Word*>(at(r, c)) = raw;
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (inside(r, c + i)) *at(r, c + i) = from_math<T>(from[i]);
        }
    }
};

// N cells into shared memory, in packs of 16 bytes if there are four or more.
template <int N> __device__ __forceinline__ void store_cells(float* to, const float (&from)[N]) {
    if constexpr (N == 1) {
        to[0] = from[0];
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4)
            store_pack(to + i, Pack<float>{{from[i], from[i + 1], from[i + 2], from[i + 3]}});
    }
}

// N cells from shared memory, 16 bytes at a time: four, and four more each `step` cells further on.
template <int N>
__device__ __forceinline__ void load_fours(float (&to)[N], const float* from, int step) {
    static_assert(N % 4 == 0, "cells come in fours");
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        Pack<float> four = load_pack(from + i / 4 * step);
#pragma unroll
        for (int p = 0; p < 4; ++p) to[i + p] = four.v[p];
    }
}

}  // namespace lab

// Pairs of positions on tensor cores: panels of halves in shared memory, weights of pairs, and factors of which weights
// are made.
//
// A tile is L positions. Panels of it are 64 columns wide, 128 bytes, swizzled as TMA writes them and wgmma reads
// them. Of a product a lane has rows lane / 4 and 8 more of its warp's 16, and two neighbours of each eight columns
// (lab/ptx/wgmma.cuh).
#pragma once
#include "lab/gates.cuh"
#include "lab/halves.cuh"

namespace lab {

constexpr int PANEL = 64, SPAN = 128;

// An element of a panel.
template <class T> __device__ __forceinline__ T* cell(T* panel, int row, int column) {
    return panel + row * PANEL + (column / 8 ^ row % 8) * 8 + column % 8;
}

// The first of a lane's rows, in a tile of which each warp has 16.
__device__ __forceinline__ int own_row() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }

// ANCHOR: weigh
// s P_ij, by the exponents of a lane's two rows and of a tile's columns, for columns j and j + 1 and row r of the two.
struct Exponents {
    float2 row[2];
    const float2* column;

    __device__ __forceinline__ float2 operator()(int j, int r) const {
        float4 e = *reinterpret_cast<const float4*>(column + j);
        return make_float2(power_of_two(sum_of(row[r], make_float2(e.x, e.y))),
                           power_of_two(sum_of(row[r], make_float2(e.z, e.w))));
    }
};

// C̃_ij = s (q_i·k_j) P_ij of a lane's rows, in place of the scores; adds to l. On the diagonal only pairs j <= i count.
template <bool DIAGONAL, int N, class Weight>
__device__ __forceinline__ void weigh(float (&score)[N], float (&l)[2], const Weight& weight) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        int r = n / 2 % 2, j = n / 4 * 8 + threadIdx.x % 4 * 2;
        float2 d = weight(j, r);
        score[n] *= d.x, score[n + 1] *= d.y;
        if (DIAGONAL) {  // not 0 · NaN, where K's row is a later one
            int i = own_row() + 8 * r;
            if (j > i) score[n] = 0;
            if (j >= i) score[n + 1] = 0;
        }
        l[r] += score[n] + score[n + 1];
    }
}

// C̃, rounded, as A operands of C̃ V, 16 columns each.
template <class T, int N>
__device__ __forceinline__ void round_pairs(unsigned (&pairs)[N / 8][4], const float (&score)[N]) {
#pragma unroll
    for (int n = 0; n < N; n += 2) pairs[n / 8][n / 2 % 4] = two_halves<T>(score[n], score[n + 1]);
}
// ANCHOR_END: weigh

// Of 64 positions whose last is e: exp(x_j - R_e) of each, and R_e log2(e) as two floats, with two more that make the
// size a multiple of 16 bytes (gates.cu).
struct Factors {
    float of[PANEL];
    float4 anchor;
};

// ANCHOR: factored
// s P_ij as `Exponents` has them, of a tile before that of the rows.
template <int L> struct Factored {
    float row[L / PANEL][2];
    const Factors* factors;

    __device__ __forceinline__ Factored(const float2 (&rows)[2], const Factors* factors) : factors(factors) {
#pragma unroll
        for (int n = 0; n < L / PANEL; ++n) {
            float4 anchor = factors[n].anchor;
#pragma unroll
            for (int r = 0; r < 2; ++r) row[n][r] = power_of_two(sum_of(rows[r], make_float2(anchor.x, anchor.y)));
        }
    }
    __device__ __forceinline__ float2 operator()(int j, int r) const {
        float2 of = *reinterpret_cast<const float2*>(factors[j / PANEL].of + j % PANEL);
        return make_float2(row[j / PANEL][r] * of.x, row[j / PANEL][r] * of.y);
    }
};
// ANCHOR_END: factored

}  // namespace lab

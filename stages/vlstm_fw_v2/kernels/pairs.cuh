// What the versions share: panels of halves in shared memory, the weights of pairs, and n.
//
// A tile is L positions. Panels of it are 64 columns wide, 128 bytes, swizzled as TMA writes them and wgmma reads
// them. Of a product a lane has rows lane / 4 and 8 more of its warp's 16, and two neighbours of each eight columns
// (lab/ptx/wgmma.cuh).
#pragma once
#include "lab/gates.cuh"
#include "lab/halves.cuh"
#include "lab/reduce.cuh"

namespace lab {

constexpr int PANEL = 64, SPAN = 128;

// An element of a panel.
template <class T> __device__ __forceinline__ T* cell(T* panel, int row, int column) {
    return panel + row * PANEL + (column / 8 ^ row % 8) * 8 + column % 8;
}

// The first of a lane's rows, in a tile of which each warp has 16.
__device__ __forceinline__ int own_row() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }

// ANCHOR: weigh
// s D_ij, by the exponents of a lane's two rows and of a tile's columns, for columns j and j + 1 and row r of the two.
struct Exponents {
    float2 row[2];
    const float2* column;

    __device__ __forceinline__ float2 operator()(int j, int r) const {
        float4 e = *reinterpret_cast<const float4*>(column + j);
        return make_float2(power_of_two(sum_of(row[r], make_float2(e.x, e.y))),
                           power_of_two(sum_of(row[r], make_float2(e.z, e.w))));
    }
};

// C̃_ij = s (q_i·k_j) D_ij of a lane's rows, in place of the scores; adds to l. On the diagonal only pairs j <= i count.
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

// ANCHOR: normalise
// n_i = max(|l_i|, exp(-m_i)) of a lane's rows, of which each of four lanes has a part of l, to n_out; 1 / (n_i + eps)
// in place of l. `first` is the position of the tile's first row.
__device__ __forceinline__ void normalise(float (&l)[2], const float* m, float* n_out, int first, int S, float eps,
                                          bool stores) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        int i = first + own_row() + 8 * r;
        float of_row = fabsf(warp_reduce<4>(l[r], Add())), floor = i < S ? expf(-m[i]) : 1;
        float n = of_row <= floor ? floor : of_row;  // NaN stays
        if (stores && i < S && threadIdx.x % 4 == 0) n_out[i] = n;
        l[r] = 1 / (n + eps);
    }
}
// ANCHOR_END: normalise

// Of 64 positions whose last is e: exp(x_j - R_e) of each, and R_e log2(e) as two floats, with two more that make the
// size a multiple of 16 bytes (gates.cu).
struct Factors {
    float of[PANEL];
    float4 anchor;
};

// ANCHOR: part
// Which tile of Q a block has, of which head, and from which column of V on: the n-th of `parts`. Heads come `together`
// at a time, as many as the second-level cache holds K and V of. Of those, tiles that look back furthest come first: what
// is short fills the gaps at the end.
template <int VALUE> struct Part {
    int tile, head, value;

    __device__ __forceinline__ Part(int tiles, int together, int dhhv, int n, int parts) {
        int slices = (dhhv + VALUE - 1) / VALUE, of_a_head = tiles * slices;
        int first = n / (together * of_a_head) * together, heads = min(together, parts / of_a_head - first);
        int at = n - first * of_a_head;
        tile = tiles - 1 - at / (heads * slices);
        head = first + at / slices % heads, value = at % slices * VALUE;
    }
};
// ANCHOR_END: part

}  // namespace lab

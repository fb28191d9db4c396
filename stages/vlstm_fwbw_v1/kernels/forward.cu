// The forward pass of the vLSTM, a tile of Q a block, exponents in powers of two:
//
//   D_ij = (F_i − F_j + i_j) log2(e)  for j <= i   m_i = max_j D_ij / log2(e)
//   C̃_ij = scale (q_i · k_j) 2^(D_ij − max_j D_ij)   l_i = Σ_j C̃_ij
//   n_i  = max(|l_i|, exp(−m_i))                     h_i = Σ_j C̃_ij v_j / (n_i + eps)
//
// Work split: a block owns TQ rows of Q, from q0, of one head, and those of h, m, n. Tiles of TKV rows
// of K and V come past it up to its last row, with CX > 0 the next on its way; with them the largest
// exponent so far. TQ and TKV are free of each other. A thread has TQ / WI rows.
//
// scale is a factor of every C: it is multiplied in at the end.
//
// Q, K: heads x S x dhqk, V, h: heads x S x dhhv, i, F, m, n, side: heads x S. side_i is the sign of
// l_i where n_i = |l_i|, and 0 where it is not. A grid of heads tiles blocks, tiles = ceil(S / TQ),
// those of a head longest first.
#include "lab/gates.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "steps.cuh"

using namespace lab;

// The maximum of nothing. Were it -∞, 2^(D - m) of a tile whose i are all -∞ would be NaN.
constexpr float LOWEST = -3.402823466e38f;

// F_j and i_j of the rows of K that a thread meets in a tile, past the end those of the last.
template <int RJ> struct Keys {
    float2 F[RJ];
    float i[RJ];
};

// ANCHOR: weigh
// One row of a tile of scores, from kv0: C̃_ij / scale with the largest exponent up to here, and what
// those with the one before are to be scaled by.
template <class L, int RJ>
__device__ __forceinline__ float weigh_row(float (&score)[RJ], float& m, float& l, int i, int kv0,
                                           float2 F_i, const float2 (&e_j)[RJ]) {
    float D[RJ], largest = m;
#pragma unroll
    for (int j = 0; j < RJ; ++j) {
        bool later = kv0 + L::tj() + j * L::WJ > i;
        D[j] = later ? lowest<float>() : sum_of(F_i, e_j[j]);
        if (later) score[j] = 0;  // counts for nothing, even if it is infinite
        largest = fmaxf(largest, D[j]);
    }
    largest = L::over_row(largest, Max{});
    float kept = power_of_two(m - largest);
    m = largest;
    l *= kept;
#pragma unroll
    for (int j = 0; j < RJ; ++j) {
        score[j] *= power_of_two(D[j] - m);
        l += score[j];
    }
    return kept;
}
// ANCHOR_END: weigh

template <class, int TQ, int TKV, int DH, int CX, int WI, int WJ, int, class L = Twins<WI, WJ>>
constexpr int vlstm_forward_shared = Tiles<TQ, TKV, DH, CX, L>::BYTES;

template <class T, int TQ, int TKV, int DH, int CX, int WI, int WJ, int BLOCKS,
          class L = Twins<WI, WJ>>
__global__ void __launch_bounds__(WI* WJ, BLOCKS)
    vlstm_forward(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                  const float* __restrict__ i, const float2* __restrict__ F, T* __restrict__ h,
                  float* __restrict__ m, float* __restrict__ n, float* __restrict__ side, int tiles,
                  int S, int dhqk, int dhhv, float scale, float eps) {
    constexpr int RI = TQ / WI, RJ = TKV / WJ, RC = DH / WJ;
    DYNAMIC_SHARED(float, memory);
    Tiles<TQ, TKV, DH, CX, L> shared(memory);
    long long head = blockIdx.x / tiles;
    int q0 = (tiles - 1 - blockIdx.x % tiles) * TQ, ti = L::ti(), tj = L::tj();
    Matrix<const T> Q{q + head * S * dhqk, S, dhqk}, K{k + head * S * dhqk, S, dhqk};
    Matrix<const T> V{v + head * S * dhhv, S, dhhv};
    Matrix<T> H{h + head * S * dhhv, S, dhhv};
    i += head * S, F += head * S, m += head * S, n += head * S, side += head * S;

    float sum[RI][RC] = {}, l_i[RI] = {}, m_i[RI];
    float2 F_i[RI];
#pragma unroll
    for (int a = 0; a < RI; ++a) {
        m_i[a] = LOWEST;
        F_i[a] = in_twos(F[min(q0 + ti + a * WI, S - 1)], 0);
    }
    auto meet = [&](int kv0) {
        Keys<RJ> keys;
#pragma unroll
        for (int b = 0; b < RJ; ++b) {
            int j = min(kv0 + tj + b * WJ, S - 1);
            keys.F[b] = F[j], keys.i[b] = i[j];
        }
        return keys;
    };
    products<L>(
        sum, shared, Q, q0, K, V, 0, min(q0 + TQ, S), meet,
        [&](float (&score)[RI][RJ], const Keys<RJ>& keys, int kv0) {
            float2 e_j[RJ];
#pragma unroll
            for (int b = 0; b < RJ; ++b) e_j[b] = in_twos(negative(keys.F[b]), keys.i[b]);
#pragma unroll
            for (int a = 0; a < RI; ++a) {
                int row = q0 + ti + a * WI;
                float kept = weigh_row<L>(score[a], m_i[a], l_i[a], row, kv0, F_i[a], e_j);
#pragma unroll
                for (int c = 0; c < RC; ++c) sum[a][c] *= kept;
            }
        });
#pragma unroll
    for (int a = 0; a < RI; ++a) {
        int row = q0 + ti + a * WI;
        // ANCHOR: normalise
        float l = scale * L::over_row(l_i[a], Add{}), least = exp2f(-m_i[a]);
        float n_i = fmaxf(fabsf(l), least);
#pragma unroll
        for (int c = 0; c < RC; ++c) sum[a][c] = scale * sum[a][c] / (n_i + eps);
        // ANCHOR_END: normalise
#pragma unroll
        for (int c = 0; c < RC; c += 4) H.template store<true>(&sum[a][c], row, 4 * tj + c * WJ);
        if (tj == 0 && row < S) {
            m[row] = m_i[a] * LN2, n[row] = n_i;
            side[row] = fabsf(l) > least ? copysignf(1.0f, l) : 0.0f;
        }
    }
}

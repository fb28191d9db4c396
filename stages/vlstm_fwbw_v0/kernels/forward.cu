// The forward pass of the vLSTM, a tile of Q a block:
//
//   D_ij = F_i − F_j + i_j  for j <= i       m_i = max_j D_ij
//   C̃_ij = scale (q_i · k_j) exp(D_ij − m_i)  l_i = Σ_j C̃_ij
//   n_i  = max(|l_i|, exp(−m_i))              h_i = Σ_j C̃_ij v_j / (n_i + eps)
//
// Work split: a block owns TQ rows of Q, from q0, of one head, and those of h, m, n. K and V come
// past it up to its own rows and no further; with them the largest exponent so far: what has been
// summed up with an earlier one is scaled when it grows. Blocks of a head come longest first.
//
// Q, K: heads x S x dhqk, V, h: heads x S x dhhv, i, F, m, n, side: heads x S. side_i is the sign of
// l_i where n_i = |l_i|, and 0 where it is not. A grid of heads tiles blocks, tiles = ceil(S / TQ).
#include "lab/gates.cuh"
#include "lab/reduce.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/weighted.cuh"

using namespace lab;

constexpr int TI = InRows::WI, TJ = InRows::WJ;  // rows and columns of threads

// The maximum of nothing. Were it -∞, exp(D - m) of a tile whose i are all -∞ would be NaN.
constexpr float LOWEST = -3.402823466e38f;

// ANCHOR: weigh
// D_ij
__device__ __forceinline__ float exponent(float2 F_i, float2 F_j, float i_j) {
    return difference(F_i, F_j) + i_j;
}

// One row of a tile of scores, from kv0: C̃_ij with the largest exponent up to here, and what those
// with the one before are to be scaled by.
template <int RJ>
__device__ __forceinline__ float weigh_row(float (&score)[RJ], float& m, float& l, int i, int kv0,
                                           float2 F_i, const float2 (&F_j)[RJ],
                                           const float (&i_j)[RJ], float scale) {
    float D[RJ], largest = m;
#pragma unroll
    for (int j = 0; j < RJ; ++j) {
        bool later = kv0 + static_cast<int>(threadIdx.x % TJ) + j * TJ > i;
        D[j] = later ? lowest<float>() : exponent(F_i, F_j[j], i_j[j]);
        largest = max(largest, D[j]);
        // What is later counts for nothing, even if it is infinite.
        score[j] = later ? 0 : scale * score[j];
    }
    largest = warp_reduce<TJ>(largest, Max{});
    float kept = expf(m - largest);
    m = largest;
    l *= kept;
#pragma unroll
    for (int j = 0; j < RJ; ++j) {
        score[j] *= expf(D[j] - m);
        l += score[j];
    }
    return kept;
}
// ANCHOR_END: weigh

template <class, int TQ, int TKV, int DH>
constexpr int vlstm_forward_shared = TILES_BYTES<TQ, TKV, DH>;

template <class T, int TQ, int TKV, int DH>
__global__ void __launch_bounds__(InRows::THREADS)
    vlstm_forward(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                  const float* __restrict__ i, const float2* __restrict__ F, T* __restrict__ h,
                  float* __restrict__ m, float* __restrict__ n, float* __restrict__ side, int tiles,
                  int S, int dhqk, int dhhv, float scale, float eps) {
    constexpr int RI = TQ / TI, RJ = TKV / TJ, RC = DH / TJ;
    DYNAMIC_SHARED(float, memory);
    WeightedTiles<TQ, TKV, DH> shared(memory);
    long long head = blockIdx.x / tiles;
    int q0 = (tiles - 1 - blockIdx.x % tiles) * TQ, ti = threadIdx.x / TJ, tj = threadIdx.x % TJ;
    Matrix<const T> Q{q + head * S * dhqk, S, dhqk}, K{k + head * S * dhqk, S, dhqk};
    Matrix<const T> V{v + head * S * dhhv, S, dhhv};
    Matrix<T> H{h + head * S * dhhv, S, dhhv};
    i += head * S, F += head * S, m += head * S, n += head * S, side += head * S;

    float sum[RI][RC] = {}, l_i[RI] = {}, m_i[RI];
#pragma unroll
    for (int a = 0; a < RI; ++a) m_i[a] = LOWEST;
    load_tile<TQ, DH, 16 / sizeof(T)>(shared.own, Q, q0);
    weighted_products(sum, shared, K, V, 0, q0 + 1, [&](float (&score)[RI][RJ], int kv0) {
        float2 F_j[RJ];
        float i_j[RJ];
#pragma unroll
        for (int b = 0; b < RJ; ++b) {
            int j = min(kv0 + tj + b * TJ, S - 1);
            F_j[b] = F[j], i_j[b] = i[j];
        }
#pragma unroll
        for (int a = 0; a < RI; ++a) {
            int row = q0 + ti + a * TI;
            float kept = weigh_row(score[a], m_i[a], l_i[a], row, kv0, F[min(row, S - 1)], F_j, i_j,
                                   scale);
#pragma unroll
            for (int c = 0; c < RC; ++c) sum[a][c] *= kept;
        }
    });
#pragma unroll
    for (int a = 0; a < RI; ++a) {
        int row = q0 + ti + a * TI;
        // ANCHOR: normalise
        float l = warp_reduce<TJ>(l_i[a], Add{}), least = expf(-m_i[a]), n_i = max(fabsf(l), least);
#pragma unroll
        for (int c = 0; c < RC; ++c) sum[a][c] /= n_i + eps;  // infinite: h is 0
        // ANCHOR_END: normalise
#pragma unroll
        for (int c = 0; c < RC; c += 4) H.template store<true>(&sum[a][c], row, 4 * tj + c * TJ);
        if (tj == 0 && row < S) {
            m[row] = m_i[a], n[row] = n_i;
            side[row] = fabsf(l) > least ? copysignf(1.0f, l) : 0.0f;
        }
    }
}

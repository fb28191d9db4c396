// The vLSTM's forward pass, a tile of Q a block, with a running maximum:
//
//   D_ij = F_i - F_j + i_j              for j <= i, -∞ otherwise
//   m_i  = max_j D_ij                   C̃_ij = scale (q_i · k_j) exp(D_ij - m_i)
//   n_i  = max(|Σ_j C̃_ij|, exp(-m_i))   h_i  = Σ_j C̃_ij v_j / (n_i + eps)
//
// Work split: a block owns TQ rows of Q, from q0, of one head, and the same rows of h, m and n. It
// takes K and V one tile of TKV = TQ rows, from kv0, after the other, from the diagonal BACK to the
// first: so the gates between a tile and the block's rows are a sum that only grows. A row's m is
// that of the tiles so far. Where a tile raises it, what the row has gathered shrinks by
// exp(m_before - m), and the row stays what it would be had m been known.
//
// What of a product is a thread's own, and how tiles lie in shared memory: lab/products.cuh. The 16
// lanes of a row agree on its m; each has its own part of Σ_j C̃_ij, to the end. The gates' sums are
// the first warp's, from f alone, anew for each tile.
//
// Q, K: heads x S x dhqk, V, h: heads x S x dhhv, i, f, m, n: heads x S, row-major; dhqk and dhhv
// multiples of 8. A grid of heads tiles blocks, where tiles = ceil(S / TQ).
#include "lab/gates.cuh"
#include "lab/products.cuh"
#include "lab/reduce.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

constexpr int TI = InRows::WI, TJ = InRows::WJ;  // rows and columns of threads

// The maximum of nothing. Were it -∞, exp(D - m) of a tile whose i are all -∞ would be NaN.
constexpr float LOWEST = -3.402823466e38f;

// Of the rows of a tile of K: F of the row before q0 less F_j, and i_j.
template <int TKV> struct Gates {
    float2 sum[TKV];
    float input[TKV];
};

// ANCHOR: gates
// The gates of the rows from kv0 on. `after` is the sum of those between the tile and q0, and
// includes the tile's own on return. One warp.
template <int TKV>
__device__ __forceinline__ void load_gates(Gates<TKV>& gates, const float* i, const float* f,
                                           int kv0, int q0, int S, double& after) {
    double sum[TKV / 32];
    double total = sum_gates<TKV>(sum, f, kv0, S);
    if (kv0 < q0) after += total;  // on the diagonal the sums begin at q0
#pragma unroll
    for (int n = 0; n < TKV / 32; ++n) {
        int row = 32 * n + threadIdx.x % 32;
        gates.sum[row] = two_floats(after - sum[n]);
        gates.input[row] = kv0 + row < S ? i[kv0 + row] : 0;
    }
}
// ANCHOR_END: gates

// ANCHOR: equations
// D_ij
__device__ __forceinline__ float exponent(float2 f_i, float2 f_j, float i_j, bool later) {
    return later ? lowest<float>() : sum_of(f_i, f_j) + i_j;
}

// C̃_ij: not 0 · NaN, where K's row is a later one
__device__ __forceinline__ float weighed(float score, float exponent, float m, bool later) {
    return later ? 0 : score * expf(exponent - m);
}

// n_i
__device__ __forceinline__ float normaliser(float l, float m) { return fmaxf(fabsf(l), expf(-m)); }
// ANCHOR_END: equations

// With the gates of a tile's rows, and a sum of gates for each row of Q.
template <class, int TQ, int TKV, int DH>
constexpr int vlstm_fw_shared = TILES_BYTES<TQ, TKV, DH> + sizeof(Gates<TKV>) + TQ * sizeof(float2);

template <class T, int TQ, int TKV, int DH>
__global__ void __launch_bounds__(InRows::THREADS)
    vlstm_fw(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
             const float* __restrict__ i_gate, const float* __restrict__ f_gate, T* __restrict__ h,
             float* __restrict__ m_out, float* __restrict__ n_out, int tiles, int S, int dhqk,
             int dhhv, float scale, float eps) {
    static_assert(TQ == TKV, "a block's first tile lies on the diagonal: make TQ and TKV equal");
    static_assert(vlstm_fw_shared<T, TQ, TKV, DH> <= MOST_SHARED,
                  "an RTX 4060 has 99 KB of shared memory for a block: lower TQ and TKV");
    constexpr int RI = TQ / TI, RJ = TKV / TJ, RC = DH / TJ, PACK = 16 / sizeof(T);
    DYNAMIC_SHARED(float, memory);
    auto q_tile = reinterpret_cast<float(*)[ROW<DH>]>(memory);
    auto kv_tile = q_tile + TQ;
    auto scores = reinterpret_cast<float(*)[SCORES_ROW<TKV>]>(kv_tile + TKV);
    auto& gates = *reinterpret_cast<Gates<TKV>*>(scores + TQ);
    auto of_rows = reinterpret_cast<float2*>(&gates + 1);  // F_i less F of the row before q0
    long long head = blockIdx.x / tiles;
    int q0 = (tiles - 1 - blockIdx.x % tiles) * TQ, ti = threadIdx.x / TJ, tj = threadIdx.x % TJ;
    Matrix<const T> Q{q + head * S * dhqk, S, dhqk}, K{k + head * S * dhqk, S, dhqk};
    Matrix<const T> V{v + head * S * dhhv, S, dhhv};
    Matrix<T> H{h + head * S * dhhv, S, dhhv};

    float sum[RI][RC] = {}, l[RI] = {}, m[RI];
    for (int i = 0; i < RI; ++i) m[i] = LOWEST;
    double after = 0;
    load_tile<TQ, DH, PACK>(q_tile, Q, q0);
    for (int kv0 = q0; kv0 >= 0; kv0 -= TKV) {
        float score[RI][RJ] = {};
        if (threadIdx.x < 32)
            load_gates(gates, i_gate + head * S, f_gate + head * S, kv0, q0, S, after);
        load_tile<TKV, DH, PACK>(kv_tile, K, kv0);
        __syncthreads();  // a thread reads rows of Q and K, and gates, that others have stored
        if (kv0 == q0 && threadIdx.x < TQ)
            of_rows[threadIdx.x] = negative(gates.sum[threadIdx.x]);
        rows_times_rows<InRows>(score, q_tile, kv_tile, dhqk);
        __syncthreads();  // K is read: V may overwrite it; a thread reads the rows' sums of others
        // ANCHOR: online
#pragma unroll
        for (int i = 0; i < RI; ++i) {
            int row = ti + i * TI;
            float d[RJ], before = m[i];
#pragma unroll
            for (int j = 0; j < RJ; ++j) {
                int column = tj + j * TJ;
                d[j] = exponent(of_rows[row], gates.sum[column], gates.input[column],
                                kv0 + column > q0 + row);
                m[i] = fmaxf(m[i], d[j]);
            }
            m[i] = warp_reduce<TJ>(m[i], Max());
            float kept = expf(before - m[i]);
            l[i] *= kept;
#pragma unroll
            for (int c = 0; c < RC; ++c) sum[i][c] *= kept;
#pragma unroll
            for (int j = 0; j < RJ; ++j) {
                int column = tj + j * TJ;
                float c_ij = weighed(scale * score[i][j], d[j], m[i], kv0 + column > q0 + row);
                l[i] += c_ij;
                scores[row][column] = c_ij;
            }
        }
        // ANCHOR_END: online
        load_tile<TKV, DH, PACK>(kv_tile, V, kv0);
        __syncthreads();  // a thread reads scores and rows of V that others have stored
        scores_times_rows<InRows, TKV>(sum, scores, kv_tile);
        __syncthreads();  // V, scores and gates are read: the next ones may overwrite them
    }
    // ANCHOR: end
#pragma unroll
    for (int i = 0; i < RI; ++i) {
        int row = q0 + ti + i * TI;
        float n = normaliser(warp_reduce<TJ>(l[i], Add()), m[i]);
#pragma unroll
        for (int c = 0; c < RC; ++c) sum[i][c] /= n + eps;
#pragma unroll
        for (int c = 0; c < RC; c += 4) H.template store<true>(&sum[i][c], row, 4 * tj + c * TJ);
        if (tj == 0 && row < S) {
            m_out[head * S + row] = m[i];
            n_out[head * S + row] = n;
        }
    }
    // ANCHOR_END: end
}

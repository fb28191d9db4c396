// h = (Q K^T / √DHQK ⊙ causal) V, a tile of Q a block:
//
//   C̃_ij = scale Σ_c Q_ic K_jc  for j <= i, 0 otherwise        h_ic = Σ_{kv0 <= q0} Σ_j C̃_ij V_jc
//
// Work split: a block owns TQ rows of Q, from q0, of one head, and the same rows of h. It takes K
// and V one tile of TKV rows, from kv0, after the other, up to its own rows and no further. TKV is
// TQ: the last tile lies on the diagonal, and only there are scores that do not count. Blocks of a
// head come longest first: the block of the last rows, with all tiles of K and V, is the first.
//
// What of a product is a thread's own, and how tiles lie in shared memory: lab/products.cuh. K and
// V take turns in one array. Device memory is read 16 bytes at a time: dhqk and dhhv are multiples
// of 8.
//
// Q, K: heads x S x dhqk, V, h: heads x S x dhhv, row-major. A grid of heads tiles blocks, where
// tiles = ceil(S / TQ).
#include "lab/products.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

constexpr int TI = InRows::WI, TJ = InRows::WJ;  // rows and columns of threads

// ANCHOR: mask
// C̃_ij: nothing comes from a later position. Past the end of S all are later.
__device__ __forceinline__ float causal(float score, int i, int j) { return j <= i ? score : 0; }
// ANCHOR_END: mask

template <class, int TQ, int TKV, int DH>
constexpr int causal_qkv_shared = TILES_BYTES<TQ, TKV, DH>;

template <class T, int TQ, int TKV, int DH>
__global__ void __launch_bounds__(InRows::THREADS)
    causal_qkv(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
               T* __restrict__ h, int tiles, int S, int dhqk, int dhhv, float scale) {
    static_assert(TQ == TKV, "the last tile of a block lies on the diagonal: make TQ and TKV equal");
    static_assert(TILES_BYTES<TQ, TKV, DH> <= MOST_SHARED,
                  "an RTX 4060 has 99 KB of shared memory for a block: lower TQ and TKV");
    constexpr int RI = TQ / TI, RJ = TKV / TJ, RC = DH / TJ, PACK = 16 / sizeof(T);
    DYNAMIC_SHARED(float, memory);
    auto q_tile = reinterpret_cast<float(*)[ROW<DH>]>(memory);
    auto kv_tile = q_tile + TQ;
    auto scores = reinterpret_cast<float(*)[SCORES_ROW<TKV>]>(kv_tile + TKV);
    long long head = blockIdx.x / tiles;
    int q0 = (tiles - 1 - blockIdx.x % tiles) * TQ, ti = threadIdx.x / TJ, tj = threadIdx.x % TJ;
    Matrix<const T> Q{q + head * S * dhqk, S, dhqk}, K{k + head * S * dhqk, S, dhqk};
    Matrix<const T> V{v + head * S * dhhv, S, dhhv};
    Matrix<T> H{h + head * S * dhhv, S, dhhv};

    float sum[RI][RC] = {};
    load_tile<TQ, DH, PACK>(q_tile, Q, q0);
    // ANCHOR: tiles
    for (int kv0 = 0; kv0 <= q0; kv0 += TKV) {
        float score[RI][RJ] = {};
        load_tile<TKV, DH, PACK>(kv_tile, K, kv0);
        __syncthreads();  // a thread reads rows of Q and K that others have stored
        rows_times_rows<InRows>(score, q_tile, kv_tile, dhqk);
#pragma unroll
        for (int i = 0; i < RI; ++i)
#pragma unroll
            for (int j = 0; j < RJ; ++j)
                scores[ti + i * TI][tj + j * TJ] =
                    causal(scale * score[i][j], q0 + ti + i * TI, kv0 + tj + j * TJ);
        __syncthreads();  // K is read: V may overwrite it
        load_tile<TKV, DH, PACK>(kv_tile, V, kv0);
        __syncthreads();  // a thread reads scores and rows of V that others have stored
        scores_times_rows<InRows, TKV>(sum, scores, kv_tile);
        __syncthreads();  // V and the scores are read: the next ones may overwrite them
    }
    // ANCHOR_END: tiles
#pragma unroll
    for (int i = 0; i < RI; ++i)
#pragma unroll
        for (int c = 0; c < RC; c += 4)
            H.template store<true>(&sum[i][c], q0 + ti + i * TI, 4 * tj + c * TJ);
}

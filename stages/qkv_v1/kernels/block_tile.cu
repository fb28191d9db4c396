// O = (Q K^T / √DHQK) V, a tile of Q a block:
//
//   S_ij = scale Σ_c Q_ic K_jc        O_ic = Σ_kv0 Σ_j S_ij V_jc
//
// Work split: a block owns TQ rows of Q, from q0, of one head, and the same rows of O. It takes K
// and V one tile of TKV rows, from kv0, after the other: the scores of a tile, TQ x TKV, go to
// shared memory; then each thread adds the tile's share to its outputs, in registers to the end.
//
// What of a product is a thread's own, and how tiles lie in shared memory: lab/products.cuh. K and V
// take turns in one array. Device memory is read in packs of PACK elements, 16 bytes; dhqk and dhhv
// must be multiples of it. What is not takes PACK = 1.
//
// Q, K: heads x S x dhqk, V, O: heads x S x dhhv, row-major. A grid of heads tiles blocks, where
// tiles = ceil(S / TQ).
#include "lab/products.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

constexpr int TI = InRows::WI, TJ = InRows::WJ;  // rows and columns of threads

template <class, int TQ, int TKV, int DH, int>
constexpr int qkv_block_tile_shared = TILES_BYTES<TQ, TKV, DH>;

template <class T, int TQ, int TKV, int DH, int PACK>
__global__ void __launch_bounds__(InRows::THREADS)
    qkv_block_tile(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                   T* __restrict__ o, int tiles, int S, int dhqk, int dhhv, float scale) {
    static_assert(TQ % TI == 0 && TKV % TJ == 0, "threads share the scores: TQ in 8s, TKV in 16s");
    static_assert(DH % (4 * TJ) == 0, "a thread has fours of outputs: DH must be a multiple of 64");
    static_assert(TILES_BYTES<TQ, TKV, DH> <= MOST_SHARED,
                  "an RTX 4060 has 99 KB of shared memory for a block: lower TQ or TKV");
    constexpr int RI = TQ / TI, RJ = TKV / TJ, RC = DH / TJ;  // a thread's rows and columns
    DYNAMIC_SHARED(float, memory);
    auto q_tile = reinterpret_cast<float(*)[ROW<DH>]>(memory);
    auto kv_tile = q_tile + TQ;
    auto scores = reinterpret_cast<float(*)[SCORES_ROW<TKV>]>(kv_tile + TKV);
    long long head = blockIdx.x / tiles;
    int q0 = blockIdx.x % tiles * TQ, ti = threadIdx.x / TJ, tj = threadIdx.x % TJ;
    Matrix<const T> Q{q + head * S * dhqk, S, dhqk}, K{k + head * S * dhqk, S, dhqk};
    Matrix<const T> V{v + head * S * dhhv, S, dhhv};
    Matrix<T> O{o + head * S * dhhv, S, dhhv};

    float sum[RI][RC] = {};
    load_tile<TQ, DH, PACK>(q_tile, Q, q0);
    for (int kv0 = 0; kv0 < S; kv0 += TKV) {
        float score[RI][RJ] = {};
        load_tile<TKV, DH, PACK>(kv_tile, K, kv0);
        __syncthreads();  // a thread reads rows of Q and K that others have stored
        rows_times_rows<InRows>(score, q_tile, kv_tile, dhqk);
#pragma unroll
        for (int i = 0; i < RI; ++i)
#pragma unroll
            for (int j = 0; j < RJ; ++j)  // past the end of S: not 0 · ∞, which is NaN
                scores[ti + i * TI][tj + j * TJ] = kv0 + tj + j * TJ < S ? scale * score[i][j] : 0;
        __syncthreads();  // K is read: V may overwrite it
        load_tile<TKV, DH, PACK>(kv_tile, V, kv0);
        __syncthreads();  // a thread reads scores and rows of V that others have stored
        scores_times_rows<InRows, TKV>(sum, scores, kv_tile);
        __syncthreads();  // V and the scores are read: the next ones may overwrite them
    }
#pragma unroll
    for (int i = 0; i < RI; ++i)
#pragma unroll
        for (int c = 0; c < RC; c += 4)
            O.template store<PACK != 1>(&sum[i][c], q0 + ti + i * TI, 4 * tj + c * TJ);
}

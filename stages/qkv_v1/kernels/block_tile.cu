// O = (Q K^T / √DHQK) V, a tile of Q a block:
//
//   S_ij = scale Σ_c Q_ic K_jc        O_ic = Σ_kv0 Σ_j S_ij V_jc
//
// Work split: a block owns TQ rows of Q, from q0, of one head, and the same rows of O. It takes K
// and V one tile of TKV rows, from kv0, after the other: the scores of a tile, TQ x TKV, go to
// shared memory; then each thread adds the tile's share to its outputs, in registers to the end.
//
// THREADS lie in TI rows and TJ columns. Of both products a thread has the rows ti, ti + TI, …; of
// the scores the columns tj, tj + TJ, …; of the outputs fours of columns, 4 tj, 4 tj + 4 TJ, ….
// All its loads from shared memory are 16 bytes: of Q, K and the scores four neighbours along the
// sum, of V four neighbours of O.
//
// Tiles are rows of DH floats, filled up with zeros past the end of S, dhqk or dhhv. K and V
// take turns in one array. Device memory is read in packs of PACK elements, 16 bytes; dhqk and dhhv
// must be multiples of it. What is not takes PACK = 1.
//
// Q, K: heads x S x dhqk, V, O: heads x S x dhhv, row-major. A grid of heads tiles blocks, where
// tiles = ceil(S / TQ).
#include "lab/shared.cuh"
#include "lab/tile.cuh"

// ANCHOR: layout
constexpr int THREADS = 128, TI = 8, TJ = THREADS / TI;

// Rows of a tile lie four banks apart, so that eight lanes with 16 bytes of a row each touch every
// bank once; rows of scores 16 apart, so that two half warps that store a row each do.
template <int DH> constexpr int ROW = DH + 4;
template <int TKV> constexpr int SCORES_ROW = TKV + 16;
// ANCHOR_END: layout

// ROWS rows from r0 on.
template <int ROWS, int DH, int PACK, class T>
__device__ __forceinline__ void load_tile(float (*tile)[ROW<DH>], Matrix<const T> from, int r0) {
    static_assert(ROWS * DH % (THREADS * PACK) == 0,
                  "each thread loads equally many packs: change TQ, TKV or DH");
    [[maybe_unused]] constexpr int AHEAD = PACK == 8 ? 2 : 4;  // packs on their way at once
#pragma unroll AHEAD
    for (int n = 0; n < ROWS * DH / (THREADS * PACK); ++n) {
        int e = (n * THREADS + threadIdx.x) * PACK;
        float pack[PACK];
        from.template load<PACK>(pack, r0 + e / DH, e % DH);
        store_cells(&tile[e / DH][e % DH], pack);
    }
}

template <class T, int TQ, int TKV, int DH, int PACK>
__global__ void __launch_bounds__(THREADS)
    qkv_block_tile(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                   T* __restrict__ o, int tiles, int S, int dhqk, int dhhv, float scale) {
    static_assert(TQ % TI == 0 && TKV % TJ == 0, "threads share the scores: TQ in 8s, TKV in 16s");
    static_assert(DH % (4 * TJ) == 0, "a thread has fours of outputs: DH must be a multiple of 64");
    static_assert(((TQ + TKV) * ROW<DH> + TQ * SCORES_ROW<TKV>) * 4 <= 99 * 1024,
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
        // ANCHOR: scores
#pragma unroll 2
        for (int c = 0; c < dhqk; c += 4) {
            float q_i[RI][4], k_j[RJ][4];
#pragma unroll
            for (int i = 0; i < RI; ++i) load_fours(q_i[i], &q_tile[ti + i * TI][c], 0);
#pragma unroll
            for (int j = 0; j < RJ; ++j) load_fours(k_j[j], &kv_tile[tj + j * TJ][c], 0);
#pragma unroll
            for (int i = 0; i < RI; ++i)
#pragma unroll
                for (int j = 0; j < RJ; ++j)
#pragma unroll
                    for (int p = 0; p < 4; ++p) score[i][j] += q_i[i][p] * k_j[j][p];
        }
        // ANCHOR_END: scores
#pragma unroll
        for (int i = 0; i < RI; ++i)
#pragma unroll
            for (int j = 0; j < RJ; ++j)  // past the end of S: not 0 · ∞, which is NaN
                scores[ti + i * TI][tj + j * TJ] = kv0 + tj + j * TJ < S ? scale * score[i][j] : 0;
        __syncthreads();  // K is read: V may overwrite it
        load_tile<TKV, DH, PACK>(kv_tile, V, kv0);
        __syncthreads();  // a thread reads scores and rows of V that others have stored
        // ANCHOR: outputs
        for (int j = 0; j < TKV; j += 4) {
            float s_i[RI][4];
#pragma unroll
            for (int i = 0; i < RI; ++i) load_fours(s_i[i], &scores[ti + i * TI][j], 0);
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                float v_j[RC];
                load_fours(v_j, &kv_tile[j + p][4 * tj], 4 * TJ);
#pragma unroll
                for (int i = 0; i < RI; ++i)
#pragma unroll
                    for (int c = 0; c < RC; ++c) sum[i][c] += s_i[i][p] * v_j[c];
            }
        }
        // ANCHOR_END: outputs
        __syncthreads();  // V and the scores are read: the next ones may overwrite them
    }
#pragma unroll
    for (int i = 0; i < RI; ++i)
#pragma unroll
        for (int c = 0; c < RC; c += 4)
            O.template store<PACK != 1>(&sum[i][c], q0 + ti + i * TI, 4 * tj + c * TJ);
}

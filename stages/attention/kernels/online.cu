// Softmax attention, a tile of Q a block, without a score in memory. Over tiles of K and V a row keeps the largest score
// so far, t, the sum of exponentials below it, and o times that sum; where the largest grows, what was gathered shrinks:
//
//   t' = max(t, max_j S_ij)      sum' = sum exp(t - t') + Σ_j exp(S_ij - t')      o' = o exp(t - t') + Σ_j exp(S_ij - t') v_j
//
// and at the end o / sum, and lse = t + log(sum). (Milakov and Gimelshein 2018, arXiv 1805.02867; FlashAttention,
// arXiv 2205.14135, algorithm 1.) Exponentials are powers of two, of scores that are scaled by log2(e), too.
//
// Work split: as in vlstm_fw_v0. A block owns TQ rows of Q, from q0, of one head; K and V come in tiles of TKV rows, of
// the head that `group` heads share, up to the diagonal where it is causal. The threads of a row agree on t.
//
// q, o: heads x S x D, k, v: heads / group x S x D, lse: heads x S. A grid of heads tiles blocks.
#include "lab/gates.cuh"
#include "lab/products.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

constexpr int TI = InRows::WI, TJ = InRows::WJ;  // rows and columns of threads

template <class, int TQ, int TKV, int DH> constexpr int attention_online_shared = TILES_BYTES<TQ, TKV, DH>;

template <class T, int TQ, int TKV, int DH>
__global__ void __launch_bounds__(InRows::THREADS)
    attention_online(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ o,
                     float* __restrict__ lse, int tiles, int group, int S, int D, float log2_scale, bool causal) {
    static_assert(TQ == TKV, "the last tile of a block lies on the diagonal: make TQ and TKV equal");
    static_assert(TILES_BYTES<TQ, TKV, DH> <= MOST_SHARED,
                  "an RTX 4060 has 99 KB of shared memory for a block: lower TQ and TKV");
    constexpr int RI = TQ / TI, RJ = TKV / TJ, RC = DH / TJ, PACK = 16 / sizeof(T);
    DYNAMIC_SHARED(float, memory);
    auto q_tile = reinterpret_cast<float(*)[ROW<DH>]>(memory);
    auto kv_tile = q_tile + TQ;
    auto weights = reinterpret_cast<float(*)[SCORES_ROW<TKV>]>(kv_tile + TKV);
    long long head = blockIdx.x / tiles, shared_head = head / group;
    int q0 = (tiles - 1 - blockIdx.x % tiles) * TQ, ti = threadIdx.x / TJ, tj = threadIdx.x % TJ;
    Matrix<const T> Q{q + head * S * D, S, D}, K{k + shared_head * S * D, S, D}, V{v + shared_head * S * D, S, D};
    Matrix<T> O{o + head * S * D, S, D};

    float out[RI][RC] = {}, sum[RI] = {}, top[RI];
#pragma unroll
    for (int i = 0; i < RI; ++i) top[i] = lowest<float>();
    load_tile<TQ, DH, PACK>(q_tile, Q, q0);
    for (int kv0 = 0; kv0 < (causal ? q0 + TQ : S); kv0 += TKV) {
        float score[RI][RJ] = {};
        load_tile<TKV, DH, PACK>(kv_tile, K, kv0);
        __syncthreads();  // a thread reads rows of Q and K that others have stored
        rows_times_rows<InRows>(score, q_tile, kv_tile, D);
        // ANCHOR: online
#pragma unroll
        for (int i = 0; i < RI; ++i) {
            int last = causal ? q0 + ti + i * TI : S - 1;  // j <= last count; the first tile has one of them
            float most = top[i], own = 0;
#pragma unroll
            for (int j = 0; j < RJ; ++j) {
                score[i][j] = kv0 + tj + j * TJ <= last ? score[i][j] * log2_scale : lowest<float>();
                most = max(most, score[i][j]);
            }
            most = InRows::over_row(most, Max{});
            float shrinks = power_of_two(top[i] - most);
#pragma unroll
            for (int j = 0; j < RJ; ++j) {
                float weight = power_of_two(score[i][j] - most);
                weights[ti + i * TI][tj + j * TJ] = weight;
                own += weight;
            }
            top[i] = most, sum[i] = sum[i] * shrinks + own;
#pragma unroll
            for (int c = 0; c < RC; ++c) out[i][c] *= shrinks;
        }
        // ANCHOR_END: online
        __syncthreads();  // K is read: V may overwrite it
        load_tile<TKV, DH, PACK>(kv_tile, V, kv0);
        __syncthreads();  // a thread reads weights and rows of V that others have stored
        scores_times_rows<InRows, TKV>(out, weights, kv_tile);
        __syncthreads();  // V and the weights are read: the next ones may overwrite them
    }
#pragma unroll
    for (int i = 0; i < RI; ++i) {
        int row = q0 + ti + i * TI;
        float all = InRows::over_row(sum[i], Add{});
        if (tj == 0 && row < S) lse[head * S + row] = (top[i] + log2f(all)) * LN2;
#pragma unroll
        for (int c = 0; c < RC; ++c) out[i][c] /= all;
#pragma unroll
        for (int c = 0; c < RC; c += 4) O.template store<true>(&out[i][c], row, 4 * tj + c * TJ);
    }
}

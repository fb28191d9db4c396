// O = (Q K^T / √DHQK) V, the whole grid on one Q tile at a time. WRONG ON PURPOSE.
//
//   S_ij = scale Σ_c Q_ic K_jc        O_ic = Σ_j S_ij V_jc
//
// Work split: for each tile of TQ rows of Q, and for each tile of TKV rows of K and V, all threads
// of the grid load the tiles together, compute the scores together, and the outputs together. Each
// output is one thread's from the first tile of K and V to the last, in a register.
//
// It is the kernel of one block, with two words changed: threadIdx.x has become the thread's rank
// in the grid, and __syncthreads() the grid's sync. One word could not be changed: __shared__. With
// one block all is well. With several, a block loads some elements of a tile and reads all of them.
//
// Q, K: heads x S x dhqk, V, O: heads x S x dhhv, row-major.
#include <cooperative_groups.h>

#include "lab/tile.cuh"

using namespace lab;

template <class T, int TQ, int TKV, int DH, int THREADS>
__global__ void __launch_bounds__(THREADS)
    qkv_grid_tile(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                  T* __restrict__ o, int heads, int S, int dhqk, int dhhv, float scale) {
    static_assert(TQ * DH % THREADS == 0, "threads have equally many outputs: change TQ");
    // ANCHOR: tiles
    // Meant for the grid; but each block has its own.
    __shared__ float q_tile[TQ][DH], k_tile[TKV][DH], v_tile[TKV][DH], scores[TQ][TKV];
    auto grid = cooperative_groups::this_grid();
    int rank = blockIdx.x * THREADS + threadIdx.x, threads = gridDim.x * THREADS;
    // ANCHOR_END: tiles

    for (int head = 0; head < heads; ++head) {
        Matrix<const T> Q{q + head * 1ll * S * dhqk, S, dhqk};
        Matrix<const T> K{k + head * 1ll * S * dhqk, S, dhqk};
        Matrix<const T> V{v + head * 1ll * S * dhhv, S, dhhv};
        Matrix<T> O{o + head * 1ll * S * dhhv, S, dhhv};
        for (int q0 = 0; q0 < S; q0 += TQ) {
            constexpr int OWN = TQ * DH / THREADS;  // outputs a thread, with one block
            float sum[OWN] = {};
            // ANCHOR: load
            for (int e = rank; e < TQ * dhqk; e += threads)
                q_tile[e / dhqk][e % dhqk] = Q.cell(q0 + e / dhqk, e % dhqk);
            // ANCHOR_END: load
            for (int kv0 = 0; kv0 < S; kv0 += TKV) {
                for (int e = rank; e < TKV * dhqk; e += threads)
                    k_tile[e / dhqk][e % dhqk] = K.cell(kv0 + e / dhqk, e % dhqk);
                for (int e = rank; e < TKV * dhhv; e += threads)
                    v_tile[e / dhhv][e % dhhv] = V.cell(kv0 + e / dhhv, e % dhhv);
                grid.sync();  // a thread reads what others have stored
                // ANCHOR: products
                for (int e = rank; e < TQ * TKV; e += threads) {
                    int i = e / TKV, j = e % TKV;
                    float s = 0;
                    for (int c = 0; c < dhqk; ++c) s += q_tile[i][c] * k_tile[j][c];
                    scores[i][j] = scale * s;
                }
                grid.sync();  // a thread reads scores that others have stored
#pragma unroll
                for (int n = 0; n < OWN; ++n) {
                    int e = rank + n * threads, i = e / dhhv, c = e % dhhv;
                    if (i >= TQ) break;
                    for (int j = 0; j < TKV; ++j) sum[n] += scores[i][j] * v_tile[j][c];
                }
                // ANCHOR_END: products
                grid.sync();  // tiles and scores are read: the next ones may overwrite them
            }
#pragma unroll
            for (int n = 0; n < OWN; ++n) {
                int e = rank + n * threads, i = e / dhhv, c = e % dhhv;
                if (i < TQ && O.inside(q0 + i, c)) *O.at(q0 + i, c) = from_math<T>(sum[n]);
            }
        }
    }
}

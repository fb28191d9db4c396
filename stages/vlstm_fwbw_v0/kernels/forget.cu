// The gradient of the forget gates, from the dots that the backward pass has left:
//
//   dF_t = q_t · dq_t − k_t · dk_t        df_t = sigmoid(−f_t) Σ_{τ >= t} dF_τ
//
// The sum takes large numbers from each other, and is kept in f64. All of them add up to zero: the
// first forget gate has nothing to forget. What rounding leaves of that zero is not written.
//
// Work split: a block owns a head, and goes through it from its end, TILE positions at a time, a
// thread for each; the last thread has the first of them.
//
// All tensors are heads x S; di is k · dk. A grid of heads blocks.
#include "lab/gates.cuh"
#include "scan.cuh"

using namespace lab;

// ANCHOR: kernel
template <int TILE>
__global__ void __launch_bounds__(TILE)
    vlstm_forget(const float* __restrict__ f, const float* __restrict__ q_dq,
                 const float* __restrict__ di, float* __restrict__ df, int tiles, int S) {
    long long head = blockIdx.x;
    f += head * S, q_dq += head * S, di += head * S, df += head * S;
    double later = 0;
    for (int tile = tiles - 1; tile >= 0; --tile) {
        int t = tile * TILE + TILE - 1 - threadIdx.x;
        double sum, dF = t < S ? static_cast<double>(q_dq[t]) - di[t] : 0.0;
        double from_t = later + block_scan<TILE>(dF, sum);
        later += sum;
        if (t == 0) from_t = 0;
        if (t < S) df[t] = gradient_of_kept(f[t], static_cast<float>(from_t));
    }
}
// ANCHOR_END: kernel

// What a chunk's keys, queries, gates and beta alone decide, for all columns of V and before any state is known:
//
//   A = tril(diag(beta) (K Kᵀ ⊙ E), -1)      inverse = (I + A)⁻¹      pairs = s tril(Q Kᵀ ⊙ E)
//
// (I + A) X = I is solved from the first row to the last: X_i = e_i - Σ_{m<i} A_im X_m. Never by powers of A: where keys are
// alike they grow before they vanish, and cancel.
//
// Work split: a block has a chunk of a head. For the products a thread has 4 x 4 pairs, and 16 columns of Q and K lie in shared
// memory at a time; for the inverse a thread has a column, and needs nobody else's.
//
// q, k: heads / group x S x dhqk, g, beta: heads x S; inverse, pairs: heads x chunks x CHUNK x CHUNK, decays: heads x chunks. A
// grid of heads chunks blocks.
#include "lab/gdn/decays.cuh"

using namespace lab;

constexpr int THREADS = 256, SIDE = 16, OWN = CHUNK / SIDE, STEP = 16, ROW = CHUNK + 1;

template <class T>
__global__ void __launch_bounds__(THREADS)
    gdn_fw_substitute(const T* __restrict__ q, const T* __restrict__ k, const float* __restrict__ g,
                      const float* __restrict__ beta, float* __restrict__ inverse, float* __restrict__ pairs,
                      Decays* __restrict__ decays, int chunks, int S, int dhqk, int group, float scale) {
    __shared__ float2 gamma[CHUNK];
    __shared__ Decays own;
    __shared__ float a[CHUNK * ROW], x[CHUNK * ROW];
    static_assert(2 * CHUNK * (STEP + 1) <= CHUNK * ROW, "Q and K lie where the inverse will");
    float *queries = x, *keys = x + CHUNK * (STEP + 1);
    long long at = blockIdx.x, head = at / chunks;
    int first = at % chunks * CHUNK, ti = threadIdx.x / SIDE, tj = threadIdx.x % SIDE;
    q += head / group * S * dhqk, k += head / group * S * dhqk, g += head * S, beta += head * S;
    if (threadIdx.x < 32) scan_gates(gamma, own, g, beta, first, S);

    // ANCHOR: products
    float qk[OWN][OWN] = {}, kk[OWN][OWN] = {};
    for (int c0 = 0; c0 < dhqk; c0 += STEP) {
        for (int e = threadIdx.x; e < CHUNK * STEP; e += THREADS) {
            int r = e / STEP, c = e % STEP, t = first + r;
            queries[r * (STEP + 1) + c] = t < S ? to_math(q[1ll * t * dhqk + c0 + c]) : 0;
            keys[r * (STEP + 1) + c] = t < S ? to_math(k[1ll * t * dhqk + c0 + c]) : 0;
        }
        __syncthreads();  // a thread reads rows that others have stored; and γ, the first time
        for (int c = 0; c < STEP; ++c)
#pragma unroll
            for (int m = 0; m < OWN; ++m)
#pragma unroll
                for (int n = 0; n < OWN; ++n) {
                    float key = keys[(tj + SIDE * n) * (STEP + 1) + c];
                    qk[m][n] += queries[(ti + SIDE * m) * (STEP + 1) + c] * key;
                    kk[m][n] += keys[(ti + SIDE * m) * (STEP + 1) + c] * key;
                }
        __syncthreads();  // they are read: the next may be stored
    }
#pragma unroll
    for (int m = 0; m < OWN; ++m)
#pragma unroll
        for (int n = 0; n < OWN; ++n) {
            int i = ti + SIDE * m, j = tj + SIDE * n;
            float kept = j <= i ? decay(gamma, i, j) : 0;
            pairs[(at * CHUNK + i) * CHUNK + j] = j <= i ? scale * qk[m][n] * kept : 0;
            a[i * ROW + j] = j < i ? own.beta[i] * kk[m][n] * kept : 0;
        }
    // ANCHOR_END: products
    __syncthreads();  // a thread reads all of A
    // ANCHOR: substitute
    if (threadIdx.x < CHUNK) {
        int j = threadIdx.x;
        for (int i = 0; i < CHUNK; ++i) {
            float sum = i == j;
            for (int m = j; m < i; ++m) sum -= a[i * ROW + m] * x[m * ROW + j];
            x[i * ROW + j] = sum;
        }
    }
    // ANCHOR_END: substitute
    __syncthreads();  // all columns are there
    for (int e = threadIdx.x; e < CHUNK * CHUNK; e += THREADS) {
        int i = e / CHUNK, j = e % CHUNK;
        inverse[at * CHUNK * CHUNK + e] = j <= i ? x[i * ROW + j] : 0;
    }
    if (threadIdx.x < CHUNK) {
        decays[at].read[threadIdx.x] = own.read[threadIdx.x];
        decays[at].write[threadIdx.x] = own.write[threadIdx.x];
        decays[at].beta[threadIdx.x] = own.beta[threadIdx.x];
    }
}

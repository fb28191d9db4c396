// As v0_simple.cu, with a state that is read once: it waits in registers until all of a column has been read.
//
// Work split: a block has a slice of a head's columns, LANES threads beside each other in a row, 16 bytes each, and every
// THREADS / LANES-th row. All its loads are under way at once. What the rows sum up to meets in shared memory: Dᵀ k and Dᵀ q of
// each column, and k·q. Each thread then adds the warps' parts in the same order.
//
// q, k: heads / group x dhqk; v, h: heads x dhhv; g, beta: heads; C: heads x dhqk x dhhv. A grid of heads slices blocks, slices =
// ceil(dhhv / columns of a slice).
#include "lab/pack.cuh"
#include "lab/reduce.cuh"
#include "step.cuh"

using namespace lab;

constexpr int LANES = 8, THREADS = 256, WARPS = THREADS / 32, ROWS = THREADS / LANES;

// Of the lanes of a warp that have the same columns.
__device__ __forceinline__ float over_rows(float x) {
#pragma unroll
    for (int d = LANES; d < 32; d *= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

// KEYS: the most that there may be. What a thread has room for decides how many blocks a multiprocessor has.
template <class T, class State, int KEYS>
__global__ void __launch_bounds__(THREADS, KEYS > 128 ? 1 : sizeof(State) > 2 ? 4 : 3)
    gdn_step_once(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                  const float* __restrict__ g, const float* __restrict__ beta, State* C, T* __restrict__ h, int dhqk,
                  int dhhv, int group, int slices, float scale) {
    constexpr int N = Pack<State>::N, OWN = KEYS / ROWS;  // OWN: rows of a thread
    __shared__ float of_keys[WARPS][LANES][N], of_queries[WARPS][LANES][N], k_q[WARPS];
    int lane = threadIdx.x % LANES, row = threadIdx.x / LANES, warp = threadIdx.x / 32;
    int c = (blockIdx.x % slices * LANES + lane) * N;
    long long head = blockIdx.x / slices;
    q += head / group * dhqk, k += head / group * dhqk;
    v += head * dhhv, h += head * dhhv, C += head * dhqk * dhhv + c;
    bool inside = c < dhhv;

    // ANCHOR: read
    Raw<State> raw[OWN];
#pragma unroll
    for (int n = 0; n < OWN; ++n) {
        int r = row + n * ROWS;
        if (inside && r < dhqk) raw[n] = load_raw(C + r * dhhv);
    }
    float kept = expf(g[head]), key[OWN], of_k[N] = {}, of_q[N] = {}, product = 0;
#pragma unroll
    for (int n = 0; n < OWN; ++n) {
        int r = row + n * ROWS;
        key[n] = r < dhqk ? to_math(k[r]) : 0;
        float query = r < dhqk ? to_math(q[r]) : 0;
        product += key[n] * query;
        if (!inside || r >= dhqk) continue;
        Pack<State> state = in_math(raw[n]);
#pragma unroll
        for (int e = 0; e < N; ++e) {
            float d = keep(kept, state.v[e]);
            of_k[e] += key[n] * d, of_q[e] += query * d;
        }
    }
    // ANCHOR_END: read
    product = over_rows(product);
#pragma unroll
    for (int e = 0; e < N; ++e) {
        of_k[e] = over_rows(of_k[e]), of_q[e] = over_rows(of_q[e]);
        if (threadIdx.x % 32 < LANES) of_keys[warp][lane][e] = of_k[e], of_queries[warp][lane][e] = of_q[e];
    }
    if (threadIdx.x % 32 == 0) k_q[warp] = product;
    __syncthreads();  // the sums of all warps are there
    if (!inside) return;
    // ANCHOR: write
    float written[N], out[N], all = 0;
#pragma unroll
    for (int e = 0; e < N; ++e) written[e] = out[e] = 0;
    for (int w = 0; w < WARPS; ++w) {
        all += k_q[w];
#pragma unroll
        for (int e = 0; e < N; ++e) written[e] += of_keys[w][lane][e], out[e] += of_queries[w][lane][e];
    }
#pragma unroll
    for (int e = 0; e < N; ++e) {
        written[e] = beta[head] * (to_math(v[c + e]) - written[e]);
        if (row == 0) h[c + e] = from_math<T>(scale * (out[e] + all * written[e]));
    }
#pragma unroll
    for (int n = 0; n < OWN; ++n) {
        int r = row + n * ROWS;
        if (r >= dhqk) continue;
        Pack<State> state = in_math(raw[n]);
#pragma unroll
        for (int e = 0; e < N; ++e) state.v[e] = keep(kept, state.v[e]) + key[n] * written[e];
        store_pack(C + r * dhhv, state);
    }
    // ANCHOR_END: write
}

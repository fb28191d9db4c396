// As v0_simple.cu, with 16 bytes of C in a load, and RUN loads of a thread under way at once.
//
// Work split: a block a head. A warp has an eighth of the rows, and each lane a strip of them; then the next columns,
// if there are more than 32 strips. What the warps have summed up is added in shared memory.
//
// q, k: heads x dhqk; v, h: heads x dhhv; i_gate, f_gate, m: heads; C: heads x dhqk x dhhv; n: heads x dhqk.
#include "strip.cuh"

using namespace lab;

template <class T, class State, int THREADS>
__global__ void __launch_bounds__(THREADS)
    vlstm_step_packs(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                     const float* __restrict__ i_gate, const float* __restrict__ f_gate, State* C,
                     float* n, float* m, T* __restrict__ h, int dhqk, int dhhv, float scale, float eps) {
    constexpr int N = Pack<State>::N, COLUMNS = 32 * N;
    static_assert(THREADS == 32 * GROUPS, "a warp for each group of runs");
    __shared__ Key key[MOST_KEYS];
    __shared__ float4 part[GROUPS][COLUMNS / 4];
    int thread = threadIdx.x;
    long long head = blockIdx.x;
    q += head * dhqk, k += head * dhqk, n += head * dhqk;
    v += head * dhhv, h += head * dhhv, C += head * dhqk * dhhv;
    StepWeights w(i_gate, f_gate, m, head);

    float l = 0;
    for (int r = thread; r < dhqk; r += THREADS) {
        key[r] = {scale * to_math(q[r]), w.written * to_math(k[r])};
        float after = w.keep(n[r]) + key[r].k;
        l = fmaf(key[r].q, after, l);
        n[r] = after;
    }
    l = block_reduce<THREADS>(l, Add{}, 0.0f);  // with a barrier: all keys are there, m is read
    if (thread == 0) m[head] = w.m;

    int warp = thread / 32, own_runs = runs_of_group(dhqk), first = warp * own_runs;
    int runs = min(own_runs, dhqk / RUN - first);
    for (int c0 = 0; c0 < dhhv; c0 += COLUMNS) {
        int own = thread % 32 * N, c = c0 + own;
        bool inside = c < dhhv;
        float values[N];
        Strip<State, 1> strip(C + first * RUN * dhhv + c, inside ? runs : 0, dhhv);
        load_values(values, v, c, inside);
        Sums<GROUPS, COLUMNS, N> sums(part, warp, own);
        strip.update(w, key + first * RUN, values, [&](const float (&of_run)[N]) { sums.end_run(of_run, 1); });
        sums.end();
        __syncthreads();  // the sums of all warps are there
        if (thread < COLUMNS && c0 + thread < dhhv)
            h[c0 + thread] = from_math<T>(normalised(sums.total(thread, dhqk), l, w.m, eps));
        __syncthreads();  // they are read: those of the next columns may be written
    }
}

// A position of each head: the equations are in step.cuh. C, n and m are updated where they lie.
//
// Work split: a block a head. First a thread has every THREADS-th key: its n', its part of l. Then it has
// every THREADS-th column of C, and goes down all rows: so the sum over the rows, h, is its own.
//
// q, k: heads x dhqk; v, h: heads x dhhv; i_gate, f_gate, m: heads; C: heads x dhqk x dhhv; n: heads x dhqk.
#include "lab/reduce.cuh"
#include "step.cuh"

using namespace lab;

template <class T, class State, int THREADS>
__global__ void __launch_bounds__(THREADS)
    vlstm_step_simple(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                      const float* __restrict__ i_gate, const float* __restrict__ f_gate, State* C,
                      float* n, float* m, T* __restrict__ h, int dhqk, int dhhv, float scale, float eps) {
    long long head = blockIdx.x;
    q += head * dhqk, k += head * dhqk, n += head * dhqk;
    v += head * dhhv, h += head * dhhv, C += head * dhqk * dhhv;
    StepWeights w(i_gate, f_gate, m, head);

    float l = 0;
    for (int r = threadIdx.x; r < dhqk; r += THREADS) {
        float after = w.keep(n[r]) + w.written * to_math(k[r]);
        l += to_math(q[r]) * after;
        n[r] = after;
    }
    l = scale * block_reduce<THREADS>(l, Add{}, 0.0f);
    if (threadIdx.x == 0) m[head] = w.m;  // block_reduce's barriers lie behind all reads of m

    // ANCHOR: columns
    for (int c = threadIdx.x; c < dhhv; c += THREADS) {
        float v_c = to_math(v[c]), sum = 0;
        for (int r = 0; r < dhqk; ++r) {
            State* cell = C + r * dhhv + c;
            float after = w.keep(to_math(*cell)) + w.written * to_math(k[r]) * v_c;
            *cell = from_math<State>(after);
            sum += to_math(q[r]) * after;
        }
        h[c] = from_math<T>(normalised(scale * sum, l, w.m, eps));
    }
    // ANCHOR_END: columns
}

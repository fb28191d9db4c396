// One position of the gated delta rule, behind a state that is updated where it lies:
//
//   D = exp(g) C      u = beta (v - Dᵀ k)      C' = D + k uᵀ      h = s C'ᵀ q = s (Dᵀ q + (k·q) u)
//
// Work split: a block a head, a thread every THREADS-th column of C. It goes down its column twice: it must have read all of
// it before it knows what to write.
//
// q, k: heads / group x dhqk; v, h: heads x dhhv; g, beta: heads; C: heads x dhqk x dhhv. A grid of heads blocks.
#include "step.cuh"

using namespace lab;

template <class T, class State, int THREADS>
__global__ void __launch_bounds__(THREADS)
    gdn_step_simple(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                    const float* __restrict__ g, const float* __restrict__ beta, State* C, T* __restrict__ h, int dhqk,
                    int dhhv, int group, float scale) {
    long long head = blockIdx.x;
    q += head / group * dhqk, k += head / group * dhqk;
    v += head * dhhv, h += head * dhhv, C += head * dhqk * dhhv;
    float kept = expf(g[head]), replaced = beta[head];
    // ANCHOR: columns
    for (int c = threadIdx.x; c < dhhv; c += THREADS) {
        float of_k = 0, of_q = 0, k_q = 0;
        for (int r = 0; r < dhqk; ++r) {
            float key = to_math(k[r]), query = to_math(q[r]), d = keep(kept, to_math(C[r * dhhv + c]));
            of_k += key * d, of_q += query * d, k_q += key * query;
        }
        float written = replaced * (to_math(v[c]) - of_k);
        for (int r = 0; r < dhqk; ++r) {
            State* cell = C + r * dhhv + c;
            *cell = from_math<State>(keep(kept, to_math(*cell)) + to_math(k[r]) * written);
        }
        h[c] = from_math<T>(scale * (of_q + k_q * written));
    }
    // ANCHOR_END: columns
}

// The gated delta rule, position by position:
//
//   D_t = exp(g_t) C_{t-1}      u_t = beta_t (v_t - D_tᵀ k_t)      C_t = D_t + k_t u_tᵀ      h_t = s C_tᵀ q_t
//
// Columns of C do not meet: each is a recurrence of its own, of DHQK numbers.
//
// Work split: a block has COLUMNS columns of a head's C, in registers; LANES neighbours share a column, each with every
// LANES-th key. All go from the first position to the last.
//
// q, k: heads / group x S x dhqk, v, h: heads x S x dhhv, g, beta: heads x S, C0, CN: heads x dhqk x dhhv. A grid of heads
// slices blocks, slices = ceil(dhhv / COLUMNS).
#include "lab/reduce.cuh"
#include "lab/scalar.cuh"

using namespace lab;

constexpr int THREADS = 128, LANES = 8, COLUMNS = THREADS / LANES;

template <class T, int KEY>
__global__ void __launch_bounds__(THREADS)
    gdn_fw_steps(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const float* __restrict__ g,
                 const float* __restrict__ beta, const float* __restrict__ C0, float* __restrict__ CN,
                 T* __restrict__ h, int S, int dhqk, int dhhv, int group, int slices, bool given, bool wanted,
                 float scale) {
    constexpr int KEYS = KEY / LANES;  // of a lane: lane + LANES n
    int lane = threadIdx.x % LANES, c = blockIdx.x % slices * COLUMNS + threadIdx.x / LANES;
    long long head = blockIdx.x / slices;
    q += head / group * S * dhqk, k += head / group * S * dhqk;
    v += head * S * dhhv, h += head * S * dhhv, g += head * S, beta += head * S;
    C0 += given ? head * dhqk * dhhv : 0, CN += wanted ? head * dhqk * dhhv : 0;
    bool inside = c < dhhv;

    float state[KEYS];
#pragma unroll
    for (int n = 0; n < KEYS; ++n) {
        int r = lane + LANES * n;
        state[n] = given && inside && r < dhqk ? C0[r * dhhv + c] : 0;
    }
    // ANCHOR: steps
    for (int t = 0; t < S; ++t) {
        float kept = expf(g[t]), key[KEYS], read = 0, sum = 0;
#pragma unroll
        for (int n = 0; n < KEYS; ++n) {
            int r = lane + LANES * n;
            key[n] = r < dhqk ? to_math(k[1ll * t * dhqk + r]) : 0;
            state[n] = kept == 0 ? 0 : kept * state[n];  // not 0 · ∞, where nothing is kept
            read += key[n] * state[n];
        }
        read = warp_reduce<LANES>(read, Add());
        float written = beta[t] * ((inside ? to_math(v[1ll * t * dhhv + c]) : 0) - read);
#pragma unroll
        for (int n = 0; n < KEYS; ++n) {
            int r = lane + LANES * n;
            state[n] += key[n] * written;
            sum += (r < dhqk ? to_math(q[1ll * t * dhqk + r]) : 0) * state[n];
        }
        sum = warp_reduce<LANES>(sum, Add());
        if (lane == 0 && inside) h[1ll * t * dhhv + c] = from_math<T>(scale * sum);
    }
    // ANCHOR_END: steps
    if (!wanted || !inside) return;
#pragma unroll
    for (int n = 0; n < KEYS; ++n) {
        int r = lane + LANES * n;
        if (r < dhqk) CN[r * dhhv + c] = state[n];
    }
}

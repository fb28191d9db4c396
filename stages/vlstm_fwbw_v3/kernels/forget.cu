// The forget gates' gradients, from dots of accumulators and what the walk has left between chunks:
//
//   df_t = sigmoid(-f_t) G_t       G_t = Σ_{τ >= t} (q_τ·dq_τ - di_τ)       G = <C, dC> + n·dn ahead of a chunk
//
// One sum over a sequence takes large numbers from each other: dq comes of a rounded C, di of a rounded dC, and over thousands
// of positions nothing right is left. So it is carried within a chunk, from both sides, and what the two disagree in is
// shared out evenly.
//
// Work split: a warp has a chunk, a lane L / 32 positions that follow each other.
//
// f, df, q_dq, di: heads x S, products: heads x chunks x warps.
#include "lab/gates.cuh"
#include "lab/reduce.cuh"
#include "lab/scalar.cuh"

using namespace lab;

constexpr int THREADS = 128;

// ANCHOR: kernel
template <int L>
__global__ void __launch_bounds__(THREADS)
    chunk_forget(const float* __restrict__ f, const float* __restrict__ q_dq, const float* __restrict__ di,
                 const float* __restrict__ products, float* __restrict__ df, int heads, int chunks, int warps, int S) {
    constexpr int PER_LANE = L / 32;
    long long at = (blockIdx.x * 1ll * THREADS + threadIdx.x) / 32, head = at / chunks;
    if (head >= heads) return;
    int lane = threadIdx.x % 32, c = at % chunks, r0 = c * L, t0 = r0 + lane * PER_LANE;
    // G ahead of a chunk; 0 ahead of the first and behind the last.
    auto ahead = [&](int c) {
        float sum = 0;
        if (c > 0 && c < chunks)
            for (int w = lane; w < warps; w += 32) sum += products[(head * chunks + c) * warps + w];
        return warp_reduce(sum, Add());
    };
    float before = ahead(c), behind = ahead(c + 1), own[PER_LANE];
    double sum = 0;
#pragma unroll
    for (int n = PER_LANE - 1; n >= 0; --n) {
        if (t0 + n < S) sum += q_dq[head * S + t0 + n] - di[head * S + t0 + n];
        own[n] = static_cast<float>(sum);
    }
    double later = sum;  // of all lanes from this one on
    for (int d = 1; d < 32; d *= 2) {
        double next = __shfl_down_sync(0xffffffff, later, d);
        if (lane + d < 32) later += next;
    }
    float missing = static_cast<float>(before - (behind + __shfl_sync(0xffffffff, later, 0)));
    if (!(fabsf(missing) < -lowest<float>())) missing = 0;  // ∞ or NaN of a position counts for it and those before it
    double of_next = __shfl_down_sync(0xffffffff, later, 1);  // not later - sum, which ∞ would make NaN
    float later_lanes = static_cast<float>(behind + (lane < 31 ? of_next : 0)), length = min(L, S - r0);
#pragma unroll
    for (int n = 0; n < PER_LANE; ++n) {
        int t = t0 + n;
        float G = t == 0 ? 0 : own[n] + later_lanes + missing * (1 - (t - r0) / length);
        if (t < S) df[head * S + t] = gradient_of_kept(f[head * S + t], G);
    }
}
// ANCHOR_END: kernel

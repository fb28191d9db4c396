// What the gates of a chunk of CHUNK positions come to. With γ_i = Σ_{τ <= i} g_τ from the chunk's first position on, and L
// its last,
//
//   read_i = exp(γ_i)          what is left at position i of the state before the chunk
//   write_j = exp(γ_L - γ_j)   what is left behind the chunk of what position j writes
//   E_ij = exp(γ_i - γ_j)      the same at position i, for j <= i
//
// exp(γ_L) is the last read_i. No exponent is above 0. Sums are in f64, and differences of two floats: after 60 gates of -100
// floats would lie 5e-4 apart. Past the end of the sequence all is kept, and beta is 0: nothing is written.
#pragma once
#include "lab/gates.cuh"

namespace lab {

constexpr int CHUNK = 64;

struct Decays {
    float read[CHUNK], write[CHUNK], beta[CHUNK];
};

// ANCHOR: scan
// By one warp: γ of the chunk that begins at `first`, as two floats each, and its decays.
__device__ __forceinline__ void scan_gates(float2 (&gamma)[CHUNK], Decays& to, const float* g, const float* beta,
                                           int first, int S) {
    constexpr unsigned ALL = 0xffffffff;
    int lane = threadIdx.x % 32;
    double sum[CHUNK / 32], total = 0;
#pragma unroll
    for (int n = 0; n < CHUNK / 32; ++n) {
        int t = first + 32 * n + lane;
        float own = t < S ? g[t] : 0;
        sum[n] = own < SHUT ? SHUT : own;  // -∞, too: ∞ - ∞ would be NaN
        for (int d = 1; d < 32; d *= 2) {  // after step d: of 2 d lanes up to this one
            double before = __shfl_up_sync(ALL, sum[n], d);
            if (lane >= d) sum[n] += before;
        }
        sum[n] += total;
        total = __shfl_sync(ALL, sum[n], 31);
    }
#pragma unroll
    for (int n = 0; n < CHUNK / 32; ++n) {
        int i = 32 * n + lane;
        gamma[i] = two_floats(sum[n]);
        to.read[i] = expf(static_cast<float>(sum[n]));
        to.write[i] = expf(static_cast<float>(total - sum[n]));
        to.beta[i] = first + i < S ? beta[first + i] : 0;
    }
}
// ANCHOR_END: scan

// E_ij, for j <= i.
__device__ __forceinline__ float decay(const float2 (&gamma)[CHUNK], int i, int j) {
    return expf(difference(gamma[i], gamma[j]));
}

// What is left of a number of the state: nothing where nothing is kept, even of ∞. (Within a chunk what is
// not finite meets zeros of the triangles, and is NaN behind it.)
__device__ __forceinline__ float keep(float kept, float x) { return kept == 0 ? 0.0f : kept * x; }

}  // namespace lab

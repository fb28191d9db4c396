// n and its gradient at every border between stretches, which go with the states there (normaliser.cuh):
//
//   n ← γ n + Σ_j α_j k_j                       from the first stretch on
//   dn ← γ dn + Σ_j (s β_j / N_j) ρ_j q_j       from the last one back
//
// γ, α and s β / N are those of a stretch.
//
// Work split: a block has 64 keys of a head, and one of the two. A thread weighs a position of a stretch for all; then a lane
// has two of the keys, a warp every WARPS-th position.
#include "lab/halves.cuh"
#include "lab/vlstm/weights.cuh"

using namespace lab;

// q, k [head][S][dhqk]; forward, reverse [head][chunk]: weights of stretches. saved_n, saved_dn [head][border between
// stretches][keys]; n0, dnN, dn0 [head][dhqk]: dn0 is there where a state is given.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS)
    vlstm_wide_normaliser(const T* __restrict__ q, const T* __restrict__ k, const Weights* __restrict__ forward,
                          const Weights* __restrict__ reverse, const float* __restrict__ n0,
                          const float* __restrict__ dnN, float* __restrict__ saved_n, float* __restrict__ saved_dn,
                          float* __restrict__ dn0, bool given, bool given_last, int chunks, int anchors, int keys,
                          int S, int dhqk) {
    constexpr int WARPS = THREADS / 32, AT_ONCE = 8;
    static_assert(THREADS == STRETCH, "a thread for each position of a stretch");
    __shared__ float2 of_warp[WARPS][32];
    __shared__ float weight[STRETCH];
    int slices = (dhqk + PANEL - 1) / PANEL, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int head = blockIdx.x / slices / 2, key = blockIdx.x % slices * PANEL + lane * 2;
    bool back = blockIdx.x / slices % 2 > 0, is_there = key < dhqk;
    const T* z = (back ? q : k) + 1ll * head * S * dhqk + key;
    forward += 1ll * head * chunks, reverse += 1ll * head * chunks;

    float2 n = {};
    const float* first = (back ? dnN : n0) + 1ll * head * dhqk + key;
    if (is_there && (back ? given_last : given)) n = {first[0], first[1]};
    // Nobody needs n behind the last stretch. dn before the first is dn0, where a state is given.
    for (int step = 0; step < anchors + (back && given); ++step) {
        int stretch = back ? anchors - step : step, begin = stretch * STRETCH, count = min(STRETCH, S - begin);
        int own = threadIdx.x, chunk = (begin + own) / CHUNK, at = own % CHUNK;
        if (own < count) weight[own] = back ? forward[chunk].beta[at] * forward[chunk].rho[at] : reverse[chunk].beta[at];
        __syncthreads();  // all positions' weights are there; and of the stretch before, the sums are read
        float2 sum = {};
        for (int t = warp; t < count; t += AT_ONCE * WARPS) {
            unsigned words[AT_ONCE];  // all on their way before the first is waited for
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) {
                const T* of = z + (1ll * begin + t + u * WARPS) * dhqk;
                words[u] = is_there && t + u * WARPS < count ? *reinterpret_cast<const unsigned*>(of) : 0;
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) {
                float2 two = floats_of<T>(words[u]);
                float by = t + u * WARPS < count ? weight[t + u * WARPS] : 0;
                sum.x += by * two.x, sum.y += by * two.y;
            }
        }
        of_warp[warp][lane] = sum;
        __syncthreads();  // all warps' sums are there; and the weights are read, which the next stretch writes
        if (warp == 0 && is_there) {
            float gamma = forward[begin / CHUNK].gamma;
            n.x *= gamma, n.y *= gamma;
            for (auto& part : of_warp) n.x += part[lane].x, n.y += part[lane].y;
            // The border that comes next: between stretches, or before the first.
            int border = back ? stretch - 1 : stretch;
            float* to = border < 0 ? dn0 + 1ll * head * dhqk : (back ? saved_dn : saved_n) + (1ll * head * anchors + border) * keys;
            to[key] = n.x, to[key + 1] = n.y;
        }
    }
}

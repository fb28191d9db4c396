// A training step of B pairs in f32 that never stores a logit, in five launches: an attention, with h
// for queries and w2 for keys and for values. The equations are those of mlp.cuh.
//
//   hidden          x, h: v1_batch.cu
//   attend          of parts of V and each pair     m = max z_v    s = Σ exp(z_v − m)
//                                                   u = Σ exp(z_v − m) w2_v
//   merge           of each pair                    M = max m      S = Σ s exp(m − M)      its loss
//                                                   da = [h > 0] (Σ u exp(m − M) / S − w2_target) / B
//   output_weights  z again, dz_v = (exp(z_v − M) / S − [v is the target]) / B,
//                   w2_v −= lr Σ dz_v h, b2_v −= lr Σ dz_v; and dx in blocks of its own
//   input_weights   w1, b1 and the embeddings move: v1_batch.cu
//
// Work split: in attend a block owns OWN pairs and a part of V, of which PAST rows of w2 at a time come
// past it; in output_weights it owns OWN rows of w2, and PAST pairs at a time come past. The next are
// always on their way (lab/ahead.cuh). What a block moves nobody else reads in that launch, and nobody
// adds to what another has written: the same bits at every run. A logit is the same sum in both
// launches, in the same order, so it has the same bits, too.
//
// DH is room for H, a multiple of 4.
#include "lab/ahead.cuh"
#include "mlp.cuh"
#include "lab/ptx/dynamic_shared.cuh"

using namespace lab;

using L = Twins<8, 16>;  // how the threads of both products lie

// What a pair's softmax needs of all its logits.
struct __align__(8) Softmax {
    float largest, inverse;  // M, 1 / S
};

// ANCHOR: attend
// More logits of a pair, of which this thread has `z`: they become exponentials, relative to the largest
// up to here. What those before are to be scaled by is returned.
template <int RJ>
__device__ __forceinline__ float online(float (&z)[RJ], float& m, float& s) {
    float largest = m;
#pragma unroll
    for (int j = 0; j < RJ; ++j) largest = max(largest, z[j]);
    largest = L::over_row(largest, Max{});
    float kept = expf(m - largest);
    m = largest, s *= kept;
#pragma unroll
    for (int j = 0; j < RJ; ++j) z[j] = expf(z[j] - m), s += z[j];
    return kept;
}

template <int RJ> struct Tokens {
    float b2[RJ];
};

template <int OWN, int PAST, int DH, int CX, int>
constexpr int attend_shared = Passing<OWN, PAST, DH, CX, L>::BYTES;

// A grid of B / OWN blocks, rounded up, x parts of V of `span` tokens each, a multiple of PAST.
// stats: m and s; parts: u; both for each part of V and each pair. of_target: the target's logit.
template <int OWN, int PAST, int DH, int CX, int BLOCKS>
__global__ void __launch_bounds__(L::THREADS, BLOCKS)
    attend(const float* __restrict__ h, const float* __restrict__ w2, const float* __restrict__ b2,
           const int* __restrict__ ids, float* __restrict__ parts, float2* __restrict__ stats,
           float* __restrict__ of_target, int B, int V, int H, int span) {
    constexpr int RI = OWN / L::WI, RJ = PAST / L::WJ, RC = DH / L::WJ;
    DYNAMIC_SHARED(float, memory);
    Passing<OWN, PAST, DH, CX, L> shared(memory);
    int b0 = blockIdx.x * OWN + L::ti(), first = blockIdx.y * span;
    Matrix<const float> queries{h, B, H}, keys{w2, V, H};
    float u[RI][RC] = {}, m[RI], s[RI] = {};
    int target[RI];
#pragma unroll
    for (int a = 0; a < RI; ++a) {
        int b = b0 + a * L::WI;
        m[a] = lowest<float>(), target[a] = b < B ? ids[B + b] : -1;
    }
    auto meet = [&](int v0) {
        Tokens<RJ> met;  // past the last a logit is −∞, its exponential zero
#pragma unroll
        for (int j = 0; j < RJ; ++j) {
            int v = v0 + L::tj() + j * L::WJ;
            met.b2[j] = v < V ? b2[v] : lowest<float>();
        }
        return met;
    };
    products_ahead<L>(u, shared, queries, blockIdx.x * OWN, keys, keys, first,
                       min(first + span, V), meet,
                       [&](float (&z)[RI][RJ], const Tokens<RJ>& met, int v0) {
#pragma unroll
                           for (int a = 0; a < RI; ++a) {
#pragma unroll
                               for (int j = 0; j < RJ; ++j) {
                                   z[a][j] += met.b2[j];
                                   if (v0 + L::tj() + j * L::WJ == target[a])
                                       of_target[b0 + a * L::WI] = z[a][j];
                               }
                               float kept = online(z[a], m[a], s[a]);
#pragma unroll
                               for (int c = 0; c < RC; ++c) u[a][c] *= kept;
                           }
                       });
    Matrix<float> part{parts + blockIdx.y * (B * 1ll * H), B, H};
#pragma unroll
    for (int a = 0; a < RI; ++a) {
        int b = b0 + a * L::WI;
        float total = L::over_row(s[a], Add{});
        if (L::tj() == 0 && b < B) stats[blockIdx.y * 1ll * B + b] = float2{m[a], total};
#pragma unroll
        for (int c = 0; c < RC; c += 4) part.store<true>(&u[a][c], b, 4 * L::tj() + c * L::WJ);
    }
}
// ANCHOR_END: attend

// ANCHOR: merge
// A grid of B blocks of THREADS, at least one for each part of V. row_losses are already divided by B.
template <int THREADS>
__global__ void __launch_bounds__(THREADS)
    merge(const float* __restrict__ parts, const float2* __restrict__ stats,
          const float* __restrict__ of_target, const float* __restrict__ h,
          const float* __restrict__ w2, const int* __restrict__ ids, float* __restrict__ da,
          Softmax* __restrict__ softmax, double* __restrict__ row_losses, int splits, int B, int H) {
    __shared__ float share[THREADS];  // of each part in the softmax, over its s
    int b = blockIdx.x, t = threadIdx.x;
    long long target = ids[B + b];
    float2 own = t < splits ? stats[t * 1ll * B + b] : float2{lowest<float>(), 0};
    float largest = block_reduce<THREADS>(own.x, Max{}, lowest<float>());
    float scale = expf(own.x - largest);
    float sum = block_reduce<THREADS>(own.y * scale, Add{}, 0.0f), inverse = 1 / sum;
    share[t] = scale * inverse;
    if (t == 0) {
        softmax[b] = {largest, inverse};
        row_losses[b] = double(logf(sum) + (largest - of_target[b])) / B;
    }
    __syncthreads();  // all threads take the shares of all parts
    for (int j = t; j < H; j += THREADS) {
        float dh = -w2[target * H + j];
#pragma unroll 8
        for (int n = 0; n < splits; ++n) dh += share[n] * parts[(n * 1ll * B + b) * H + j];
        da[b * 1ll * H + j] = h[b * 1ll * H + j] > 0 ? dh / B : 0.0f;
    }
}
// ANCHOR_END: merge

// ANCHOR: weights
template <int RJ> struct Pairs {
    Softmax softmax[RJ];
    int target[RJ];
};

template <int OWN, int PAST, int DH, int CX, int, int>
constexpr int output_weights_shared = Passing<OWN, PAST, DH, CX, L>::BYTES;

// A grid of B / 64 · E / 64 + V / OWN blocks, rounded up. The first that has rows of w2 writes the loss.
template <int OWN, int PAST, int DH, int CX, int BLOCKS, int PACK>
__global__ void __launch_bounds__(L::THREADS, BLOCKS)
    output_weights(const float* __restrict__ h, const int* __restrict__ ids,
                   const Softmax* __restrict__ softmax, const double* __restrict__ row_losses,
                   const float* __restrict__ da, const float* __restrict__ w1,
                   float* __restrict__ dx, float* w2, float* b2,
                   const long long* __restrict__ counts, const double* __restrict__ rates,
                   double* __restrict__ losses, int B, int V, int E, int H) {
    constexpr int RI = OWN / L::WI, RJ = PAST / L::WJ, RC = DH / L::WJ;
    using Shared = Passing<OWN, PAST, DH, CX, L>;
    static_assert(INPUT_TILE <= Shared::BYTES, "one memory for both: raise OWN or PAST");
    DYNAMIC_SHARED(float, memory);
    int own = blockIdx.x - (B + 63) / 64 * ((E + 63) / 64);
    if (own < 0) return input_tile<L::THREADS, PACK>(memory, blockIdx.x, da, w1, dx, B, E, H);
    Step step{counts, rates, losses};
    double loss = 0;  // each block adds up the same numbers in the same order
    for (int b = threadIdx.x; b < B; b += L::THREADS) loss += row_losses[b];
    loss = block_reduce<L::THREADS>(loss, Add{}, 0.0);
    if (own == 0 && threadIdx.x == 0) losses[step.number()] = loss;
    if (counts[STOPPED] || !finite(loss)) return;

    Shared shared(memory);
    int v0 = own * OWN + L::ti();
    Matrix<const float> weights{w2, V, H}, pairs{h, B, H};
    float dw2[RI][RC] = {}, db2[RI] = {}, bias[RI], each = 1.0f / B;
#pragma unroll
    for (int a = 0; a < RI; ++a) bias[a] = v0 + a * L::WI < V ? b2[v0 + a * L::WI] : 0.0f;
    auto meet = [&](int b0) {
        Pairs<RJ> met;  // past the last the largest is ∞, every exponential zero
#pragma unroll
        for (int j = 0; j < RJ; ++j) {
            int b = b0 + L::tj() + j * L::WJ;
            met.softmax[j] = b < B ? softmax[b] : Softmax{-lowest<float>(), 0};
            met.target[j] = b < B ? ids[B + b] : -1;
        }
        return met;
    };
    products_ahead<L>(dw2, shared, weights, own * OWN, pairs, pairs, 0, B, meet,
                       [&](float (&z)[RI][RJ], const Pairs<RJ>& met, int) {
#pragma unroll
                           for (int a = 0; a < RI; ++a)
#pragma unroll
                               for (int j = 0; j < RJ; ++j) {
                                   auto [largest, inverse] = met.softmax[j];
                                   float p = expf(z[a][j] + bias[a] - largest) * inverse;
                                   z[a][j] = (p - float(v0 + a * L::WI == met.target[j])) * each;
                                   db2[a] += z[a][j];
                               }
                       });
    float lr = step.rate();
#pragma unroll
    for (int a = 0; a < RI; ++a) {
        int v = v0 + a * L::WI;
        float sum = L::over_row(db2[a], Add{});
        if (L::tj() == 0 && v < V) b2[v] = bias[a] - lr * sum;
        float moved[RC];  // the block's own rows are still in its shared memory
        load_fours(moved, &shared.own[L::ti() + a * L::WI][4 * L::tj()], 4 * L::WJ);
#pragma unroll
        for (int c = 0; c < RC; ++c) moved[c] -= lr * dw2[a][c];
#pragma unroll
        for (int c = 0; c < RC; c += 4)
            Matrix<float>{w2, V, H}.store<true>(&moved[c], v, 4 * L::tj() + c * L::WJ);
    }
}
// ANCHOR_END: weights

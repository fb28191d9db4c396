// As back.cu, on tensor cores: from the last chunk to the first the gradient of the state, and what each chunk hands to it.
//
//   dU = pairsᵀ dH + write ⊙ (K dC⁺)      dR = inverseᵀ dU      dv = beta ⊙ dR
//   dC  = exp(γ_L) dC⁺ + s (Q ⊙ read)ᵀ dH - (K ⊙ beta read)ᵀ dR
//
// All is transposed, as in the walk forward (walk.cuh of gdn_fw): a warp has 16 columns of V, as rows of dCᵀ [16, KEY], dHᵀ, dUᵀ and
// dRᵀ [16, CHUNK], and dCᵀ stays in its registers. What a chunk brings is what it brings forward, with dH in the place of V.
//
//   dCᵀ Kᵀ               dC rounded, in registers       right: K as it lies, [position][key]
//   dHᵀ pairs            dH, transposed when loaded     right: pairs, [i][j], transposed as they are loaded
//   dUᵀ inverse          dU rounded, in registers       right: inverse, the same way
//   (s read dH)ᵀ Q       dH times a factor, rounded     right: Q, the same way
//   (beta read dR)ᵀ K    dR times a factor, rounded     right: K, the same way
//
// q, k: heads / group x S x dhqk, dh, dv: heads x S x dhhv, dCN, dC0: heads x dhqk x dhhv; inverse, pairs: heads x chunks x CHUNK x
// CHUNK, decays: heads x chunks; dC: heads x chunks x dhhv x dhqk, behind each chunk, dR: heads x chunks x dhhv x CHUNK. A grid of
// heads slices blocks, slices = ceil(dhhv / VALUE). Of packed sequences as saving.cu of gdn_fw.
#include "lab/gdn/saving_walk.cuh"

using namespace lab;

template <class T, int KEY> constexpr int gdn_fwbw_tensor_back_shared = sizeof(Places<T, KEY>);

// sum = dCᵀ Kᵀ, times what is left behind the chunk of what a position writes.
template <class T, int KEY>
__device__ __forceinline__ void hear_state(float (&sum)[CHUNK / 2], const float (&state)[KEY / 2],
                                           const View<T, KEY>& place, const Offsets& at) {
#pragma unroll
    for (int n = 0; n < CHUNK / 2; ++n) sum[n] = 0;
#pragma unroll
    for (int c = 0; c < KEY; c += 16) {
        unsigned a[4], b[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) a[w] = two_halves<T>(state[c / 2 + 2 * w], state[c / 2 + 2 * w + 1]);
#pragma unroll
        for (int j = 0; j < CHUNK; j += 16) {
            load_matrices(b, place.k[c / PANEL] + j * PANEL + at.right[c % PANEL / 16]);
            multiply_add_16<T>(sum + j / 2, a, b);
        }
    }
#pragma unroll
    for (int n = 0; n < CHUNK / 2; n += 2) {
        float2 write = own_pair(place.decays.write, n / 8 * 16, n / 2 % 4);
        sum[n] = keep(write.x, sum[n]), sum[n + 1] = keep(write.y, sum[n + 1]);
    }
}

// ANCHOR: triangle
// sum += xᵀ weights of 16 positions from i on, of weights [i][j] below the diagonal.
template <class T>
__device__ __forceinline__ void multiply_turned(float (&sum)[CHUNK / 2], const unsigned (&x)[4], int i, const T* weights,
                                                const Offsets& at) {
#pragma unroll
    for (int j = 0; j < CHUNK; j += 16) {
        unsigned b[4];
        if (j > i) continue;
        load_matrices_transposed(b, weights + i * PANEL + at.turned[j / 16]);
        multiply_add_16<T>(sum + j / 2, x, b);
    }
}
// ANCHOR_END: triangle

// ANCHOR: back
// dRᵀ of a chunk in f32, and rounded. dH is loaded again later: its words would take the place of the state's registers.
template <class T, int KEY>
__device__ __forceinline__ void solve_back(float (&sum)[CHUNK / 2], unsigned (&rounded)[CHUNK / 16][4],
                                           const float (&state)[KEY / 2], const View<T, KEY>& place, const Offsets& at) {
    hear_state<T, KEY>(sum, state, place, at);
#pragma unroll
    for (int i = 0; i < CHUNK; i += 16) {
        unsigned of_h[4];
        load_matrices_transposed(of_h, place.v[0] + i * PANEL + at.own);
        multiply_turned(sum, of_h, i, place.pairs[0], at);
    }
    round_pairs<T>(rounded, sum);
#pragma unroll
    for (int n = 0; n < CHUNK / 2; ++n) sum[n] = 0;
#pragma unroll
    for (int i = 0; i < CHUNK; i += 16) multiply_turned(sum, rounded[i / 16], i, place.inverse[0], at);
    round_pairs<T>(rounded, sum);
}

// dCᵀ behind a chunk becomes that before it. `sum` is dRᵀ and becomes dvᵀ; `left` is room for words, and is written over.
template <class T, int KEY>
__device__ __forceinline__ void update_back(float (&state)[KEY / 2], float (&sum)[CHUNK / 2],
                                            unsigned (&left)[CHUNK / 16][4], const View<T, KEY>& place,
                                            const Head<T>& head, const Offsets& at, int chunk, float scale) {
    const Decays& decays = place.decays;
    float kept = decays.read[CHUNK - 1];
#pragma unroll
    for (int n = 0; n < CHUNK / 2; n += 2) {
        float2 beta = own_pair(decays.beta, n / 8 * 16, n / 2 % 4);
        float2 read = own_pair(decays.read, n / 8 * 16, n / 2 % 4);
        sum[n] *= beta.x, sum[n + 1] *= beta.y;
        left[n / 8][n / 2 % 4] = two_halves<T>(-keep(read.x, sum[n]), -keep(read.y, sum[n + 1]));
    }
#pragma unroll
    for (int n = 0; n < KEY / 2; ++n) state[n] = keep(kept, state[n]);
    add_to_state<T, KEY>(state, left, place.k, at);
#pragma unroll
    for (int j = 0; j < CHUNK; j += 16) {
        load_matrices_transposed(left[j / 16], place.v[0] + j * PANEL + at.own);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            float2 own = floats_of<T>(left[j / 16][w]), read = own_pair(decays.read, j, w);
            left[j / 16][w] = two_halves<T>(scale * keep(read.x, own.x), scale * keep(read.y, own.y));
        }
    }
    store_rows(sum, place, head, chunk * CHUNK);  // dv
    add_to_state<T, KEY>(state, left, place.q, at);
}
// ANCHOR_END: back

template <class T, int KEY>
__global__ void __launch_bounds__(WALKERS, 2)
    gdn_fwbw_tensor_back(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ dh,
                         const T* __restrict__ inverse, const T* __restrict__ pairs, const Decays* __restrict__ decays,
                         const float* __restrict__ dCN, T* __restrict__ dC, float* dC0, T* __restrict__ dR,
                         T* __restrict__ dv, const int* __restrict__ cu_seqlens, bool packed, int heads, int chunks, int S,
                         int dhqk, int dhhv, int group, int slices, bool gradient_given, bool gradient_wanted, float scale) {
    DYNAMIC_TILES(unsigned char, memory);
    Sequence own(blockIdx.x / slices, S, packed ? cu_seqlens : nullptr, heads);
    long long cells = 1ll * own.index * dhqk * dhhv;
    int last = own.parts(CHUNK) - 1;
    auto head = own_head(own, q, k, dh, dv, inverse, pairs, decays, chunks, dhqk, dhhv, group, slices);
    Saved<T> saved(dC, dR, own.slot(CHUNK, chunks), dhqk, dhhv, head.value);
    float state[KEY / 2], sum[CHUNK / 2];
    unsigned left[CHUNK / 16][4];
    Offsets offsets;
    load_state<KEY>(state, gradient_given ? dCN + cells : nullptr, head.value, dhqk, dhhv);
    auto solve = [&](const View<T, KEY>& place, int chunk) {
        saved.state(state, chunk);
        solve_back<T, KEY>(sum, left, state, place, offsets);
        saved.rows(left, chunk);
    };
    auto update = [&](const View<T, KEY>& place, int chunk) {
        update_back<T, KEY>(state, sum, left, place, head, offsets, chunk, scale);
    };
    walk_ahead(*reinterpret_cast<Places<T, KEY>*>(memory), head, last + 1, [&](int n) { return last - n; }, solve, update);
    if (gradient_wanted) store_state<KEY>(state, dC0 + cells, head.value, dhqk, dhhv);
}

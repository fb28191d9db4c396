// The walk over the chunks of a head on tensor cores: what v2 and v3 share.
//
//   R = diag(beta) (V - (K ⊙ read) C)      U = inverse R      H = s (Q ⊙ read) C + pairs U      C⁺ = exp(γ_L) C + (K ⊙ write)ᵀ U
//
// All is transposed: a warp has 16 columns of V, as rows of Cᵀ [16, KEY], Rᵀ, Uᵀ and Hᵀ [16, CHUNK]. Then each product's sums
// lie in the registers of a lane as the next product takes its left operand (lab/ptx/mma.cuh), and no warp needs what another
// has made:
//
//   Cᵀ Kᵀ, Cᵀ Qᵀ      C rounded, in registers     right: K, Q as they lie, [position][key]
//   Rᵀ inverseᵀ       R rounded, in registers     right: inverse as it lies, [i][j]
//   Uᵀ pairsᵀ         U rounded, in registers     right: pairs as it lies
//   (write U)ᵀ K      the same times write        right: K, transposed as it is loaded
//
// C itself is f32. What goes through shared memory is what the launch before has made, and Q, K and V.
#pragma once
#include "lab/gdn/walk_tiles.cuh"

namespace lab {

// ANCHOR: read
// of_k = Cᵀ Kᵀ, of_q = Cᵀ Qᵀ. C is rounded 16 keys at a time, for both: all of it would take KEY / 4 more registers.
template <class T, int KEY, class P>
__device__ __forceinline__ void read_state(float (&of_k)[CHUNK / 2], float (&of_q)[CHUNK / 2],
                                           const float (&state)[KEY / 2], const P& place, const Offsets& at) {
#pragma unroll
    for (int n = 0; n < CHUNK / 2; ++n) of_k[n] = of_q[n] = 0;
#pragma unroll
    for (int c = 0; c < KEY; c += 16) {
        unsigned a[4], b[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) a[w] = two_halves<T>(state[c / 2 + 2 * w], state[c / 2 + 2 * w + 1]);
#pragma unroll
        for (int j = 0; j < CHUNK; j += 16) {
            load_matrices(b, place.k[c / PANEL] + j * PANEL + at.right[c % PANEL / 16]);
            multiply_add_16<T>(of_k + j / 2, a, b);
            load_matrices(b, place.q[c / PANEL] + j * PANEL + at.right[c % PANEL / 16]);
            multiply_add_16<T>(of_q + j / 2, a, b);
        }
    }
}
// ANCHOR_END: read

// ANCHOR: write
// Uᵀ = Rᵀ inverseᵀ, rounded: `written` as it is, `left` times what is left of it behind the chunk. Takes Cᵀ Kᵀ. beta is not a
// part of the inverse, whose diagonal is 1 and so not rounded.
template <class T, int KEY, class P>
__device__ __forceinline__ void write_values(unsigned (&written)[CHUNK / 16][4], unsigned (&left)[CHUNK / 16][4],
                                             float (&sum)[CHUNK / 2], const P& place, const Offsets& at) {
#pragma unroll
    for (int j = 0; j < CHUNK; j += 16) {
        unsigned value[4];
        load_matrices_transposed(value, place.v[0] + j * PANEL + at.own);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            float2 v = floats_of<T>(value[w]);
            float2 read = own_pair(place.decays.read, j, w), beta = own_pair(place.decays.beta, j, w);
            int n = j / 2 + 2 * w;
            left[j / 16][w] = two_halves<T>(beta.x * (v.x - keep(read.x, sum[n])),
                                              beta.y * (v.y - keep(read.y, sum[n + 1])));
        }
    }
#pragma unroll
    for (int n = 0; n < CHUNK / 2; ++n) sum[n] = 0;
    multiply_triangle(sum, left, place.inverse[0], at);
    round_pairs<T>(written, sum);
#pragma unroll
    for (int n = 0; n < CHUNK / 2; n += 2) {
        float2 by = own_pair(place.decays.write, n / 8 * 16, n / 2 % 4);
        left[n / 8][n / 2 % 4] = two_halves<T>(by.x * sum[n], by.y * sum[n + 1]);
    }
}
// ANCHOR_END: write

// ANCHOR: chunk
// Hᵀ of a chunk, in place of Cᵀ Qᵀ.
template <class T, int KEY, class P>
__device__ __forceinline__ void read_values(float (&out)[CHUNK / 2], const unsigned (&written)[CHUNK / 16][4],
                                            const P& place, const Offsets& at, float scale) {
#pragma unroll
    for (int n = 0; n < CHUNK / 2; n += 2) {
        float2 read = own_pair(place.decays.read, n / 8 * 16, n / 2 % 4);
        out[n] = scale * keep(read.x, out[n]), out[n + 1] = scale * keep(read.y, out[n + 1]);
    }
    multiply_triangle(out, written, place.pairs[0], at);
}

// Cᵀ = exp(γ_L) Cᵀ + left K.
template <class T, int KEY, class P>
__device__ __forceinline__ void update(float (&state)[KEY / 2], const unsigned (&left)[CHUNK / 16][4],
                                       const P& place, const Offsets& at) {
    float kept = place.decays.read[CHUNK - 1];
#pragma unroll
    for (int n = 0; n < KEY / 2; ++n) state[n] = keep(kept, state[n]);
    add_to_state<T, KEY>(state, left, place.k, at);
}
// ANCHOR_END: chunk

// All chunks of a head. Where the state does not stay, it lies in `C` between them.
template <bool STAYS, class T, int KEY>
__device__ __forceinline__ void walk_chunks(Place<T, KEY>* places, const Head<T>& head, const float* first_state, float* C,
                                            bool wanted, int chunks, int dhqk, int dhhv, float scale) {
    float state[KEY / 2];
    Offsets at;
    load_state<KEY>(state, first_state, head.value, dhqk, dhhv);
    if (chunks > 0) fetch(places[0], head, 0);
    for (int chunk = 0; chunk < chunks; ++chunk) {
        auto& place = places[chunk % PLACES<KEY>];
        async_wait<0>();
        __syncthreads();  // the chunk is there; the one before, whose place comes next, is read
        if (PLACES<KEY> > 1 && chunk + 1 < chunks) fetch(places[(chunk + 1) % PLACES<KEY>], head, chunk + 1);
        if (!STAYS && chunk > 0) load_state<KEY>(state, C, head.value, dhqk, dhhv);
        unsigned written[CHUNK / 16][4], left[CHUNK / 16][4];
        float rest[CHUNK / 2], out[CHUNK / 2];
        read_state<T, KEY>(rest, out, state, place, at);
        write_values<T, KEY>(written, left, rest, place, at);
        read_values<T, KEY>(out, written, place, at, scale);
        store_rows(out, place, head, chunk * CHUNK);
        update<T, KEY>(state, left, place, at);
        if (!STAYS) store_state<KEY>(state, C, head.value, dhqk, dhhv);
        if (PLACES<KEY> == 1 && chunk + 1 < chunks) {
            __syncthreads();  // all have read the only place
            fetch(places[0], head, chunk + 1);
        }
    }
    if (STAYS && wanted) store_state<KEY>(state, C, head.value, dhqk, dhhv);
}

}  // namespace lab

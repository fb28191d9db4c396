// What walks forward and back share that leave states and rows for a later launch: where those go, and two places for a chunk's rows,
// so that the next chunk's come while one is computed.
#pragma once
#include "lab/gdn/panel_fragments.cuh"
#include "lab/gdn/walk_tiles.cuh"

namespace lab {

// ANCHOR: places
// What is read until a chunk ends has two places; inverse and pairs are read before the state is updated, and have one. With more than
// 128 keys there is room for one of each: then another block works while a chunk is on its way.
template <class T, int KEY> struct Places {
    static constexpr int POSITIONS = KEY > 128 ? 1 : 2;
    struct Positions {
        T q[KEY / PANEL][CHUNK * PANEL], k[KEY / PANEL][CHUNK * PANEL], v[1][CHUNK * PANEL];
        Decays decays;
    } positions[POSITIONS];
    struct Weights {
        T inverse[1][CHUNK * PANEL], pairs[1][CHUNK * PANEL];
    } weights;
};
static_assert(sizeof(Places<__half, 128>) <= 99 * 1024 && sizeof(Places<__half, 256>) <= 99 * 1024,
              "an RTX 4060 has 99 KB of shared memory for a block");

// A chunk of it, under the names that Place has.
template <class T, int KEY> struct View {
    T (&q)[KEY / PANEL][CHUNK * PANEL], (&k)[KEY / PANEL][CHUNK * PANEL], (&v)[1][CHUNK * PANEL];
    T (&inverse)[1][CHUNK * PANEL], (&pairs)[1][CHUNK * PANEL];
    Decays& decays;
};

// All chunks in turn, the n-th being chunk_of(n). solve(view, chunk) reads inverse and pairs, and update(view, chunk) does not.
template <class T, int KEY, class ChunkOf, class Solve, class Update>
__device__ __forceinline__ void walk_ahead(Places<T, KEY>& places, const Head<T>& head, int chunks, ChunkOf chunk_of,
                                           Solve solve, Update update) {
    constexpr int POSITIONS = Places<T, KEY>::POSITIONS;
    auto ask = [&](int n) {
        if (n < chunks) {
            copy_positions(places.positions[n % POSITIONS], head, chunk_of(n));
            copy_decays(places.positions[n % POSITIONS].decays, head, chunk_of(n));
        }
        async_commit();
    };
    if (chunks == 0) return;  // a sequence of nothing
    copy_weights(places.weights, head, chunk_of(0));
    ask(0);
    for (int n = 0; n < chunks; ++n) {
        auto& of = places.positions[n % POSITIONS];
        View<T, KEY> view{of.q, of.k, of.v, places.weights.inverse, places.weights.pairs, of.decays};
        async_wait<0>();
        __syncthreads();  // the chunk is there; the one before, whose place comes next, is read
        if (POSITIONS > 1) ask(n + 1);
        solve(view, chunk_of(n));
        __syncthreads();  // all have read the weights: the next come in their place
        if (n + 1 < chunks) copy_weights(places.weights, head, chunk_of(n + 1));
        async_commit();
        update(view, chunk_of(n));
        if (POSITIONS == 1) {
            __syncthreads();  // the chunk is read: the next comes in its place
            ask(n + 1);
        }
    }
}
// ANCHOR_END: places

// Where states go, one a chunk, and rows of values, all transposed and rounded: [chunks][dhhv][dhqk] and [chunks][dhhv][CHUNK],
// from the `first` of all heads' chunks on. So the next launch's products find neighbours along V in rows.
template <class T> struct Saved {
    T *states, *values;
    int dhqk, dhhv, row;  // row: the warp's first

    __device__ __forceinline__ Saved(T* states, T* values, long long first, int dhqk, int dhhv, int value)
        : states(states + first * dhhv * dhqk), values(values + first * dhhv * CHUNK), dhqk(dhqk), dhhv(dhhv),
          row(value + threadIdx.x / 32 * 16) {}

    template <int N> __device__ __forceinline__ void state(const float (&of)[N], int chunk) const {
        if (row >= dhhv) return;
        T* to = states + (1ll * chunk * dhhv + row) * dhqk;
#pragma unroll
        for (int c = 0; c < 2 * N; c += 16) {
            unsigned words[4];
#pragma unroll
            for (int w = 0; w < 4; ++w) words[w] = two_halves<T>(of[c / 2 + 2 * w], of[c / 2 + 2 * w + 1]);
            if (c < dhqk) store_words(to + c, dhqk, words, 16);
        }
    }
    __device__ __forceinline__ void rows(const unsigned (&of)[CHUNK / 16][4], int chunk) const {
        if (row >= dhhv) return;
        T* to = values + (1ll * chunk * dhhv + row) * CHUNK;
#pragma unroll
        for (int j = 0; j < CHUNK; j += 16) store_words(to + j, CHUNK, of[j / 16], 16);
    }
};

}  // namespace lab

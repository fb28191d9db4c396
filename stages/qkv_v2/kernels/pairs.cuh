// Places as v3 fills them for the second product: a place that held 64 rows of K and of V holds twice 64 rows of Q, for
// two warpgroups. Each multiplies its own rows with all columns of C, and leaves its rows of O where they were.
#pragma once
#include "places.cuh"

namespace lab {

template <class T, int DQK, int DHV> struct Pair {
    static constexpr int PANEL = SPAN / sizeof(T), PANELS = DHV / PANEL, PANEL_CELLS = ROWS * PANEL, CELLS = ROWS * DQK;
    static_assert(DHV == DQK, "rows of O lie where those of Q did");
    T* place;

    // Asks for `tiles` tiles, at most two, of rows of Q from s on; one thread.
    __device__ __forceinline__ void load(const TensorMap& Q, int s, int tiles, int head, Mbarrier* full) const {
        tiles = min(tiles, 2);
        mbarrier_arrive_expect(full, tiles * CELLS * sizeof(T));
        for (int n = 0; n < tiles; ++n)
#pragma unroll
            for (int c = 0; c < DQK; c += PANEL)
                tensor_load(place + n * CELLS + c * ROWS, Q, {c, s + n * ROWS, head}, full);
    }

    // out = this warpgroup's 64 rows of Q times C.
    __device__ __forceinline__ void times_state(float (&out)[DHV / 2], const T* state) const {
        auto b = mn_major<SPAN>(state, DQK * SPAN, 8 * SPAN);
        wgmma_fence();
#pragma unroll
        for (int c = 0; c < DQK; c += 16) {
            auto a = k_major<SPAN>(place + threadIdx.x / 128 * CELLS + c / PANEL * PANEL_CELLS, 8 * SPAN);
            wgmma<T, DHV, false, true>(out, advance(a, c % PANEL * sizeof(T)), advance(b, c * SPAN), c > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();  // the rows of Q have been read: those of O may take their place
    }

    // factor times out, to rows s of O and columns from j on: copies that the caller closes a group of.
    __device__ __forceinline__ void store(const TensorMap& O, const float (&out)[DHV / 2],
                                          const float (&factor)[DHV / 4], int s, int j, int head) const {
        int group = threadIdx.x / 128;
        T* rows = place + group * CELLS;
#pragma unroll
        for (int c = 0; c < PANELS; ++c) round_panel(rows + c * PANEL_CELLS, out + c * 32, factor + c * 16);
        fence_proxy_async_shared();           // TMA reads what was written by plain stores
        named_barrier_sync(1 + group, 128);  // by all of the warpgroup
        if (threadIdx.x % 128 != 0) return;
#pragma unroll
        for (int c = 0; c < PANELS; ++c) tensor_store(O, {j + c * PANEL, s, head}, rows + c * PANEL_CELLS);
    }
};

// ANCHOR: pairs
// O = factor Q C for the next `tiles` tiles, from row s on, a pair a place; the last may be alone.
template <class T, int DQK, int DHV, class Stream>
__device__ __forceinline__ void multiply_pairs(const TensorMap& O, Stream& stream, T* places, const T* state,
                                               const float (&factor)[DHV / 4], int tiles, int s, int j, int head) {
    for (int n = 0; n < tiles; n += 2, stream.next()) {
        Pair<T, DQK, DHV> pair{places + stream.turn.place * 2 * Pair<T, DQK, DHV>::CELLS};
        int own = n + threadIdx.x / 128;
        stream.wait();
        if (own < tiles) {
            float out[DHV / 2];
            pair.times_state(out, state);
            pair.store(O, out, factor, s + own * ROWS, j, head);
        }
        if (threadIdx.x % 128 == 0) {
            bulk_commit();        // a group for each pair, if only an empty one: the wait counts groups
            bulk_wait_read<1>();  // the rows of the pair before have been read
        }
        if (n > 0) stream.leave_last();
    }
    if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // of the last pair
    stream.leave_last();
}
// ANCHOR_END: pairs

}  // namespace lab

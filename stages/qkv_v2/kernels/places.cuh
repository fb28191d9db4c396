// What the versions by wgmma share: places in shared memory that TMA fills, both products on what lies there, and the
// way of O's rows out.
//
// A place holds 64 positions of a head: rows of K and of V for the first product, rows of Q and of O for the second.
// A panel is 64 columns of them, 64 x 128 bytes, swizzled. What of a box lies outside of its matrix is zero.
//
// A block has DQK / 64 warpgroups. Of C = K^T V, DQK x DHV, each has 64 rows; of O, 64 columns.
#pragma once
#include "lab/halves.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "lab/ptx/stmatrix.cuh"
#include "lab/ptx/tensor_copy.cuh"
#include "lab/ptx/wgmma.cuh"
#include "lab/ring.cuh"

namespace lab {

constexpr int ROWS = 64, SPAN = 128;

// factor times out, a warpgroup's 64 x 64 of O, to a panel.
template <class T>
__device__ __forceinline__ void round_panel(T* panel, const float* out, const float* factor) {
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int c = 0; c < 8; c += 2) {  // pairs of 8 columns
        unsigned words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w)
            words[w] = two_halves<T>(out[4 * c + 2 * w] * factor[2 * (c + w / 2)],
                                     out[4 * c + 2 * w + 1] * factor[2 * (c + w / 2) + 1]);
        store_matrices(panel + row * SPAN / sizeof(T) + ((c + lane / 16) ^ row % 8) * 8, words);
    }
}

template <class T, int DQK, int DHV> struct Place {
    static constexpr int PANEL = SPAN / sizeof(T), PANEL_CELLS = ROWS * PANEL, GROUPS = DQK / 64, THREADS = GROUPS * 128;
    static constexpr int CELLS = ROWS * (DQK + DHV), BYTES = CELLS * sizeof(T), STATE_BYTES = DQK * DHV * sizeof(T);
    static_assert(DQK % 64 == 0 && DHV == DQK, "a warpgroup has 64 rows of C, and a panel of O: DHV must be DQK");
    T *rows, *values;  // of K or Q; of V or O

    __device__ __forceinline__ Place(T* places, int n) : rows(places + n * CELLS), values(rows + ROWS * DQK) {}

    // ANCHOR: loads
    // Asks for rows of K and V from s on, V's columns from j on; one thread.
    __device__ __forceinline__ void load(const TensorMap& K, const TensorMap& V, int s, int j, int head,
                                         Mbarrier* full) const {
        mbarrier_arrive_expect(full, BYTES);
#pragma unroll
        for (int c = 0; c < DQK; c += PANEL) tensor_load(rows + c * ROWS, K, {c, s, head}, full);
#pragma unroll
        for (int c = 0; c < DHV; c += PANEL) tensor_load(values + c * ROWS, V, {j + c, s, head}, full);
    }

    // For rows of Q.
    __device__ __forceinline__ void load(const TensorMap& Q, int s, int head, Mbarrier* full) const {
        mbarrier_arrive_expect(full, ROWS * DQK * sizeof(T));
#pragma unroll
        for (int c = 0; c < DQK; c += PANEL) tensor_load(rows + c * ROWS, Q, {c, s, head}, full);
    }
    // ANCHOR_END: loads

    // ANCHOR: products
    // sum = or += 64 rows of K^T V, of this warpgroup: 64 columns of K as rows of A.
    __device__ __forceinline__ void keys_times_values(float (&sum)[DHV / 2], bool adds) const {
        auto a = mn_major<SPAN>(rows + threadIdx.x / 128 * PANEL_CELLS, ROWS * SPAN, 8 * SPAN);
        auto b = mn_major<SPAN>(values, ROWS * SPAN, 8 * SPAN);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < ROWS; s += 16)
            wgmma<T, DHV, true, true>(sum, advance(a, s * SPAN), advance(b, s * SPAN), adds || s > 0);
        wgmma_commit();
    }

    // out = 64 rows of Q times 64 columns of C, those of this warpgroup.
    __device__ __forceinline__ void queries_times_state(float (&out)[32], const T* state) const {
        auto b = mn_major<SPAN>(state + threadIdx.x / 128 * DQK * PANEL, DQK * SPAN, 8 * SPAN);
        wgmma_fence();
#pragma unroll
        for (int c = 0; c < DQK; c += 16) {
            auto a = k_major<SPAN>(rows + c / PANEL * PANEL_CELLS, 8 * SPAN);
            wgmma<T, 64, false, true>(out, advance(a, c % PANEL * sizeof(T)), advance(b, c * SPAN), c > 0);
        }
        wgmma_commit();
    }
    // ANCHOR_END: products

    // ANCHOR: store
    // factor times out to the place of V, from where TMA takes it to rows s of O and columns from j on.
    __device__ __forceinline__ void store(const TensorMap& O, const float (&out)[32], const float (&factor)[16], int s,
                                          int j, int head) const {
        int group = threadIdx.x / 128;
        T* panel = values + group * PANEL_CELLS;
        round_panel(panel, out, factor);
        fence_proxy_async_shared();           // TMA reads what was written by plain stores
        named_barrier_sync(1 + group, 128);  // by all of the warpgroup
        if (threadIdx.x % 128 == 0) {
            tensor_store(O, {j + group * PANEL, s, head}, panel);
            bulk_commit();
        }
    }
    // ANCHOR_END: store
};

// The factors of this lane's columns, of what round_panel() takes: 8 n + 2 t and the next of each 8.
template <int N> __device__ __forceinline__ void load_factors(float (&to)[N], const float* factor, int columns) {
    int first = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; ++n) {
        int c = first + n / 2 * 8 + n % 2;
        to[n] = c < columns ? factor[c] : 0;
    }
}

// ANCHOR: stream
// Tiles that come by a ring, one after the other: fill(n, place) asks for tile n, if there is one. Who asks is one of
// those who compute: when a place is left, thread 0 asks for the tile that comes PLACES later.
template <int PLACES, class Fill> struct Stream {
    Ring<PLACES>& ring;
    Fill fill;
    int n = 0;
    Turn<PLACES> turn, last;

    __device__ __forceinline__ Stream(Ring<PLACES>& ring, int users, Fill fill) : ring(ring), fill(fill) {
        if (threadIdx.x == 0) {
            ring.init(users);
            for (int at = 0; at < PLACES; ++at) fill(at, at);
        }
        __syncthreads();  // nobody waits at a barrier that is not there
    }

    __device__ __forceinline__ void wait() const { ring.wait_full(turn); }
    __device__ __forceinline__ void next() { last = turn, turn.advance(), ++n; }

    // The place of tile n - 1, by a warpgroup that has done with it.
    __device__ __forceinline__ void leave_last() {
        if (threadIdx.x % 128 == 0) ring.leave(last);
        if (threadIdx.x == 0) {
            mbarrier_wait(&ring.empty[last.place], last.parity);  // the other warpgroups have, too
            fill(n - 1 + PLACES, last.place);
        }
    }

    // For a warpgroup that does not use the next tiles. It waits for each, or it could leave a place twice for once.
    __device__ __forceinline__ void skip(int tiles) {
        for (; tiles > 0; --tiles) wait(), next(), leave_last();
    }
};
// ANCHOR_END: stream

// ANCHOR: phases
// sum = K^T V over the next `tiles` tiles of the stream: 64 rows of it a warpgroup.
template <class T, int DQK, int DHV, class Stream>
__device__ __forceinline__ void sum_keys_values(float (&sum)[DHV / 2], Stream& stream, T* places, int tiles) {
    for (int n = 0; n < tiles; ++n, stream.next()) {
        stream.wait();
        Place<T, DQK, DHV>(places, stream.turn.place).keys_times_values(sum, n > 0);
        wgmma_wait<1>();
        if (n > 0) stream.leave_last();
    }
    wgmma_wait<0>();
    stream.leave_last();
}

// O = factor Q C for the next `tiles` tiles, from row s on.
template <class T, int DQK, int DHV, class Stream>
__device__ __forceinline__ void multiply_rows(const TensorMap& O, Stream& stream, T* places, const T* state,
                                              const float (&factor)[16], int tiles, int s, int j, int head) {
    for (int n = 0; n < tiles; ++n, stream.next()) {
        Place<T, DQK, DHV> place(places, stream.turn.place);
        float out[32];
        stream.wait();
        place.queries_times_state(out, state);
        wgmma_wait<0>();
        place.store(O, out, factor, s + n * ROWS, j, head);
        if (n == 0) continue;
        if (threadIdx.x % 128 == 0) bulk_wait_read<1>();  // the rows of tile n - 1 have been read
        stream.leave_last();
    }
    if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // shared memory is read until here
}
// ANCHOR_END: phases

}  // namespace lab

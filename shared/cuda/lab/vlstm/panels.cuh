// What wgmma and TMA do with tiles of L positions in panels: of a block two warpgroups have 64 rows of its own tile each,
// and a third has the thread that asks for tiles.
#pragma once
#include "lab/ptx/compute_here.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "lab/ptx/stmatrix.cuh"
#include "lab/ptx/tensor_copy.cuh"
#include "lab/ptx/warp_roles.cuh"
#include "lab/ptx/wgmma.cuh"
#include "lab/ring.cuh"
#include "lab/vlstm/pairs.cuh"

namespace lab {

// Registers of a thread: those of two consumer warpgroups and the producer's are 512 at most.
constexpr int CONSUMER_REGISTERS = 232, PRODUCER_REGISTERS = 40;

// COLUMNS columns of a tile.
template <class T, int COLUMNS, int L> struct alignas(1024) Panels {
    static constexpr int BYTES = COLUMNS * L * sizeof(T);
    T panel[COLUMNS / PANEL][L * PANEL];

    // From column c0 of the tile's rows on, to count at `full`; one thread.
    __device__ __forceinline__ void load(const TensorMap& from, int c0, int tile, int head, Mbarrier* full) {
#pragma unroll
        for (int p = 0; p < COLUMNS / PANEL; ++p)
            tensor_load(panel[p], from, {c0 + p * PANEL, tile * L, head}, full);
    }

    // The same of somebody who says where his boxes are, as Sequence does.
    template <class Own>
    __device__ __forceinline__ void load(const TensorMap& from, int c0, int tile, const Own& own, Mbarrier* full) {
#pragma unroll
        for (int p = 0; p < COLUMNS / PANEL; ++p) tensor_load(panel[p], from, own.box(c0 + p * PANEL, tile * L).at, full);
    }
};

// One lane for its warp, which has done with a place.
template <int PLACES> __device__ __forceinline__ void leave(Ring<PLACES>& ring, Turn<PLACES> turn) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ring.leave(turn);
}

// ANCHOR: products
// score = Q Kᵀ: the warpgroup's 64 rows from `row` on. To be fenced before, and closed into a group after.
template <class T, int KEY, int OWN, int L>
__device__ __forceinline__ void multiply_scores(float (&score)[L / 2], const Panels<T, KEY, OWN>& q,
                                                const Panels<T, KEY, L>& k, int row) {
#pragma unroll
    for (int c = 0; c < KEY; c += 16)
        wgmma<T, L>(score, advance(k_major<SPAN>(q.panel[c / PANEL] + row * PANEL, 8 * SPAN), c % PANEL * 2),
                    advance(k_major<SPAN>(k.panel[c / PANEL], 8 * SPAN), c % PANEL * 2), c > 0);
}

// out += C̃ V, or out = C̃ V of the first tile; C̃ from registers, V as it lies.
template <class T, int VALUE, int L>
__device__ __forceinline__ void multiply_values(float (&out)[VALUE / 2], const unsigned (&pairs)[L / 16][4],
                                                const Panels<T, VALUE, L>& v, bool adds) {
#pragma unroll
    for (int j = 0; j < L; j += 16)
        wgmma<T, VALUE, true>(out, pairs[j / 16], advance(mn_major<SPAN>(v.panel[0], L * SPAN, 8 * SPAN), j * SPAN),
                              adds || j > 0);
}
// ANCHOR_END: products

// h_i = out_i by[r], rounded, by way of panels where nobody reads any more what they held: the warpgroup's 64 rows. TMA
// has read them when bulk_wait_read<0>() returns.
template <class T, int VALUE, int KEY, int L>
__device__ __forceinline__ void store_rows(const TensorMap& H, Panels<T, KEY, L>& panels, const float (&out)[VALUE / 2],
                                           const float (&by)[2], int value, int first, int head) {
    static_assert(VALUE <= KEY, "h lies where Q lay: make KEY at least VALUE");
    int group = threadIdx.x / 128, lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < VALUE; c += 16) {
        unsigned words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            int r = w % 2, at = c / 2 + w / 2 * 4 + 2 * r;
            words[w] = two_halves<T>(out[at] * by[r], out[at + 1] * by[r]);
        }
        store_matrices(cell(panels.panel[c / PANEL], threadIdx.x / 32 * 16 + lane % 16, c % PANEL + lane / 16 * 8), words);
    }
    fence_proxy_async_shared();  // TMA reads what was written by plain stores
    named_barrier_sync(1 + group, 128);  // all of the warpgroup's rows are written
    if (threadIdx.x % 128 == 0) {
#pragma unroll
        for (int p = 0; p < VALUE / PANEL; ++p)
            tensor_store(H, {value + p * PANEL, first + group * 64, head}, panels.panel[p] + group * 64 * PANEL);
        bulk_commit();
    }
}

}  // namespace lab

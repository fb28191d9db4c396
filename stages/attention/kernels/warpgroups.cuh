// What warpgroups of an attention have in common: tiles in panels as TMA brings them, products of 64 rows by wgmma, and which
// rows of which head come when.
#pragma once
#include "lab/ptx/named_barrier.cuh"
#include "lab/ptx/stmatrix.cuh"
#include "lab/ptx/tensor_copy.cuh"
#include "lab/ptx/warp_roles.cuh"
#include "lab/ptx/wgmma.cuh"
#include "lab/ring.cuh"
#include "packed.cuh"
#include "weights.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

// Rows of a warpgroup.
constexpr int ROWS = 64;

// L positions of a head, ROOM columns of them.
template <class T, int ROOM, int L> struct Panels {
    static constexpr int COUNT = ROOM / PANEL, BYTES = ROOM * L * sizeof(T);
    T x[COUNT][L * PANEL];

    // One thread, after it has expected BYTES: positions from `row` on of a head of a sequence.
    __device__ __forceinline__ void load(const TensorMap& from, int row, int head, int sequence, Mbarrier* full) {
#pragma unroll
        for (int p = 0; p < COUNT; ++p) tensor_load(x[p], from, {p * PANEL, row, head, sequence}, full);
    }
    __device__ __forceinline__ void load(const TensorMap& from, int row, int head, const PackedSequence& sequence,
                                         Mbarrier* full) {
#pragma unroll
        for (int p = 0; p < COUNT; ++p) tensor_load(x[p], from, sequence.box(p * PANEL, row, head).at, full);
    }
};

// ANCHOR: products
// score = Q Kᵀ of a warpgroup's rows: both along the columns that are summed over.
template <class T, int ROOM, int L>
__device__ __forceinline__ void multiply_scores(float (&score)[L / 2], const Panels<T, ROOM, ROWS>& q,
                                                const Panels<T, ROOM, L>& k) {
#pragma unroll
    for (int p = 0; p < ROOM / PANEL; ++p) {
        auto rows = k_major<SPAN>(q.x[p], 8 * SPAN), columns = k_major<SPAN>(k.x[p], 8 * SPAN);
#pragma unroll
        for (int c = 0; c < SPAN; c += 32) wgmma<T, L>(score, advance(rows, c), advance(columns, c), p > 0 || c > 0);
    }
}

// out += P V, or out = P V where it is the first: P in registers, V across the positions that are summed over.
template <class T, int ROOM, int L>
__device__ __forceinline__ void multiply_values(float (&out)[ROOM / 2], const unsigned (&pairs)[L / 16][4],
                                                const Panels<T, ROOM, L>& v, bool adds = true) {
    auto columns = mn_major<SPAN>(v.x[0], L * SPAN, 8 * SPAN);
#pragma unroll
    for (int n = 0; n < L / 16; ++n) wgmma<T, ROOM, true>(out, pairs[n], advance(columns, n * 16 * SPAN), adds || n > 0);
}
// ANCHOR_END: products

// ANCHOR: order
// Rows of a block, 64 GROUPS of them, and of which head. Heads go in groups whose keys and values the L2 cache holds; of a
// group's the longest come first, so that short ones fill the gaps at the end.
struct Order {
    int heads, tiles, together;

    struct Tile { int head, tile; };

    __device__ __forceinline__ Tile at(int n) const {
        int group = n / (together * tiles), rest = n % (together * tiles);
        int high = min(together, heads - group * together);
        return {group * together + rest % high, tiles - 1 - rest / high};
    }
};
// ANCHOR_END: order

// The last tile of L positions that rows from `first` on see, `rows` of them.
template <int L> __device__ __forceinline__ int last_tile(bool causal, int first, int rows, int S) {
    return (causal ? min(first + rows, S) - 1 : S - 1) / L;
}

// A warpgroup's rows to o, by way of `place`, which nobody of it reads any more when all of it have come: `meets` is a named
// barrier of its own. TMA reads the place until bulk_wait_read<0>() of the thread that asked.
template <bool PACKED, class T, int ROOM, class Sequence>
__device__ __forceinline__ void store_rows(const TensorMap& o, Panels<T, ROOM, ROWS>& place, const float (&out)[ROOM / 2],
                                           const float (&factor)[2], int row, int head, Sequence sequence, int meets) {
    int lane = threadIdx.x % 32, own = threadIdx.x / 32 % 4 * 16 + lane % 16;
    named_barrier_sync(meets, 128);  // what stood there has been read
#pragma unroll
    for (int c = 0; c < ROOM; c += 16) {
        unsigned words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w)
            words[w] = two_halves<T>(out[c / 2 + 2 * w] * factor[w % 2], out[c / 2 + 2 * w + 1] * factor[w % 2]);
        store_matrices(cell(place.x[c / PANEL], own, c % PANEL + lane / 16 * 8), words);
    }
    fence_proxy_async_shared();  // TMA reads what was written by plain stores
    named_barrier_sync(meets, 128);
    if (threadIdx.x % 128) return;
    if constexpr (PACKED)
        for (int p = 0; p < ROOM / PANEL; ++p) tensor_store(o, sequence.box(p * PANEL, row, head).at, place.x[p]);
    else
        for (int p = 0; p < ROOM / PANEL; ++p) tensor_store(o, {p * PANEL, row, head, sequence}, place.x[p]);
    bulk_commit();
}

}  // namespace lab
#endif

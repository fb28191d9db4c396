// What lies in shared memory where wgmma makes the gradients, who brings it, and who adds up G.
#pragma once
#include "gradients.cuh"
#include "lab/vlstm/panels.cuh"

namespace lab {

// Tiles of rows that come past at once, of 33 KB each where heads have 128 columns.
constexpr int PLACES = 4;

// The n-th turn at a ring: counted, it takes one register.
template <int PLACES> __device__ __forceinline__ Turn<PLACES> turn_of(int n) {
    return {n % PLACES, static_cast<unsigned>(n / PLACES % 2)};
}

// Registers of a thread, where sums of dk, of dv and two products for 64 positions are in them.
constexpr int KEYS_REGISTERS = 240, KEYS_PRODUCER_REGISTERS = 24;

// A block's own K and V, 64 rows of Q and dh each time, and sums of G over the positions of each warp.
template <class T, int KEY, int VALUE, int L> struct KeyTiles {
    Panels<T, KEY, L> k;
    Panels<T, VALUE, L> v;
    struct {
        Panels<T, KEY, PANEL> q;
        Panels<T, VALUE, PANEL> dh;
        float2 exponent[PANEL];
        float rho[PANEL];
    } places[PLACES];
    float2 column[L];
    float sums[2][L / 16][PANEL];
};
struct KeyBarriers {
    Mbarrier own;
    Ring<PLACES> rows;
    Ring<2> sums;

    // One thread, before a barrier.
    __device__ __forceinline__ void init(int warps) {
        mbarrier_init(&own, 1);
        rows.init(warps);
        sums.init(1, warps);
    }
};

// A block's own dh, and tiles of V and K that come past.
template <class T, int KEY, int VALUE, int L> struct QueryTiles {
    Panels<T, VALUE, L> dh;
    struct {
        Panels<T, VALUE, L> v;
        float2 column[L];
    } values[2];
    Panels<T, KEY, L> k[2];
};
struct QueryBarriers {
    Mbarrier own;
    Ring<2> values, keys;

    __device__ __forceinline__ void init(int warps) {
        mbarrier_init(&own, 1);
        values.init(warps);
        keys.init(warps);
    }
};

// The producer's thread: K and V of a tile, then Q and dh with what pairs need of their rows, `count` times 64 rows from
// the tile's own on.
template <class Tiles>
__device__ __forceinline__ void bring_rows(Tiles& shared, KeyBarriers& barriers, const TensorMap& q, const TensorMap& k,
                                           const TensorMap& v, const TensorMap& dh,
                                           const float2* exponent, const float2* column, const float* rho, int tile,
                                           int count, int head) {
    constexpr int POSITIONS = sizeof shared.column / sizeof shared.column[0];
    auto& [own, rows, sums] = barriers;
    mbarrier_arrive_expect(&own, shared.k.BYTES + shared.v.BYTES + sizeof shared.column);
    bulk_load(shared.column, column + tile * POSITIONS, sizeof shared.column, &own);
    shared.k.load(k, 0, tile, head, &own);
    shared.v.load(v, 0, tile, head, &own);
    for (int n = 0; n < count; ++n) {
        auto turn = turn_of<PLACES>(n);
        int past = tile * (POSITIONS / PANEL) + n;
        auto& place = shared.places[turn.place];
        Mbarrier* full = &rows.full[turn.place];
        rows.wait_empty(turn);
        mbarrier_arrive_expect(full, place.q.BYTES + place.dh.BYTES + sizeof place.exponent + sizeof place.rho);
        place.q.load(q, 0, past, head, full);
        place.dh.load(dh, 0, past, head, full);
        bulk_load(place.exponent, exponent + past * PANEL, sizeof place.exponent, full);
        bulk_load(place.rho, rho + past * PANEL, sizeof place.rho, full);
    }
}

// dh of a tile, then V with the exponents of its positions, and K, from the tile's own back to the first.
template <class Tiles>
__device__ __forceinline__ void bring_positions(Tiles& shared, QueryBarriers& barriers, Turn<2>& turn, const TensorMap& k,
                                                const TensorMap& v, const TensorMap& dh, const float2* column,
                                                int own_tile, int head) {
    auto& [own, values, keys] = barriers;
    mbarrier_arrive_expect(&own, shared.dh.BYTES);
    shared.dh.load(dh, 0, own_tile, head, &own);
    for (int tile = own_tile; tile >= 0; --tile, turn.advance()) {
        auto& place = shared.values[turn.place];
        constexpr int POSITIONS = sizeof place.column / sizeof place.column[0];
        values.wait_empty(turn);
        mbarrier_arrive_expect(&values.full[turn.place], place.v.BYTES + sizeof place.column);
        place.v.load(v, 0, tile, head, &values.full[turn.place]);
        bulk_load(place.column, column + tile * POSITIONS, sizeof place.column, &values.full[turn.place]);
        keys.wait_empty(turn);
        mbarrier_arrive_expect(&keys.full[turn.place], shared.k[0].BYTES);
        shared.k[turn.place].load(k, 0, tile, head, &keys.full[turn.place]);
    }
}

// ANCHOR: sums
// A consumer's warp: its sums of G over its 16 positions, for each of 64 rows.
template <class Tiles>
__device__ __forceinline__ void send_sums(Tiles& shared, Ring<2>& sums, Turn<2> turn, const float (&sum)[PANEL / 4]) {
    float2 kept = sum_columns(sum);
    sums.wait_empty(turn);
    *reinterpret_cast<float2*>(&shared.sums[turn.place][threadIdx.x / 32][kept_column()]) = kept;
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&sums.full[turn.place]);
}

// One warp of the third warpgroup: all warps' sums to the block's share of each row.
template <class Tiles>
__device__ __forceinline__ void add_up(Tiles& shared, Ring<2>& sums, float* shares, int count) {
    int i = threadIdx.x % 32 * 2;
    for (int n = 0; n < count; ++n) {
        auto turn = turn_of<2>(n);
        sums.wait_full(turn);
        float2 sum = {0, 0};
        for (auto& of_warp : shared.sums[turn.place]) sum.x += of_warp[i], sum.y += of_warp[i + 1];
        *reinterpret_cast<float2*>(shares + n * PANEL + i) = sum;
        leave(sums, turn);  // what is stored has been read
    }
}
// ANCHOR_END: sums

}  // namespace lab

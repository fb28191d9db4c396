// Weights of pairs as products of two factors, one of the row and one of the position (rows.cu, and gates.cu of
// vlstm_fw_v2). Where a block owns positions, the row's comes past, and the position's is one power for 64 rows; where it
// owns rows, it is the other way round. Only on the diagonal exponents are added, and powers taken.
#pragma once
#include "bring.cuh"

namespace lab {

template <class T, int KEY, int VALUE, int L> struct FactoredKeyTiles {
    Panels<T, KEY, L> k;
    Panels<T, VALUE, L> v;
    struct {
        Panels<T, KEY, PANEL> q;
        Panels<T, VALUE, PANEL> dh;
        Factors factors;
        float rho[PANEL];
    } places[PLACES];
    float2 exponent[L], column[L];  // of the rows on the diagonal, and of the positions
    float sums[2][L / 16][PANEL];
};

template <class T, int KEY, int VALUE, int L> struct FactoredQueryTiles {
    Panels<T, VALUE, L> dh;
    struct {
        Panels<T, VALUE, L> v;
        Factors factors[L / PANEL];
    } values[2];
    Panels<T, KEY, L> k[2];
    float2 column[L];  // of the positions on the diagonal
};

// Device memory of a head: what weights are made from. The factors are those of what comes past.
struct Weights {
    const float2 *exponent, *column;
    const Factors* factors;
    const float* rho;

    __device__ __forceinline__ Weights of_head(int head, int length) const {
        long long at = 1ll * head * length;
        return {exponent + at, column + at, factors + at / PANEL, rho + at};
    }
};

// As bring_rows of bring.cuh.
template <class T, int KEY, int VALUE, int L>
__device__ __forceinline__ void bring_rows(FactoredKeyTiles<T, KEY, VALUE, L>& shared, KeyBarriers& barriers,
                                           const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                           const TensorMap& dh, const Weights& weights, int tile, int count, int head) {
    auto& [own, rows, sums] = barriers;
    mbarrier_arrive_expect(&own, shared.k.BYTES + shared.v.BYTES + sizeof shared.exponent + sizeof shared.column);
    shared.k.load(k, 0, tile, head, &own);
    shared.v.load(v, 0, tile, head, &own);
    bulk_load(shared.exponent, weights.exponent + tile * L, sizeof shared.exponent, &own);
    bulk_load(shared.column, weights.column + tile * L, sizeof shared.column, &own);
    for (int n = 0; n < count; ++n) {
        auto turn = turn_of<PLACES>(n);
        int past = tile * (L / PANEL) + n;
        auto& place = shared.places[turn.place];
        Mbarrier* full = &rows.full[turn.place];
        rows.wait_empty(turn);
        mbarrier_arrive_expect(full, place.q.BYTES + place.dh.BYTES + sizeof place.factors + sizeof place.rho);
        place.q.load(q, 0, past, head, full);
        place.dh.load(dh, 0, past, head, full);
        bulk_load(&place.factors, weights.factors + past, sizeof place.factors, full);
        bulk_load(place.rho, weights.rho + past * PANEL, sizeof place.rho, full);
    }
}

// As bring_positions of bring.cuh.
template <class T, int KEY, int VALUE, int L>
__device__ __forceinline__ void bring_positions(FactoredQueryTiles<T, KEY, VALUE, L>& shared, QueryBarriers& barriers,
                                                Turn<2>& turn, const TensorMap& k, const TensorMap& v, const TensorMap& dh,
                                                const Weights& weights, int own_tile, int head) {
    auto& [own, values, keys] = barriers;
    mbarrier_arrive_expect(&own, shared.dh.BYTES + sizeof shared.column);
    shared.dh.load(dh, 0, own_tile, head, &own);
    bulk_load(shared.column, weights.column + own_tile * L, sizeof shared.column, &own);
    for (int tile = own_tile; tile >= 0; --tile, turn.advance()) {
        auto& place = shared.values[turn.place];
        values.wait_empty(turn);
        mbarrier_arrive_expect(&values.full[turn.place], place.v.BYTES + sizeof place.factors);
        place.v.load(v, 0, tile, head, &values.full[turn.place]);
        bulk_load(place.factors, weights.factors + tile * (L / PANEL), sizeof place.factors, &values.full[turn.place]);
        keys.wait_empty(turn);
        mbarrier_arrive_expect(&keys.full[turn.place], shared.k[0].BYTES);
        shared.k[turn.place].load(k, 0, tile, head, &keys.full[turn.place]);
    }
}

}  // namespace lab

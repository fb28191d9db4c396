// Weights of pairs that are not in one tile, without a power for each. Of 64 positions that end in e, and a row i behind
// them,
//
//   s P_ij = s exp(R_e - R_i) exp(x_j - R_e)
//
// R never falls, so that both factors are at most 1: where one of them is too small for a float, so is the weight. That
// of the row is one power for 64 positions, that of the position is the gates' launch's, once and for all rows.
#pragma once
#include "tiles.cuh"

namespace lab {

// What comes past with a tile of K, and what lies beside Q: the exponents of its own positions, for the diagonal.
template <class T, int KEY, int VALUE, int L> struct FactoredTiles {
    Panels<T, KEY, L> q;
    struct {
        Panels<T, KEY, L> k;
        Factors factors[L / PANEL];
    } keys[2];
    Panels<T, VALUE, L> v[2];
    float2 column[L];
};

// The producer's thread: Q with its exponents, then K with its factors, and V, from the diagonal back to the first tile.
template <class T, int KEY, int VALUE, int L>
__device__ __forceinline__ void bring(FactoredTiles<T, KEY, VALUE, L>& shared, Barriers& barriers, Turn<2>& turn,
                                      const TensorMap& q, const TensorMap& k, const TensorMap& v, const float2* column,
                                      const Factors* factors, const Part<VALUE>& part) {
    auto& [query, keys, values] = barriers;
    mbarrier_arrive_expect(&query, shared.q.BYTES + sizeof shared.column);
    shared.q.load(q, 0, part.tile, part.head, &query);
    bulk_load(shared.column, column + part.tile * L, sizeof shared.column, &query);
    for (int tile = part.tile; tile >= 0; --tile, turn.advance()) {
        auto& place = shared.keys[turn.place];
        keys.wait_empty(turn);
        mbarrier_arrive_expect(&keys.full[turn.place], place.k.BYTES + sizeof place.factors);
        place.k.load(k, 0, tile, part.head, &keys.full[turn.place]);
        bulk_load(place.factors, factors + tile * (L / PANEL), sizeof place.factors, &keys.full[turn.place]);
        values.wait_empty(turn);
        mbarrier_arrive_expect(&values.full[turn.place], shared.v[0].BYTES);
        shared.v[turn.place].load(v, part.value, tile, part.head, &values.full[turn.place]);
    }
}

}  // namespace lab

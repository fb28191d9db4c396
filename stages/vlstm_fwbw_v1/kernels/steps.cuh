// The products of each version: tiles of X and Z that are loaded whole, one after the other, as in
// `vlstm_fwbw_v0`; or their pieces, of CX columns, each on its way while the one before is multiplied.
#pragma once
#include "lab/ahead.cuh"
#include "lab/weighted.cuh"

namespace lab {

// What a block keeps in shared memory. CX = 0: no pieces.
template <int OWN, int PAST, int DH, int CX, class L> struct TilesOf {
    using type = Passing<OWN, PAST, DH, CX, L>;
};
template <int OWN, int PAST, int DH, class L> struct TilesOf<OWN, PAST, DH, 0, L> {
    using type = WeightedTiles<OWN, PAST, DH>;
};
template <int OWN, int PAST, int DH, int CX, class L>
using Tiles = typename TilesOf<OWN, PAST, DH, CX, L>::type;

// Of the rows from `first` up to `end`; the own ones are those of `rows` from r0 on. weigh(score, met,
// b0) gets what meet(b0) has loaded.
template <class L, class T, int OWN, int PAST, int DH, int CX, int RC, class Meet, class Weigh>
__device__ __forceinline__ void
products(float (&sum)[OWN / L::WI][RC], Passing<OWN, PAST, DH, CX, L> tiles, Matrix<const T> rows,
         int r0, Matrix<const T> X, Matrix<const T> Z, int first, int end, Meet meet, Weigh weigh) {
    products_ahead<L>(sum, tiles, rows, r0, X, Z, first, end, meet, weigh);
}
template <class L, class T, int OWN, int PAST, int DH, int RC, class Meet, class Weigh>
__device__ __forceinline__ void
products(float (&sum)[OWN / L::WI][RC], WeightedTiles<OWN, PAST, DH> tiles, Matrix<const T> rows,
         int r0, Matrix<const T> X, Matrix<const T> Z, int first, int end, Meet meet, Weigh weigh) {
    load_tile<OWN, DH, 16 / sizeof(T), L::THREADS>(tiles.own, rows, r0);
    weighted_products<L>(sum, tiles, X, Z, first, end,
                         [&](float (&score)[OWN / L::WI][PAST / L::WJ], int b0) {
                             weigh(score, meet(b0), b0);
                         });
}

}  // namespace lab

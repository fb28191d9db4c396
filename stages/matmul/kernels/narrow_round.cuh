// The last round of tiles, in narrower ones: as many of them as there are blocks, or a few less.
#pragma once
#include "lab/tile_order.cuh"

namespace lab {

// ANCHOR: narrow
// Of tiles with BN columns the last tiles % P are no full round. Where they lie in one stripe, they are the right end of it:
// in each row of tiles all columns from some tile on, in its first rows one tile less than in the others. Here these
// columns are shared out again, LAST a tile. Of a stripe with W for the tiles of full rounds:
//
//   W W W n n n n    whole tiles come down one column after the other: the first `less` rows have one more
//   W W W n n n n
//   W W n n n n n n
//   W W n n n n n n
template <class Order, int BN, int LAST> struct NarrowRound {
    static constexpr int HIGH = Order::STRIPE;
    Order order;
    int tiles, columns;
    int whole = tiles - tiles % int(gridDim.x);

    // A row of tiles, the first column, and the matrix; no tile where there are no such columns.
    struct Tile { int i, column, g; };

    __device__ __forceinline__ Tile at(int block) const {
        auto [i, j, g] = order.at(whole);
        int less = i % HIGH, first = i - less, rows = min(HIGH, order.down - first), from = j * BN;
        int tiles_less = less * max(0, (columns - from - BN + LAST - 1) / LAST);
        if (block < tiles_less) return {first + block % less, from + BN + block / less * LAST, g};
        block -= tiles_less, rows -= less;
        return {i + block % rows, from + block / rows * LAST, g};
    }
    __device__ __forceinline__ bool has(Tile tile) const { return whole < tiles && tile.column < columns; }
};
// ANCHOR_END: narrow

}  // namespace lab

// The order in which blocks that stay take the tiles of C.
#pragma once

namespace lab {

// Tiles of C, of `down` x `across` a matrix: stripes of HIGH tiles, down each column of a stripe, then the next column.
// As many tiles as there are blocks then lie in a square, as nearly as may be: they share rows of A and columns
// of B, which the L2 cache has for all but the first.
// SNAKE: each stripe but the last one goes the other way than the next, so that it ends where the next begins.
// ANCHOR: order
template <int HIGH, bool SNAKE = false> struct TileOrder {
    static constexpr int STRIPE = HIGH;
    int down, across;

    struct Tile { int i, j, g; };

    __device__ __forceinline__ Tile at(int n) const {
        int g = n / (down * across), of_matrix = n % (down * across);
        int stripe = of_matrix / (HIGH * across), rest = of_matrix % (HIGH * across);
        int high = min(HIGH, down - stripe * HIGH);  // the last may be less
        int column = rest / high;
        if (SNAKE && ((down - 1) / HIGH - stripe) % 2 == 1) column = across - 1 - column;
        return {stripe * HIGH + rest % high, column, g};
    }
};
// ANCHOR_END: order

}  // namespace lab

// Where a training step stands, and what a gradient does to its parameter.
#pragma once
#include "lab/progress.cuh"
#include "lab/tile.cuh"

namespace lab {

// What becomes of a gradient: it is kept, or the parameter moves by −lr times it.
enum Use { KEEP, DESCEND };

// Where the step stands.
struct Step {
    const long long* counts;
    const double *rates, *losses;
    __device__ __forceinline__ long long number() const { return counts[STEP]; }
    __device__ __forceinline__ float rate() const { return float(rates[number()]); }
    // Whether parameters stay as they are, for a loss that is no number.
    __device__ __forceinline__ bool stops() const {
        return counts[STOPPED] || !finite(losses[number()]);
    }
};

// Pairs of step `number`: the last one may have fewer than B.
__device__ __forceinline__ int live_pairs(long long number, int pairs, int B) {
    long long left = pairs - number * B;
    return left < B ? int(left) : B;
}

// N neighbouring parameters, or what of them is inside: as they are now, and as a gradient leaves them.
// What comes from device memory for a whole tile is to be on its way at once: parameters are all loaded
// before the first of them moves.
template <Use USE, int PACK>
__device__ __forceinline__ void before(float (&now)[4], Matrix<float> p, int r, int c) {
    if constexpr (USE == DESCEND) {
        if constexpr (PACK == 4) {
            p.template load<4>(now, r, c);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) now[i] = p.cell(r, c + i);
        }
    }
}
template <Use USE, int PACK>
__device__ __forceinline__ void after(float (&now)[4], Matrix<float> p, int r, int c,
                                      const float (&g)[4], float lr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) now[i] = USE == DESCEND ? now[i] - lr * g[i] : g[i];
    p.template store<PACK == 4>(now, r, c);
}
template <Use USE, int PACK, class Tile>
__device__ __forceinline__ void apply(Matrix<float> p, int m0, int n0, const Tile& tile, float lr) {
#pragma unroll
    for (int j = 0; j < Tile::FOURS; ++j) {
        float now[Tile::TM][4];
        int m = m0 + tile.row(), n = n0 + tile.column(j);
#pragma unroll
        for (int i = 0; i < Tile::TM; ++i) before<USE, PACK>(now[i], p, m + i, n);
#pragma unroll
        for (int i = 0; i < Tile::TM; ++i) after<USE, PACK>(now[i], p, m + i, n, tile.sum[i][j], lr);
    }
}
template <Use USE> __device__ __forceinline__ void apply(float& p, float g, float lr) {
    p = USE == DESCEND ? p - lr * g : g;
}

}  // namespace lab

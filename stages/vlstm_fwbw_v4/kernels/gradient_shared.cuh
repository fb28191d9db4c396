// What the roles of a walk for one gradient (gradient.cuh) share: its shape, and the block's shared memory.
#pragma once
#include "lab/vlstm/powers.cuh"
#include "lab/vlstm/roles.cuh"

namespace lab {

enum class Gradient { Q, K, V };

// Warpgroups: PARTS of them share the columns of x and y, KEY each; each PARTS have 64 columns of z, a panel of COLUMNS.
template <class Type, int KEYS, int SHARES, int PANELS_OUT, int CHUNKS> struct Shape {
    using T = Type;
    static constexpr int KEY = KEYS, PARTS = SHARES, COLUMNS = PANELS_OUT, PLACES = CHUNKS;
    static constexpr int GROUPS = PARTS * COLUMNS, THREADS = (GROUPS + 2) * 128, WIDTH = COLUMNS * PANEL;
    // Registers of a thread: those of all warpgroups together are 512 at most.
    static constexpr int STATE = 192, SCORES = 96, SCAN = 32;
};

// What one turn of the loop takes.
template <class W> struct alignas(1024) GradientPlace {
    using T = typename W::T;
    static constexpr int PANELS = W::PARTS * W::KEY / PANEL, Y_ROWS = CHUNK;
    T x[PANELS][CHUNK * PANEL], y[PANELS][CHUNK * PANEL], z[W::COLUMNS][CHUNK * PANEL];
    Weights weights;
};

// What the rows of two chunks' pairs of f16 are multiplied by, so that halves hold them. Others need no such thing.
template <class T> struct Powers {};
template <> struct Powers<__half> { float powers[2][CHUNK]; };

template <class W> struct GradientTiles {
    using T = typename W::T;
    GradientPlace<W> places[W::PLACES];
    T pairs[2][CHUNK * PANEL];
    T out[W::COLUMNS][CHUNK * PANEL];    // rounded
    T other[W::COLUMNS][CHUNK * PANEL];  // what its rows are multiplied by, those of q or k
    float dots[W::COLUMNS][4][CHUNK];    // with that, of 16 columns each
    float4 room[W::PARTS > 1 ? 2 * 2 * 4 * 128 : 1];  // for what parts send each other, in turn to two places
};

template <class W> struct GradientShared : GradientTiles<W>, Powers<typename W::T> {
    // Of the pairs at a place; nobody reads them where there are none.
    __device__ __forceinline__ const float* powers_of(int place) const {
        if constexpr (is_f16<typename W::T>) return this->powers[place];
        else return nullptr;
    }
};

}  // namespace lab

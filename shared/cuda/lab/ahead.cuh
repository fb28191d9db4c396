// Two products of tiles with weights between them, as in lab/weighted.cuh, the next rows on their
// way while the present ones are multiplied:
//
//   sum_ac += Σ_b w_ab Z_bc        w_ab = weigh(Σ_c own_ac X_bc)
//
// X and Z have an array each: a tile of Z arrives under the product with X, the next tile of X under
// the product with Z. Two barriers a tile, where weighted.cuh has four.
//
// The threads lie in WI rows and TJ columns. What of a product is a thread's own, and how tiles lie:
// lab/products.cuh.
#pragma once
#include "lab/async.cuh"
#include "lab/products.cuh"
#include "lab/reduce.cuh"

// The block's shared memory: its own rows, those that come past, the weights between them.
template <int OWN, int PAST, int DH> struct AheadTiles {
    static_assert(((OWN + 2 * PAST) * ROW<DH> + OWN * SCORES_ROW<PAST>) * 4 <= 99 * 1024,
                  "an RTX 4060 has 99 KB of shared memory for a block: lower OWN or PAST");
    float (*own)[ROW<DH>];
    float (*x)[ROW<DH>];
    float (*z)[ROW<DH>];
    float (*weights)[SCORES_ROW<PAST>];

    __device__ __forceinline__ explicit AheadTiles(float* memory)
        : own(reinterpret_cast<float(*)[ROW<DH>]>(memory)), x(own + OWN), z(x + PAST),
          weights(reinterpret_cast<float(*)[SCORES_ROW<PAST>]>(z + PAST)) {}
};

// ANCHOR: arriving
// ROWS rows from r0 on, on their way into a tile: zeros past the last row and the last column.
// Floats are copied past the registers. What must be converted waits in them, 16 bytes a pack.
template <class T, int ROWS, int DH, int WI> struct Arriving {
    static constexpr int THREADS = WI * TJ, PACK = 16 / sizeof(T);
    static constexpr int PACKS = ROWS * DH / (THREADS * PACK);
    static_assert(ROWS * DH % (THREADS * PACK) == 0,
                  "each thread loads equally many packs: change TQ, TKV, DH or WI");
    static constexpr bool AS_IT_IS = sizeof(T) == sizeof(float);
    float (*tile)[ROW<DH>];
    Raw<T> raw[AS_IT_IS ? 1 : PACKS];

    __device__ __forceinline__ void fetch(float (*to)[ROW<DH>], Matrix<const T> from, int r0) {
        tile = to;
#pragma unroll
        for (int n = 0; n < PACKS; ++n) {
            int e = (n * THREADS + threadIdx.x) * PACK, r = r0 + e / DH, c = e % DH;
            bool inside = from.inside(r, c);
            if constexpr (AS_IT_IS)
                async_copy_or_zero<16>(&tile[e / DH][c], from.at(r, c), inside);
            else
                raw[n] = inside ? load_raw(from.at(r, c)) : Raw<T>{};
        }
        if constexpr (AS_IT_IS) async_commit();
    }

    // This thread's part of the tile is there. Others see it behind a barrier.
    __device__ __forceinline__ void land() {
        if constexpr (AS_IT_IS) {
            async_wait<0>();
        } else {
#pragma unroll
            for (int n = 0; n < PACKS; ++n) {
                int e = (n * THREADS + threadIdx.x) * PACK;
                store_cells(&tile[e / DH][e % DH], in_math(raw[n]).v);
            }
        }
    }
};
// ANCHOR_END: arriving

// The rows from `first` up to `end`. meet(b0) is called before the products with the tile from b0,
// and may load what weigh(score, met, b0) needs to turn a thread's products into weights; what
// lies past the end must weigh zero. The own rows are on their way.
template <class T, int OWN, int PAST, int DH, int WI, int RC, class Meet, class Weigh>
__device__ __forceinline__ void
products_ahead(float (&sum)[OWN / WI][RC], AheadTiles<OWN, PAST, DH> tiles,
               Arriving<T, OWN, DH, WI>& own, Matrix<const T> X, Matrix<const T> Z, int first,
               int end, Meet meet, Weigh weigh) {
    static_assert(OWN % WI == 0 && PAST % TJ == 0, "rows in WIs, past ones in 16s");
    constexpr int RI = OWN / WI, RJ = PAST / TJ;
    int ti = threadIdx.x / TJ, tj = threadIdx.x % TJ;
    Arriving<T, PAST, DH, WI> next;
    next.fetch(tiles.x, X, first);
    own.land();
    next.land();
    // ANCHOR: loop
    for (int b0 = first; b0 < end; b0 += PAST) {
        auto met = meet(b0);
        __syncthreads();  // X and own rows are there; Z and weights of the tile before are read
        next.fetch(tiles.z, Z, b0);
        float score[RI][RJ] = {};
        rows_times_rows<DH, WI>(score, tiles.own, tiles.x, X.columns);
        weigh(score, met, b0);
#pragma unroll
        for (int a = 0; a < RI; ++a)
#pragma unroll
            for (int b = 0; b < RJ; ++b) tiles.weights[ti + a * WI][tj + b * TJ] = score[a][b];
        next.land();
        __syncthreads();  // Z and weights are there; X is read
        bool more = b0 + PAST < end;
        if (more) next.fetch(tiles.x, X, b0 + PAST);
        scores_times_rows<PAST, DH, WI>(sum, tiles.weights, tiles.z);
        if (more) next.land();
    }
    // ANCHOR_END: loop
}

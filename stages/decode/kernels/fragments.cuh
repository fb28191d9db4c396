// A step of a warp that walks down its columns of W by tensor cores: loads, products and sums of TILES tiles of eight rows of W.
//
// A fragment has 16 rows of W and 8 of x. Here two column groups share it: fragment rows and columns 2 s + p are row s of W, and of x, in
// group p. So a load is two whole lines of 128 bytes of four rows... and of the 16 x 8 sums those of different groups are nobody's.
#pragma once
#include "columns.cuh"
#include "mma_rows.cuh"

namespace lab {

constexpr int ACROSS = 8;  // lanes of a row: 128 bytes

// Where a lane is in a fragment: column g = 2 sub + group, lanes t of it.
struct LanePlace {
    int g, t, sub;
    __device__ __forceinline__ LanePlace() : g(threadIdx.x % 32 / 4), t(threadIdx.x % 4), sub(threadIdx.x % 32 / ACROSS) {}
};

// A lane's packs of a tile: of an even row of it, and of the odd one behind.
struct Rows2 {
    uint4 even, odd;
};

// Asks for a step. What is not there is zero: it meets other rows' numbers in no sum, and NaN in none.
template <class W, class Own, int TILES>
__device__ __forceinline__ void load_tiles(Rows2 (&raw)[TILES], Loads<W, Own>& ahead, const Own& own, int sub) {
    bool inside = ahead.place.k < own.end;
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
        int row = ahead.place.row + 8 * j + 2 * sub;
        const W* at = ahead.at + (4 * j + sub) * own.pair;
        raw[j].even = inside && row < own.rows ? load_once(at) : uint4{0, 0, 0, 0};
        raw[j].odd = inside && row + 1 < own.rows ? load_once(at + own.odd) : uint4{0, 0, 0, 0};
    }
    ahead.step(own);
}

// ANCHOR: multiply
// sum += W zᵀ over a step. `z` is a lane's columns of its row of each four rows of z.
template <class T, class W, int TILES, int FOURS>
__device__ __forceinline__ void multiply_tiles(float (&sum)[TILES][FOURS][4], const Rows2 (&raw)[TILES], const T* const (&z)[FOURS],
                                               int k, bool inside) {
#pragma unroll
    for (int q = 0; q < OF_PACK<W>; q += 8) {
        uint4 b[FOURS];
#pragma unroll
        for (int n = 0; n < FOURS; ++n) b[n] = inside ? *reinterpret_cast<const uint4*>(z[n] + k + q) : uint4{0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < TILES; ++j) {
            unsigned even[4] = {raw[j].even.x, raw[j].even.y, raw[j].even.z, raw[j].even.w};
            unsigned odd[4] = {raw[j].odd.x, raw[j].odd.y, raw[j].odd.z, raw[j].odd.w};
            multiply_eight<T, W>(sum[j], even, odd, q, [&](int n) { return b[n]; });
        }
    }
}
// ANCHOR_END: multiply

// ANCHOR: put
// Of a step's rows, the sums of this warp's slice. A lane has group 0 of its even row, and group 1 of the odd one, or the other way round: its
// neighbour in the other group has the rest. Lane (g, t) ends with row g of a tile, and row t of four rows of z.
template <int TILES, int FOURS, int ROWS, class Own>
__device__ __forceinline__ void put_tiles(const BlockSums<ROWS>& sums, const Own& own, int first, float (&sum)[TILES][FOURS][4],
                                          const LanePlace& lane, int R) {
    bool odd = lane.g % 2;
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int n = 0; n < FOURS; ++n) {
            float(&c)[4] = sum[j][n];
            float given = odd ? c[1] : c[2], kept = odd ? c[3] : c[0];
            float all = kept + __shfl_xor_sync(0xffffffffu, given, 4);
            int row = first + 8 * j + lane.g, r = 4 * n + lane.t;
            if (row < own.rows && r < R) sums.sums[own.slice * sums.room + row * ROWS + r] = all;
            c[0] = c[1] = c[2] = c[3] = 0;
        }
}
// ANCHOR_END: put

}  // namespace lab

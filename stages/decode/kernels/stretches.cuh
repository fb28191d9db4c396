// Rows of x as bytes whose unit is that of a stretch: of so many neighbouring columns of a row. So whoever makes these columns can write their bytes.
#pragma once
#include "byte_step.cuh"
#include "units.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

// ANCHOR: add_stretch
// both += unit (256 hi + lo): the sums of a stretch, and its units, one for each row of x. Sums of up to 256 products of bytes are less
// than 2²², so a sum added to the float 1.5 · 2²³ becomes its last digits, exactly, and 256 hi + lo is rounded once. No conversion.
template <int ROWS>
__device__ __forceinline__ void add_stretch(float (&both)[ROWS / 2], const int (&sum)[ROWS], const float* units) {
    constexpr int BITS = 0x4b400000;
    constexpr float HALF = 12582912.0f;
#pragma unroll
    for (int i = 0; i < ROWS / 2; i += 4) {
        float2 unit = *reinterpret_cast<const float2*>(units + i * 2 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int c = i; c < i + 4; ++c) {
            float high = __int_as_float(computed_here(sum[c]) + BITS), low = __int_as_float(computed_here(sum[ROWS / 2 + c]) + BITS);
            both[c] = fmaf(c % 2 ? unit.y : unit.x, fmaf(256.0f, high, -257.0f * HALF) + low, both[c]);
        }
    }
}
// ANCHOR_END: add_stretch

// Bytes of y for the product that reads it, a stretch a tile: of y, or of y w before an RMS norm.
template <class T> struct Bytes {
    signed char* planes;    // 2 x R x N
    float *units, *squares;  // tiles x R
    const float* norm;      // w of this tile, in shared memory; none where y is not normed
};

// This block's rows of the tile of y, and their bytes: a warp a row.
template <int ROWS, int GROUPS, class T>
__device__ __forceinline__ void end_as_bytes(const TileSums<ROWS, GROUPS>& sums, const Columns<T>& to,
                                             const Factors<signed char, ROWS, GROUPS>& factors, const T* residual, int gated,
                                             const Bytes<T>& bytes) {
    constexpr int M = 64 * GROUPS, WARPS = MULTIPLIERS<GROUPS> / 32, LOTS = (M + 127) / 128;
    const Stand& stand = sums.stand;
    int wide = gated ? M / 2 : M, lane = threadIdx.x % 32, R = to.R, N = to.N;
    for (int r = stand.part * WARPS + threadIdx.x / 32; r < R; r += stand.parts * WARPS) {
        float z[LOTS][4] = {}, largest = 0, squares = 0;
#pragma unroll
        for (int lot = 0; lot < LOTS; ++lot) {
            int i = lot * 128 + lane * 4, n = stand.tile * wide + i;
            if (i >= wide || n >= N) continue;
            sums.cells(z[lot], factors, residual, gated, r, i, n, N);
            to.store_four(r, n, z[lot]);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                float y = to_math(from_math<T>(z[lot][c]));
                squares += y * y;
                z[lot][c] = bytes.norm ? y * bytes.norm[i + c] : y;
                largest = Larger{}(largest, fabsf(z[lot][c]));
            }
        }
        largest = warp_reduce(largest, Larger{}), squares = warp_reduce(squares, Add{});
        float inverse = largest > 0 ? 1.0f / largest : 0.0f;
#pragma unroll
        for (int lot = 0; lot < LOTS; ++lot) {
            int i = lot * 128 + lane * 4, n = stand.tile * wide + i;
            if (i >= wide || n >= N) continue;
            unsigned high[1], low[1];
            split_units<4>(high, low, z[lot], inverse);
            long long cell = 1ll * r * N + n;
            *reinterpret_cast<unsigned*>(bytes.planes + cell) = high[0];
            *reinterpret_cast<unsigned*>(bytes.planes + 1ll * R * N + cell) = low[0];
        }
        if (lane > 0) continue;
        bytes.units[stand.tile * R + r] = largest / MOST_UNITS;
        bytes.squares[stand.tile * R + r] = squares;
    }
}

}  // namespace lab
#endif

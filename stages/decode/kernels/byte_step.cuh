// A step of W and of both planes of x in shared memory, and its products of bytes.
#pragma once
#include "wgmma_rows.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

// A step whose columns of x are two planes of bytes, 128 columns of each.
template <class T, int ROWS, int GROUPS> struct ByteStep : Step<T, signed char, ROWS, GROUPS> {
    using Base = Step<T, signed char, ROWS, GROUPS>;
    using Base::place;

    // sum = or += the products of this warpgroup's rows of W by COLUMNS columns, from column k of the step on: those of the upper bytes and
    // behind them those of the lower. One group of wgmma, which goes on.
    template <int COLUMNS = SPAN> __device__ __forceinline__ void multiply(int (&sum)[ROWS], bool adds, int k = 0) const {
        const unsigned char* rows = place + threadIdx.x / 128 * 64 * SPAN;
        wgmma_fence();
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 32)
            wgmma_bytes<2 * ROWS>(sum, advance(k_major<SPAN>(rows, 8 * SPAN), k + c),
                                  advance(k_major<SPAN>(place + Base::OF_WEIGHTS, 8 * SPAN), k + c), adds || c > 0);
        wgmma_commit();
    }
};

// Bytes of shared memory of so many places, in whose room the sums lie at the end.
template <class T, int ROWS, int GROUPS, int PLACES>
constexpr int byte_places = PLACES * ByteStep<T, ROWS, GROUPS>::BYTES > TileSums<ROWS, GROUPS>::BYTES
                                ? PLACES * ByteStep<T, ROWS, GROUPS>::BYTES
                                : TileSums<ROWS, GROUPS>::BYTES;

}  // namespace lab
#endif

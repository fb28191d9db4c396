// Sums of all that comes before, over the threads of a block.
#pragma once

namespace lab {

// Of a one-dimensional block of THREADS, thread t gets v_0 + … + v_t, and each the sum of all in
// `total`. The order of the additions is always the same.
template <int THREADS, class M> __device__ __forceinline__ M block_scan(M v, M& total) {
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps, at most 32 of them");
    __shared__ M of_warp[THREADS / 32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int d = 1; d < 32; d *= 2) {
        M earlier = __shfl_up_sync(0xffffffffu, v, d);
        if (lane >= d) v = earlier + v;
    }
    if (lane == 31) of_warp[warp] = v;
    __syncthreads();  // the sums of all warps are written
    M before = 0;
    total = 0;
    for (int w = 0; w < THREADS / 32; ++w) {
        if (w == warp) before = total;
        total += of_warp[w];
    }
    __syncthreads();  // nobody reads the sums any more: the next call may write them
    return before + v;
}

}  // namespace lab

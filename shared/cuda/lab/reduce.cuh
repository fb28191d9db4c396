// Reductions over the lanes of a warp and the threads of a block.
#pragma once

namespace lab {

struct Add {
    template <class M> __device__ __forceinline__ M operator()(M a, M b) const { return a + b; }
};
struct Max {
    template <class M> __device__ __forceinline__ M operator()(M a, M b) const { return max(a, b); }
};

// Every lane gets the result, of its warp or of LANES neighbours. A butterfly: after step d, lanes
// that differ in bit d agree.
template <int LANES = 32, class M, class Op> __device__ __forceinline__ M warp_reduce(M v, Op op) {
    for (int d = LANES / 2; d > 0; d /= 2) v = op(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}

// Every thread of a one-dimensional block of THREADS gets the result.
template <int THREADS, class M, class Op>
__device__ __forceinline__ M block_reduce(M v, Op op, M neutral) {
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps, at most 32 of them");
    __shared__ M partial[32];
    v = warp_reduce(v, op);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
    __syncthreads();  // the partials of all warps are written
    unsigned lane = threadIdx.x % 32;
    v = warp_reduce(lane < THREADS / 32 ? partial[lane] : neutral, op);
    __syncthreads();  // nobody reads the partials any more: the next call may write them
    return v;
}

}  // namespace lab

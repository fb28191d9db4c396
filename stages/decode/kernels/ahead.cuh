// What a product asks for ahead of the launches behind it, when its own last weights are on their way: it comes to the L2 cache while the
// last sums meet and the next blocks begin. Nobody waits for it, and no result depends on it.
#pragma once
#include "lab/ptx/prefetch.cuh"

namespace lab {

// A warp's part of the bytes that its block asks for.
template <int WARPS> __device__ __forceinline__ void ask_part(const void* from, int bytes) {
    int warp = threadIdx.x / 32, each = ((bytes + WARPS - 1) / WARPS + 127) / 128 * 128, own = min(each, bytes - warp * each);
    if (threadIdx.x % 32 == 0 && own > 0) prefetch_bulk(static_cast<const char*>(from) + warp * each, own);
}

// Of `next`, the weights of the next product, `bytes` from the beginning of each block's share of `share` elements; the same of a second half,
// if there is one, `half` elements on. Of `state`, whose beginning the next launch reads, `state_bytes` for each block.
template <int WARPS, class W>
__device__ __forceinline__ void ask_ahead(const W* next, long long half, int share, int bytes, const float* state, int state_bytes) {
    const W* first = next + 1ll * blockIdx.x * share;
    ask_part<WARPS>(reinterpret_cast<const char*>(state) + 1ll * blockIdx.x * state_bytes, state_bytes);
    ask_part<WARPS>(first, bytes);
    if (half > 0) ask_part<WARPS>(first + half, bytes);
}

}  // namespace lab

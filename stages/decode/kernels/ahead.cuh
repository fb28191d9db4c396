// What a product asks for ahead of the launches behind it, when its own last weights are on their way: it comes to the L2 cache while the
// last sums meet and the next blocks begin. Nobody waits for it, and no result depends on it.
#pragma once
#include "lab/ptx/prefetch.cuh"

namespace lab {

// One part of the bytes that a block asks for.
__device__ __forceinline__ void ask_part(int part, int parts, const void* from, int bytes) {
    int each = ((bytes + parts - 1) / parts + 127) / 128 * 128, own = min(each, bytes - part * each);
    if (own > 0) prefetch_bulk(static_cast<const char*>(from) + part * each, own);
}

// A thread's part of `state`, whose beginning the next launch reads, `bytes` for each block.
__device__ __forceinline__ void ask_state(int part, int parts, const float* state, int bytes) {
    ask_part(part, parts, reinterpret_cast<const char*>(state) + 1ll * blockIdx.x * bytes, bytes);
}

// The same, and of `next`, the weights of the next product, `bytes` from the beginning of each block's share of `share` elements; the same of a second
// half, if there is one, `half` elements on.
template <class W>
__device__ __forceinline__ void ask_ahead(int part, int parts, const W* next, long long half, int share, int bytes, const float* state,
                                          int state_bytes) {
    const W* first = next + 1ll * blockIdx.x * share;
    ask_state(part, parts, state, state_bytes);
    ask_part(part, parts, first, bytes);
    if (half > 0) ask_part(part, parts, first + half, bytes);
}

}  // namespace lab

// What says which tiles are there: of Q, which is a block's own, and of K and V that come past, two places each.
#pragma once
#include "lab/vlstm/panels.cuh"
#include "pairs.cuh"

namespace lab {

// Q, which comes once, and the rings of K and of V, which every warp leaves for itself.
struct Barriers {
    Mbarrier query;
    Ring<2> keys, values;

    // One thread, before a barrier.
    __device__ __forceinline__ void init(int warps) {
        mbarrier_init(&query, 1);
        keys.init(warps);
        values.init(warps);
    }
};

}  // namespace lab

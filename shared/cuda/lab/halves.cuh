// Two halves in a word, as fragments and rows in memory have them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "lab/ptx/mma.cuh"

namespace lab {

// The first in the lower part.
template <class T> __device__ __forceinline__ unsigned two_halves(float first, float second) {
    unsigned word;
    if constexpr (is_f16<T>) {
        __half2 two = __floats2half2_rn(first, second);
        memcpy(&word, &two, sizeof word);
    } else {
        __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
        memcpy(&word, &two, sizeof word);
    }
    return word;
}

}  // namespace lab

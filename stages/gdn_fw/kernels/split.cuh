// Products of f32 on tensor cores, by numbers of TF32.
#pragma once
#include "lab/ptx/cvt.cuh"
#include "lab/ptx/mma.cuh"

namespace lab {

// ANCHOR: split
// A number as two of TF32. What cvt leaves in the 13 bits that a TF32 has not is nobody's promise.
struct Split {
    unsigned high, low;
    __device__ __forceinline__ explicit Split(float x) {
        high = to_tf32(__float_as_uint(x)) & 0xffffe000u;
        low = to_tf32(__float_as_uint(x - __uint_as_float(high)));
    }
};
// ANCHOR_END: split

}  // namespace lab

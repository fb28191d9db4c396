// Powers of two that keep numbers within what f16 holds: from 2^-14 on with all of its digits, to 65504. Multiplied by one,
// a float keeps its own digits.
#pragma once
#include "lab/scalar.cuh"

namespace lab {

// What makes numbers of which the largest is this at most 2^14, and the largest at least 2^13; 2^100 at most. 1 for zeros, ∞
// and NaN.
__device__ __forceinline__ float power_for_f16(float largest) {
    int exponent = __float_as_int(largest) >> 23;
    return exponent == 0 || exponent >= 255 ? 1 : __int_as_float(min(2 * 127 + 13 - exponent, 127 + 100) << 23);
}

// 1 / power, of a power of two from 2^-126 to 2^126.
__device__ __forceinline__ float inverse_of_power(float power) { return __int_as_float((2 * 127 << 23) - __float_as_int(power)); }

// U, where the gradient of a state is counted in 1 / U: what makes the largest a = s β_i / N_i of a chunk 1/2 to 1, so that
// halves hold what the chunk adds, and a z of any z. Within 2^-80 and 2^80; 1 for zeros, ∞ and NaN.
__device__ __forceinline__ float unit_of(float largest) {
    int exponent = __float_as_int(largest) >> 23;
    return exponent == 0 || exponent >= 255 ? 1 : __int_as_float((127 + min(max(126 - exponent, -80), 80)) << 23);
}

}  // namespace lab

// The power of two that brings a column of C into the range of its type.
#pragma once

namespace lab {

// ANCHOR: power
// Of a column whose largest magnitude this is: times the power it is 2^14 to 2^15, in the range of every type. 1 where
// there is nothing to scale (0), and where nothing helps (infinity). Products with a power of two are exact.
__device__ __forceinline__ float column_power(float largest) {
    int exponent = __float_as_int(largest) >> 23 & 255;  // 127 more than that of two
    if (exponent == 0 || exponent == 255) return 1;
    return __int_as_float((127 + 14 + 127 - max(exponent, 40)) << 23);  // so that one over the power is normal
}
// ANCHOR_END: power

}  // namespace lab

// Rows of x as whole numbers of 16 bits, in two planes of bytes: 256 high + low, in units of a row's largest number / 32512.
#pragma once
#include "lab/pack.cuh"

namespace lab {

// ANCHOR: units
constexpr float MOST_UNITS = 127.0f * 256;  // of a row's largest number: its upper byte is 127

// The larger one, or NaN where either is; fmaxf would drop it.
struct Larger {
    __device__ __forceinline__ float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

// The nearest whole number of one below 2²²: the last digits of 1.5 · 2²³ and it. No conversion, which has a sixteenth of the throughput.
__device__ __forceinline__ int nearest(float v) { return __float_as_int(v + 12582912.0f) - 0x4b400000; }

__device__ __forceinline__ float inverse_of(float largest) { return largest > 0 ? 1.0f / largest : 0.0f; }

// Eight numbers, each by the inverse of the largest, to both planes.
template <class T>
__device__ __forceinline__ void store_units(signed char* high, signed char* low, const Pack<T>& v, float inverse) {
    static_assert(Pack<T>::N == 8, "two words of bytes a pack: of halves");
    unsigned of_high[2] = {}, of_low[2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        int units = nearest(v.v[i] * inverse * MOST_UNITS), upper = (units + 128) >> 8;
        of_high[i / 4] |= (upper & 0xff) << i % 4 * 8;
        of_low[i / 4] |= (units & 0xff) << i % 4 * 8;
    }
    *reinterpret_cast<uint2*>(high) = {of_high[0], of_high[1]};
    *reinterpret_cast<uint2*>(low) = {of_low[0], of_low[1]};
}
// ANCHOR_END: units

}  // namespace lab

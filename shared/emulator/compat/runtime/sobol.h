// Sobol's sequence by the first direction numbers of Joe and Kuo, and what bits become.
#pragma once
#include <cmath>
#include <cstdint>

namespace emu {
constexpr unsigned sobol_dimensions = 10;
// Dimensions beyond the last begin again at the first.
inline void sobol_vectors(unsigned dimension, uint32_t* to) {
    static const unsigned degree[] = {0, 1, 2, 3, 3, 4, 4, 5, 5, 5};
    static const unsigned polynomial[] = {0, 0, 1, 1, 2, 1, 4, 2, 4, 7};
    static const unsigned first[][5] = {{},        {1},          {1, 3},       {1, 3, 1},
                                        {1, 1, 1}, {1, 1, 3, 3}, {1, 3, 5, 13}, {1, 1, 5, 5, 17},
                                        {1, 1, 5, 5, 5}, {1, 1, 7, 11, 19}};
    unsigned d = dimension % sobol_dimensions, s = degree[d];
    for (unsigned i = 0; i < 32; ++i) {
        if (i < s || s == 0) {
            to[i] = (s == 0 ? 1u : first[d][i]) << (31 - i);
            continue;
        }
        to[i] = to[i - s] ^ (to[i - s] >> s);
        for (unsigned k = 1; k < s; ++k)
            if (polynomial[d] >> (s - 1 - k) & 1) to[i] ^= to[i - k];
    }
}
// The n-th number.
__forceinline__ uint32_t sobol(const uint32_t* vectors, uint32_t n) {
    uint32_t gray = n ^ (n >> 1), x = 0;
    for (unsigned i = 0; i < 32; ++i)
        if (gray >> i & 1) x ^= vectors[i];
    return x;
}
// Above 0, and up to 1.
__forceinline__ float uniform_f32(uint64_t bits) { return float((bits >> 40) + 1) * 0x1p-24f; }
__forceinline__ double uniform_f64(uint64_t bits) { return double((bits >> 11) + 1) * 0x1p-53; }
// By Acklam's approximation of the inverse distribution, whose relative error is below 2e-9.
__forceinline__ double normal(uint64_t bits) {
    constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02,
                            1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
    constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                            6.680131188771972e+01, -1.328068155288572e+01};
    constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                            -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
    constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                            3.754408661907416e+00};
    double p = (double(bits >> 12) + 0.5) * 0x1p-52, low = 0.02425;
    if (p >= low && p <= 1 - low) {
        double q = p - 0.5, r = q * q;
        return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
               (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
    }
    double q = std::sqrt(-2 * std::log(p < low ? p : 1 - p));
    double x = (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
               ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
    return p < low ? x : -x;
}
}  // namespace emu

// Conversions between f32 and the two 16-bit formats, round to nearest even, and a macro that
// builds CUDA's types on them. Every operation is done in f32 and rounded once; the product of two
// 11-bit (8-bit) significands is exact in f32, so that is the correctly rounded result.
#pragma once
#include "emulator.h"

namespace emu {
__forceinline__ uint32_t f32_bits(float f) { return uint32_t(to_bits(f)); }
__forceinline__ float bits_f32(uint32_t b) { return from_bits<float>(b); }

// CUDA's canonical NaN in 16 bits. But in kernels compiled for the checks a local variable that never got a value holds 0xFE in each
// byte, or as a float 0x7FFEFEFE (see prepare_for_checks of lab-kernel-build): it stays what the checks know it by.
__forceinline__ uint16_t narrow_nan(uint32_t magnitude) {
#ifdef __SANITIZE_THREAD__
    if (magnitude == 0x7ffefefeu) return 0xfefe;
#endif
    (void)magnitude;
    return 0x7fff;
}
// The same for an f16 that was an f32 in between. A bf16 of these bits would be a number: so none comes of what may be a NaN of the program's.
__forceinline__ uint16_t narrow_nan_to_f16(uint32_t magnitude) {
    return narrow_nan(magnitude == 0x7fdfc000u ? 0x7ffefefeu : magnitude);
}
__forceinline__ uint16_t f32_to_f16(float f) {
    uint32_t x = f32_bits(f), sign = (x >> 16) & 0x8000u;
    x &= 0x7fffffffu;
    if (x > 0x7f800000u) return narrow_nan_to_f16(x);
    if (x >= 0x477ff000u) return uint16_t(sign | 0x7c00);  // 65520 and above round to infinity
    if (x < 0x38800000u)  // below 2^-14: adding 0.5 rounds to a multiple of 2^-24, f16's last place
        return uint16_t(sign | (f32_bits(bits_f32(x) + 0.5f) - 0x3f000000u));
    uint32_t odd = (x >> 13) & 1;
    return uint16_t(sign | ((x - (112u << 23) + 0xfffu + odd) >> 13));
}
__forceinline__ float f16_to_f32(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000u) << 16, x = h & 0x7fffu;
    if (x >= 0x7c00u) return bits_f32(sign | 0x7f800000u | ((x & 0x3ffu) << 13));
    if (x < 0x400u) return bits_f32(sign | f32_bits(float(x) * 0x1p-24f));
    return bits_f32(sign | ((x << 13) + (112u << 23)));
}
__forceinline__ uint16_t f32_to_bf16(float f) {
    uint32_t x = f32_bits(f);
    if ((x & 0x7fffffffu) > 0x7f800000u) return narrow_nan(x & 0x7fffffffu);
    return uint16_t((x + 0x7fffu + ((x >> 16) & 1)) >> 16);
}
__forceinline__ float bf16_to_f32(uint16_t h) { return bits_f32(uint32_t(h) << 16); }

// f64 → f32 rounded to odd, so that rounding on to 16 bits rounds only once.
__forceinline__ float f64_to_f32_odd(double d) {
    float f = float(d);
    if (double(f) == d || d != d) return f;
    uint32_t x = f32_bits(f);
    if (::fabs(double(f)) > ::fabs(d)) --x;
    return bits_f32(x | 1);
}
// a·b + c rounded to odd in f64, for factors whose product is exact in f64.
__forceinline__ double fma_odd(double a, double b, double c) {
    double product = a * b, sum = product + c;
    double c_part = sum - product, error = (product - (sum - c_part)) + (c - c_part);  // TwoSum
    if (!(error < 0 || error > 0)) return sum;  // exact, or not finite
    uint64_t x = to_bits(sum);
    if ((error < 0) != (sum < 0)) --x;
    return from_bits<double>(x | 1);
}
}  // namespace emu

#define EMU_HALF_TYPE(H, H2, encode, decode)                                                      \
    struct H {                                                                                    \
        uint16_t __x;                                                                             \
        H() = default; /* trivial: a __shared__ array of it needs no constructor */               \
        __forceinline__ H(float f) : __x(encode(f)) {}                                            \
        __forceinline__ H(double d) : __x(encode(emu::f64_to_f32_odd(d))) {}                      \
        __forceinline__ H(int i) : H(double(i)) {}                                                \
        __forceinline__ operator float() const { return decode(__x); }                            \
        __forceinline__ H& operator+=(H o) { return *this = H(float(*this) + float(o)); }         \
        __forceinline__ H& operator-=(H o) { return *this = H(float(*this) - float(o)); }         \
        __forceinline__ H& operator*=(H o) { return *this = H(float(*this) * float(o)); }         \
        __forceinline__ H& operator/=(H o) { return *this = H(float(*this) / float(o)); }         \
        __forceinline__ H operator-() const {                                                     \
            H r;                                                                                  \
            r.__x = __x ^ 0x8000;                                                                 \
            return r;                                                                             \
        }                                                                                         \
    };                                                                                            \
    __forceinline__ H operator+(H a, H b) { return a += b; }                                      \
    __forceinline__ H operator-(H a, H b) { return a -= b; }                                      \
    __forceinline__ H operator*(H a, H b) { return a *= b; }                                      \
    __forceinline__ H operator/(H a, H b) { return a /= b; }                                      \
    __forceinline__ bool operator<(H a, H b) { return float(a) < float(b); }                      \
    __forceinline__ bool operator>(H a, H b) { return float(a) > float(b); }                      \
    __forceinline__ bool operator<=(H a, H b) { return float(a) <= float(b); }                    \
    __forceinline__ bool operator>=(H a, H b) { return float(a) >= float(b); }                    \
    __forceinline__ bool operator==(H a, H b) { return float(a) == float(b); }                    \
    __forceinline__ bool operator!=(H a, H b) { return float(a) != float(b); }                    \
    __forceinline__ H __hadd(H a, H b) { return a + b; }                                          \
    __forceinline__ H __hsub(H a, H b) { return a - b; }                                          \
    __forceinline__ H __hmul(H a, H b) { return a * b; }                                          \
    __forceinline__ H __hdiv(H a, H b) { return a / b; }                                          \
    __forceinline__ H __hneg(H a) { return -a; }                                                  \
    __forceinline__ H __hmax(H a, H b) { return H(::fmaxf(float(a), float(b))); }                 \
    __forceinline__ H __hmin(H a, H b) { return H(::fminf(float(a), float(b))); }                 \
    __forceinline__ H __hfma(H a, H b, H c) {                                                     \
        return H(emu::fma_odd(double(float(a)), double(float(b)), double(float(c))));             \
    }                                                                                             \
    __forceinline__ bool __hisnan(H a) { return float(a) != float(a); }                           \
    __forceinline__ H atomicAdd(H* p, H v) {                                                      \
        return emu::atomic_update(p, [v](H old) { return old + v; });                             \
    }                                                                                             \
    struct alignas(4) H2 {                                                                        \
        H x, y;                                                                                   \
        H2() = default;                                                                           \
        __forceinline__ H2(H x, H y) : x(x), y(y) {}                                              \
        __forceinline__ H2(const H2& o) { emu::copy_words<4>(this, &o); }                         \
        __forceinline__ H2& operator=(const H2& o) {                                              \
            emu::copy_words<4>(this, &o);                                                         \
            return *this;                                                                         \
        }                                                                                         \
    };                                                                                            \
    __forceinline__ H2 __hadd2(H2 a, H2 b) { return H2(a.x + b.x, a.y + b.y); }                   \
    __forceinline__ H2 __hsub2(H2 a, H2 b) { return H2(a.x - b.x, a.y - b.y); }                   \
    __forceinline__ H2 __hmul2(H2 a, H2 b) { return H2(a.x * b.x, a.y * b.y); }                   \
    __forceinline__ H2 __hfma2(H2 a, H2 b, H2 c) {                                                \
        return H2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));                                  \
    }                                                                                             \
    /* On a GPU the plain ones may be fused with what comes after, these never are. */            \
    __forceinline__ H __hadd_rn(H a, H b) { return a + b; }                                       \
    __forceinline__ H __hsub_rn(H a, H b) { return a - b; }                                       \
    __forceinline__ H __hmul_rn(H a, H b) { return a * b; }                                       \
    __forceinline__ H2 __hadd2_rn(H2 a, H2 b) { return __hadd2(a, b); }                           \
    __forceinline__ H2 __hsub2_rn(H2 a, H2 b) { return __hsub2(a, b); }                           \
    __forceinline__ H2 __hmul2_rn(H2 a, H2 b) { return __hmul2(a, b); }                           \
    __forceinline__ H2 operator+(H2 a, H2 b) { return __hadd2(a, b); }                            \
    __forceinline__ H2 operator-(H2 a, H2 b) { return __hsub2(a, b); }                            \
    __forceinline__ H2 operator*(H2 a, H2 b) { return __hmul2(a, b); }                            \
    __forceinline__ H2 atomicAdd(H2* p, H2 v) { /* each half is atomic, not the pair: as CUDA */  \
        return H2(atomicAdd(&p->x, v.x), atomicAdd(&p->y, v.y));                                  \
    }

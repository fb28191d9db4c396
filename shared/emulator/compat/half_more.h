// What both 16-bit formats have besides emulator_half.h: comparisons, functions, pairs. Computed in
// f32 and rounded once, or where that would round twice, in f64.
#pragma once
#include "../include/emulator_half.h"

#include "maths.h"

namespace emu {
template <class H> __forceinline__ H saturated(H v) {
    return float(v) > 1 ? H(1.0f) : float(v) > 0 ? v : H(0.0f);
}
template <class H> __forceinline__ H rectified(H v) { return float(v) < 0 ? H(0.0f) : v; }
// The nearest that is not beyond `exact`, in a direction: towards zero, down, up.
template <class H> __forceinline__ H directed(float exact, int direction) {
    H h(exact);
    float got = float(h);
    bool away = direction == 0 ? ::fabsf(got) > ::fabsf(exact)
                               : direction < 0 ? got > exact : got < exact;
    if (!away) return h;
    uint16_t magnitude = h.__x & 0x7fff, sign = h.__x & 0x8000;
    bool grows = direction == 0 ? false : (direction > 0) == (sign == 0);
    if (magnitude == 0) h.__x = direction < 0 ? 0x8001 : 1;
    else h.__x = uint16_t(sign | (grows ? magnitude + 1 : magnitude - 1));
    return h;
}
}  // namespace emu

#define EMU_HALF_COMPARISON(name, H, H2, comparison)                                              \
    __forceinline__ bool __h##name(H a, H b) { return float(a) comparison float(b); }             \
    __forceinline__ H2 __h##name##2(H2 a, H2 b) {                                                 \
        return H2(H(__h##name(a.x, b.x) ? 1.0f : 0.0f), H(__h##name(a.y, b.y) ? 1.0f : 0.0f));    \
    }                                                                                             \
    __forceinline__ bool __hb##name##2(H2 a, H2 b) {                                              \
        return __h##name(a.x, b.x) && __h##name(a.y, b.y);                                        \
    }                                                                                             \
    /* True where either is NaN, too. */                                                          \
    __forceinline__ bool __h##name##u(H a, H b) {                                                 \
        return __hisnan(a) || __hisnan(b) || __h##name(a, b);                                     \
    }
#define EMU_HALF_FUNCTION(name, H, H2, expression)                                                \
    __forceinline__ H h##name(H h) {                                                              \
        float x = float(h);                                                                       \
        return H(expression);                                                                     \
    }                                                                                             \
    __forceinline__ H2 h2##name(H2 v) { return H2(h##name(v.x), h##name(v.y)); }
#define EMU_HALF_ASSIGN(op, H2) \
    __forceinline__ H2& operator op##=(H2& a, H2 b) { return a = a op b; }

#define EMU_HALF_MORE(H, H2)                                                                      \
    EMU_HALF_COMPARISON(eq, H, H2, ==)                                                            \
    EMU_HALF_COMPARISON(lt, H, H2, <)                                                             \
    EMU_HALF_COMPARISON(le, H, H2, <=)                                                            \
    EMU_HALF_COMPARISON(gt, H, H2, >)                                                             \
    EMU_HALF_COMPARISON(ge, H, H2, >=)                                                            \
    __forceinline__ bool __hne(H a, H b) { return float(a) < float(b) || float(a) > float(b); }   \
    __forceinline__ bool __hneu(H a, H b) { return float(a) != float(b); }                        \
    __forceinline__ int __hisinf(H a) {                                                           \
        float f = float(a);                                                                       \
        return f == __builtin_inff() ? 1 : f == -__builtin_inff() ? -1 : 0;                       \
    }                                                                                             \
    __forceinline__ H __habs(H a) {                                                               \
        a.__x &= 0x7fff;                                                                          \
        return a;                                                                                 \
    }                                                                                             \
    __forceinline__ H2 __habs2(H2 a) { return H2(__habs(a.x), __habs(a.y)); }                     \
    __forceinline__ H2 __hneg2(H2 a) { return H2(-a.x, -a.y); }                                   \
    __forceinline__ H2 __h2div(H2 a, H2 b) { return H2(a.x / b.x, a.y / b.y); }                   \
    __forceinline__ H2 __hmax2(H2 a, H2 b) { return H2(__hmax(a.x, b.x), __hmax(a.y, b.y)); }     \
    __forceinline__ H2 __hmin2(H2 a, H2 b) { return H2(__hmin(a.x, b.x), __hmin(a.y, b.y)); }     \
    /* Of a NaN and another the sum is the NaN. */                                                \
    __forceinline__ H __hmax_nan(H a, H b) { return __hisnan(a) || __hisnan(b) ? a + b : __hmax(a, b); } \
    __forceinline__ H __hmin_nan(H a, H b) { return __hisnan(a) || __hisnan(b) ? a + b : __hmin(a, b); } \
    __forceinline__ H __hadd_sat(H a, H b) { return emu::saturated(a + b); }                      \
    __forceinline__ H __hsub_sat(H a, H b) { return emu::saturated(a - b); }                      \
    __forceinline__ H __hmul_sat(H a, H b) { return emu::saturated(a * b); }                      \
    __forceinline__ H __hfma_sat(H a, H b, H c) { return emu::saturated(__hfma(a, b, c)); }       \
    __forceinline__ H __hfma_relu(H a, H b, H c) { return emu::rectified(__hfma(a, b, c)); }      \
    __forceinline__ H2 __hfma2_relu(H2 a, H2 b, H2 c) {                                           \
        return H2(__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y));                        \
    }                                                                                             \
    EMU_HALF_FUNCTION(exp, H, H2, ::expf(x))                                                      \
    EMU_HALF_FUNCTION(exp2, H, H2, ::exp2f(x))                                                    \
    EMU_HALF_FUNCTION(exp10, H, H2, ::powf(10.0f, x))                                             \
    EMU_HALF_FUNCTION(log, H, H2, ::logf(x))                                                      \
    EMU_HALF_FUNCTION(log2, H, H2, ::log2f(x))                                                    \
    EMU_HALF_FUNCTION(log10, H, H2, ::log10f(x))                                                  \
    EMU_HALF_FUNCTION(sqrt, H, H2, ::sqrtf(x))                                                    \
    EMU_HALF_FUNCTION(rsqrt, H, H2, 1.0 / ::sqrt(double(x)))                                      \
    EMU_HALF_FUNCTION(rcp, H, H2, 1.0f / x)                                                       \
    EMU_HALF_FUNCTION(sin, H, H2, ::sinf(x))                                                      \
    EMU_HALF_FUNCTION(cos, H, H2, ::cosf(x))                                                      \
    EMU_HALF_FUNCTION(tanh, H, H2, ::tanhf(x))                                                    \
    EMU_HALF_FUNCTION(floor, H, H2, ::floorf(x))                                                  \
    EMU_HALF_FUNCTION(ceil, H, H2, ::ceilf(x))                                                    \
    EMU_HALF_FUNCTION(trunc, H, H2, ::truncf(x))                                                  \
    EMU_HALF_FUNCTION(rint, H, H2, ::rintf(x))                                                    \
    __forceinline__ H2 operator/(H2 a, H2 b) { return __h2div(a, b); }                            \
    __forceinline__ H2 operator-(H2 a) { return __hneg2(a); }                                     \
    EMU_HALF_ASSIGN(+, H2)                                                                        \
    EMU_HALF_ASSIGN(-, H2)                                                                        \
    EMU_HALF_ASSIGN(*, H2)                                                                        \
    EMU_HALF_ASSIGN(/, H2)                                                                        \
    __forceinline__ bool operator==(H2 a, H2 b) { return __hbeq2(a, b); }                         \
    __forceinline__ bool operator!=(H2 a, H2 b) { return a.x != b.x || a.y != b.y; }              \
    __forceinline__ H2 __hisnan2(H2 a) {                                                          \
        return H2(H(__hisnan(a.x) ? 1.0f : 0.0f), H(__hisnan(a.y) ? 1.0f : 0.0f));                \
    }

// Conversions, whose names have the type in them. An integer of 64 bits goes by way of f64.
#define EMU_HALF_INTEGER(H, half, to, T)                                                          \
    __forceinline__ T __##half##2##to##_rn(H h) { return emu::to_integer<T>(std::rint(float(h))); } \
    __forceinline__ T __##half##2##to##_rz(H h) { return emu::to_integer<T>(std::trunc(float(h))); } \
    __forceinline__ T __##half##2##to##_rd(H h) { return emu::to_integer<T>(std::floor(float(h))); } \
    __forceinline__ T __##half##2##to##_ru(H h) { return emu::to_integer<T>(std::ceil(float(h))); }
#define EMU_HALF_CASTS(H, H2, half)                                                               \
    EMU_HALF_INTEGER(H, half, int, int)                                                           \
    EMU_HALF_INTEGER(H, half, uint, unsigned)                                                     \
    EMU_HALF_INTEGER(H, half, short, short)                                                       \
    EMU_HALF_INTEGER(H, half, ushort, unsigned short)                                             \
    EMU_HALF_INTEGER(H, half, ll, long long)                                                      \
    EMU_HALF_INTEGER(H, half, ull, unsigned long long)                                            \
    __forceinline__ H __uint2##half##_rn(unsigned i) { return H(double(i)); }                     \
    __forceinline__ H __short2##half##_rn(short i) { return H(int(i)); }                          \
    __forceinline__ H __ushort2##half##_rn(unsigned short i) { return H(int(i)); }                \
    __forceinline__ H __ll2##half##_rn(long long i) { return H(double(i)); }                      \
    __forceinline__ H __ull2##half##_rn(unsigned long long i) { return H(double(i)); }            \
    __forceinline__ H __float2##half##_rz(float f) { return emu::directed<H>(f, 0); }             \
    __forceinline__ H __float2##half##_rd(float f) { return emu::directed<H>(f, -1); }            \
    __forceinline__ H __float2##half##_ru(float f) { return emu::directed<H>(f, 1); }             \
    __forceinline__ short __##half##_as_short(H h) { return short(h.__x); }                       \
    __forceinline__ H __short_as_##half(short bits) {                                             \
        H h;                                                                                      \
        h.__x = uint16_t(bits);                                                                   \
        return h;                                                                                 \
    }                                                                                             \
    __forceinline__ H2 __lows2##half##2(H2 a, H2 b) { return H2(a.x, b.x); }                      \
    __forceinline__ H2 __highs2##half##2(H2 a, H2 b) { return H2(a.y, b.y); }                     \
    __forceinline__ H2 __low2##half##2(H2 a) { return H2(a.x, a.x); }                             \
    __forceinline__ H2 __high2##half##2(H2 a) { return H2(a.y, a.y); }                            \
    __forceinline__ H2 __float22##half##2_rn(float2 v) { return H2(H(v.x), H(v.y)); }             \
    __forceinline__ H2 make_##half##2(H x, H y) { return H2(x, y); }

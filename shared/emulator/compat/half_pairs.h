// What both 16-bit formats have for pairs, and by directed rounding: `__hmin2_nan` and its like. Included by cuda_fp16.h and
// cuda_bf16.h behind half_more.h.
#pragma once
#include "half_more.h"

namespace emu {
// An integer of any width as an f32 that rounds once more as the integer itself would: what is cut off is odd.
template <class T> __forceinline__ float odd_f32(T v) {
    bool negative = std::is_signed<T>::value && v < T(0);
    uint64_t all = negative ? 0 - uint64_t(v) : uint64_t(v);
    int cut = all >> 24 ? 40 - __builtin_clzll(all) : 0;
    bool rest = cut && (all & ((uint64_t(1) << cut) - 1));
    float magnitude = ::ldexpf(float(uint32_t(all >> cut) | uint32_t(rest)), cut);
    return negative ? -magnitude : magnitude;
}
__forceinline__ unsigned two_masks(bool x, bool y) { return (x ? 0xffffu : 0u) | (y ? 0xffff0000u : 0u); }
}  // namespace emu

// `h` of each half, as 1 or 0; of both; as bits.
#define EMU_HALF_ORDERED(name, H, H2)                                                             \
    __forceinline__ unsigned __h##name##2_mask(H2 a, H2 b) {                                      \
        return emu::two_masks(__h##name(a.x, b.x), __h##name(a.y, b.y));                          \
    }
#define EMU_HALF_PAIR_COMPARISON(name, H, H2)                                                     \
    __forceinline__ H2 __h##name##2(H2 a, H2 b) {                                                 \
        return H2(H(__h##name(a.x, b.x) ? 1.0f : 0.0f), H(__h##name(a.y, b.y) ? 1.0f : 0.0f));    \
    }                                                                                             \
    __forceinline__ bool __hb##name##2(H2 a, H2 b) {                                              \
        return __h##name(a.x, b.x) && __h##name(a.y, b.y);                                        \
    }                                                                                             \
    EMU_HALF_ORDERED(name, H, H2)
#define EMU_HALF_EACH(name, one, H2) \
    __forceinline__ H2 name(H2 a, H2 b) { return H2(one(a.x, b.x), one(a.y, b.y)); }
#define EMU_HALF_FROM_INTEGER(H, half, from, T)                                                   \
    __forceinline__ H __##from##2##half##_rz(T i) { return emu::directed<H>(emu::odd_f32(i), 0); } \
    __forceinline__ H __##from##2##half##_rd(T i) { return emu::directed<H>(emu::odd_f32(i), -1); } \
    __forceinline__ H __##from##2##half##_ru(T i) { return emu::directed<H>(emu::odd_f32(i), 1); }

#define EMU_HALF_PAIRS(H, H2, half)                                                               \
    EMU_HALF_ORDERED(eq, H, H2)                                                                   \
    EMU_HALF_ORDERED(lt, H, H2)                                                                   \
    EMU_HALF_ORDERED(le, H, H2)                                                                   \
    EMU_HALF_ORDERED(gt, H, H2)                                                                   \
    EMU_HALF_ORDERED(ge, H, H2)                                                                   \
    EMU_HALF_PAIR_COMPARISON(ne, H, H2)                                                           \
    EMU_HALF_PAIR_COMPARISON(equ, H, H2)                                                          \
    EMU_HALF_PAIR_COMPARISON(neu, H, H2)                                                          \
    EMU_HALF_PAIR_COMPARISON(ltu, H, H2)                                                          \
    EMU_HALF_PAIR_COMPARISON(leu, H, H2)                                                          \
    EMU_HALF_PAIR_COMPARISON(gtu, H, H2)                                                          \
    EMU_HALF_PAIR_COMPARISON(geu, H, H2)                                                          \
    EMU_HALF_EACH(__hmax2_nan, __hmax_nan, H2)                                                    \
    EMU_HALF_EACH(__hmin2_nan, __hmin_nan, H2)                                                    \
    EMU_HALF_EACH(__hadd2_sat, __hadd_sat, H2)                                                    \
    EMU_HALF_EACH(__hsub2_sat, __hsub_sat, H2)                                                    \
    EMU_HALF_EACH(__hmul2_sat, __hmul_sat, H2)                                                    \
    __forceinline__ H2 __hfma2_sat(H2 a, H2 b, H2 c) {                                            \
        return H2(__hfma_sat(a.x, b.x, c.x), __hfma_sat(a.y, b.y, c.y));                          \
    }                                                                                             \
    /* A product of complex numbers, and a third added. */                                        \
    __forceinline__ H2 __hcmadd(H2 a, H2 b, H2 c) {                                               \
        return H2(__hfma(-a.y, b.y, __hfma(a.x, b.x, c.x)), __hfma(a.y, b.x, __hfma(a.x, b.y, c.y))); \
    }                                                                                             \
    __forceinline__ H htanh_approx(H a) { return htanh(a); }                                      \
    __forceinline__ H2 h2tanh_approx(H2 a) { return h2tanh(a); }                                  \
    __forceinline__ signed char __##half##2char_rz(H h) {                                         \
        return emu::to_integer<signed char>(std::trunc(float(h)));                                \
    }                                                                                             \
    __forceinline__ unsigned char __##half##2uchar_rz(H h) {                                      \
        return emu::to_integer<unsigned char>(std::trunc(float(h)));                              \
    }                                                                                             \
    EMU_HALF_FROM_INTEGER(H, half, int, int)                                                      \
    EMU_HALF_FROM_INTEGER(H, half, uint, unsigned)                                                \
    EMU_HALF_FROM_INTEGER(H, half, short, short)                                                  \
    EMU_HALF_FROM_INTEGER(H, half, ushort, unsigned short)                                        \
    EMU_HALF_FROM_INTEGER(H, half, ll, long long)                                                 \
    EMU_HALF_FROM_INTEGER(H, half, ull, unsigned long long)

// The bits of one number, and of two.
#define EMU_HALF_RAW(H, H2, one, two)                                                             \
    struct one {                                                                                  \
        unsigned short x;                                                                         \
        one() = default;                                                                          \
        __forceinline__ one(unsigned short bits) : x(bits) {}                                     \
        __forceinline__ one(H h) : x(h.__x) {}                                                    \
        __forceinline__ operator H() const {                                                      \
            H h;                                                                                  \
            h.__x = x;                                                                            \
            return h;                                                                             \
        }                                                                                         \
    };                                                                                            \
    struct alignas(4) two {                                                                       \
        unsigned short x, y;                                                                      \
        two() = default;                                                                          \
        __forceinline__ two(unsigned short x, unsigned short y) : x(x), y(y) {}                   \
        __forceinline__ two(H2 v) : x(v.x.__x), y(v.y.__x) {}                                     \
        __forceinline__ operator H2() const { return H2(one(x), one(y)); }                        \
    };

// CUDA's numbers of 8 bits: e4m3 (4 bits of exponent, 3 of mantissa, no infinity, largest 448) and e5m2 (largest 57344), one by
// one, in pairs and in fours. Rounded to nearest even, once. What is too large becomes the largest with __NV_SATFINITE, as in
// all constructors; with __NV_NOSAT infinity, or the NaN of e4m3.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "vectors.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
typedef enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE } __nv_saturation_t;
typedef enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 } __nv_fp8_interpretation_t;

namespace emu {
template <int E, int M> struct Fp8 {
    static constexpr int bias = (1 << (E - 1)) - 1;
    static constexpr uint32_t nan = 0x7f, largest = E == 5 ? 0x7b : 0x7e, beyond = E == 5 ? 0x7c : 0x7f;

    static __forceinline__ uint8_t of(float f, bool saturates) {
        uint32_t x = f32_bits(f), sign = x >> 24 & 0x80;
        x &= 0x7fffffffu;
        if (x > 0x7f800000u) return uint8_t(nan);
        uint32_t bits;
        if (x < uint32_t(128 - bias) << 23) {
            // Below the normal ones: in this sum the last place is that of the smallest.
            const uint32_t place = uint32_t(127 + 1 - bias - M + 23) << 23;
            bits = f32_bits(bits_f32(x) + bits_f32(place)) - place;
        } else {
            uint32_t odd = x >> (23 - M) & 1;
            bits = (x - (uint32_t(127 - bias) << 23) + ((1u << (22 - M)) - 1) + odd) >> (23 - M);
        }
        if (bits > largest) bits = saturates ? largest : beyond;
        return uint8_t(sign | bits);
    }
    static __forceinline__ float value(uint8_t bits) {
        uint32_t magnitude = bits & 0x7f, sign = uint32_t(bits & 0x80) << 24;
        if (magnitude > (E == 5 ? 0x7cu : 0x7eu)) return bits_f32(0x7fffffffu);
        if (E == 5 && magnitude == 0x7c) return bits_f32(sign | 0x7f800000u);
        if (magnitude >> M == 0) {
            float small = float(magnitude) * bits_f32(uint32_t(127 + 1 - bias - M) << 23);
            return bits_f32(sign | f32_bits(small));
        }
        return bits_f32(sign | ((magnitude << (23 - M)) + (uint32_t(127 - bias) << 23)));
    }
};
__forceinline__ uint8_t to_fp8(float f, __nv_saturation_t saturation, __nv_fp8_interpretation_t kind) {
    bool saturates = saturation == __NV_SATFINITE;
    return kind == __NV_E4M3 ? Fp8<4, 3>::of(f, saturates) : Fp8<5, 2>::of(f, saturates);
}
__forceinline__ float of_fp8(uint8_t bits, __nv_fp8_interpretation_t kind) {
    return kind == __NV_E4M3 ? Fp8<4, 3>::value(bits) : Fp8<5, 2>::value(bits);
}
// Two in 16 bits, the first below.
__forceinline__ uint16_t two_fp8(uint8_t low, uint8_t high) { return uint16_t(low | high << 8); }
}  // namespace emu

#define EMU_FP8 __nv_saturation_t saturation, __nv_fp8_interpretation_t kind
__forceinline__ __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, EMU_FP8) { return emu::to_fp8(x, saturation, kind); }
__forceinline__ __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, EMU_FP8) {
    // Of f64 alone a NaN keeps its sign, and as e5m2 the upper bits.
    if (x != x) {
        uint64_t bits = emu::to_bits(x);
        return uint8_t((bits >> 56 & 0x80) | (kind == __NV_E4M3 ? 0x7f : 0x7e | (bits >> 50 & 3)));
    }
    return emu::to_fp8(emu::f64_to_f32_odd(x), saturation, kind);
}
__forceinline__ __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw x, EMU_FP8) {
    return emu::to_fp8(emu::f16_to_f32(x.x), saturation, kind);
}
__forceinline__ __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw x, EMU_FP8) {
    return emu::to_fp8(emu::bf16_to_f32(x.x), saturation, kind);
}
__forceinline__ __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, EMU_FP8) {
    return emu::two_fp8(emu::to_fp8(v.x, saturation, kind), emu::to_fp8(v.y, saturation, kind));
}
__forceinline__ __nv_fp8x2_storage_t __nv_cvt_double2_to_fp8x2(double2 v, EMU_FP8) {
    return emu::two_fp8(__nv_cvt_double_to_fp8(v.x, saturation, kind), __nv_cvt_double_to_fp8(v.y, saturation, kind));
}
__forceinline__ __nv_fp8x2_storage_t __nv_cvt_halfraw2_to_fp8x2(__half2_raw v, EMU_FP8) {
    return __nv_cvt_float2_to_fp8x2(make_float2(emu::f16_to_f32(v.x), emu::f16_to_f32(v.y)), saturation, kind);
}
__forceinline__ __nv_fp8x2_storage_t __nv_cvt_bfloat16raw2_to_fp8x2(__nv_bfloat162_raw v, EMU_FP8) {
    return __nv_cvt_float2_to_fp8x2(make_float2(emu::bf16_to_f32(v.x), emu::bf16_to_f32(v.y)), saturation, kind);
}
__forceinline__ __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind) {
    return __half_raw(emu::f32_to_f16(emu::of_fp8(x, kind)));
}
__forceinline__ __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t v, __nv_fp8_interpretation_t kind) {
    return __half2_raw(__nv_cvt_fp8_to_halfraw(uint8_t(v), kind).x, __nv_cvt_fp8_to_halfraw(uint8_t(v >> 8), kind).x);
}

// `N`: e4m3 or e5m2. Integers go by way of f32, as CUDA's do.
#define EMU_FP8_FROM(N, T)                                                                                 \
    explicit __forceinline__ __nv_fp8_##N(T v) : __x(emu::to_fp8(float(v), __NV_SATFINITE, kind)) {}
#define EMU_FP8_TO(T)                                                                                      \
    explicit __forceinline__ operator T() const { return emu::to_integer<T>(float(*this)); }
#define EMU_FP8_TYPES(N, NUMBER)                                                                           \
    struct alignas(1) __nv_fp8_##N {                                                                       \
        static constexpr __nv_fp8_interpretation_t kind = NUMBER;                                          \
        __nv_fp8_storage_t __x;                                                                            \
        __nv_fp8_##N() = default;                                                                          \
        explicit __forceinline__ __nv_fp8_##N(double v) : __x(__nv_cvt_double_to_fp8(v, __NV_SATFINITE, kind)) {} \
        EMU_FP8_FROM(N, float)                                                                             \
        EMU_FP8_FROM(N, __half)                                                                            \
        EMU_FP8_FROM(N, __nv_bfloat16)                                                                     \
        EMU_FP8_FROM(N, short)                                                                             \
        EMU_FP8_FROM(N, unsigned short)                                                                    \
        EMU_FP8_FROM(N, int)                                                                               \
        EMU_FP8_FROM(N, unsigned)                                                                          \
        EMU_FP8_FROM(N, long)                                                                              \
        EMU_FP8_FROM(N, unsigned long)                                                                     \
        EMU_FP8_FROM(N, long long)                                                                         \
        EMU_FP8_FROM(N, unsigned long long)                                                                \
        explicit __forceinline__ operator float() const { return emu::of_fp8(__x, kind); }                 \
        explicit __forceinline__ operator double() const { return float(*this); }                          \
        explicit __forceinline__ operator __half() const { return __half(float(*this)); }                  \
        explicit __forceinline__ operator __nv_bfloat16() const { return __nv_bfloat16(float(*this)); }    \
        explicit __forceinline__ operator bool() const { return __x & 0x7f; }                              \
        EMU_FP8_TO(char)                                                                                   \
        EMU_FP8_TO(signed char)                                                                            \
        EMU_FP8_TO(unsigned char)                                                                          \
        EMU_FP8_TO(short)                                                                                  \
        EMU_FP8_TO(unsigned short)                                                                         \
        EMU_FP8_TO(int)                                                                                    \
        EMU_FP8_TO(unsigned)                                                                               \
        EMU_FP8_TO(long)                                                                                   \
        EMU_FP8_TO(unsigned long)                                                                          \
        EMU_FP8_TO(long long)                                                                              \
        EMU_FP8_TO(unsigned long long)                                                                     \
    };                                                                                                     \
    struct alignas(2) __nv_fp8x2_##N {                                                                     \
        static constexpr __nv_fp8_interpretation_t kind = NUMBER;                                          \
        __nv_fp8x2_storage_t __x;                                                                          \
        __nv_fp8x2_##N() = default;                                                                        \
        explicit __forceinline__ __nv_fp8x2_##N(float2 v) : __x(__nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, kind)) {} \
        explicit __forceinline__ __nv_fp8x2_##N(double2 v) : __x(__nv_cvt_double2_to_fp8x2(v, __NV_SATFINITE, kind)) {} \
        explicit __forceinline__ __nv_fp8x2_##N(__half2 v) : __nv_fp8x2_##N(make_float2(float(v.x), float(v.y))) {} \
        explicit __forceinline__ __nv_fp8x2_##N(__nv_bfloat162 v) : __nv_fp8x2_##N(make_float2(float(v.x), float(v.y))) {} \
        explicit __forceinline__ operator float2() const {                                                 \
            return make_float2(emu::of_fp8(uint8_t(__x), kind), emu::of_fp8(uint8_t(__x >> 8), kind));     \
        }                                                                                                  \
        explicit __forceinline__ operator __half2() const {                                                \
            float2 v = float2(*this);                                                                      \
            return __half2(__half(v.x), __half(v.y));                                                      \
        }                                                                                                  \
    };                                                                                                     \
    struct alignas(4) __nv_fp8x4_##N {                                                                     \
        static constexpr __nv_fp8_interpretation_t kind = NUMBER;                                          \
        __nv_fp8x4_storage_t __x;                                                                          \
        __nv_fp8x4_##N() = default;                                                                        \
        template <class P> __forceinline__ void set(P low, P high) {                                       \
            __x = __nv_fp8x2_##N(low).__x | uint32_t(__nv_fp8x2_##N(high).__x) << 16;                      \
        }                                                                                                  \
        explicit __forceinline__ __nv_fp8x4_##N(__half2 low, __half2 high) { set(low, high); }             \
        explicit __forceinline__ __nv_fp8x4_##N(__nv_bfloat162 low, __nv_bfloat162 high) { set(low, high); } \
        explicit __forceinline__ __nv_fp8x4_##N(float4 v) { set(make_float2(v.x, v.y), make_float2(v.z, v.w)); } \
        explicit __forceinline__ __nv_fp8x4_##N(double4 v) { set(make_double2(v.x, v.y), make_double2(v.z, v.w)); } \
        explicit __forceinline__ operator float4() const {                                                 \
            auto value = [this](int n) { return emu::of_fp8(uint8_t(__x >> (8 * n)), kind); };             \
            return make_float4(value(0), value(1), value(2), value(3));                                    \
        }                                                                                                  \
    };
EMU_FP8_TYPES(e4m3, __NV_E4M3)
EMU_FP8_TYPES(e5m2, __NV_E5M2)

#pragma once
#include "emulator_half.h"

EMU_HALF_TYPE(__half, __half2, emu::f32_to_f16, emu::f16_to_f32)
typedef __half half;
typedef __half2 half2;

__forceinline__ float __half2float(__half h) { return float(h); }
__forceinline__ __half __float2half(float f) { return __half(f); }
__forceinline__ __half __float2half_rn(float f) { return __half(f); }
__forceinline__ __half __double2half(double d) { return __half(d); }
__forceinline__ __half __int2half_rn(int i) { return __half(i); }
__forceinline__ __half __ushort_as_half(unsigned short b) {
    __half h;
    h.__x = b;
    return h;
}
__forceinline__ unsigned short __half_as_ushort(__half h) { return h.__x; }
__forceinline__ __half2 __floats2half2_rn(float x, float y) { return __half2(x, y); }
__forceinline__ __half2 __float2half2_rn(float x) { return __half2(x, x); }
__forceinline__ __half2 __halves2half2(__half x, __half y) { return __half2(x, y); }
__forceinline__ __half2 __half2half2(__half x) { return __half2(x, x); }
__forceinline__ float2 __half22float2(__half2 v) { return float2(float(v.x), float(v.y)); }
__forceinline__ float __low2float(__half2 v) { return float(v.x); }
__forceinline__ float __high2float(__half2 v) { return float(v.y); }
__forceinline__ __half __low2half(__half2 v) { return v.x; }
__forceinline__ __half __high2half(__half2 v) { return v.y; }

#pragma once
#include "emulator_half.h"

EMU_HALF_TYPE(__nv_bfloat16, __nv_bfloat162, emu::f32_to_bf16, emu::bf16_to_f32)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

__forceinline__ float __bfloat162float(__nv_bfloat16 h) { return float(h); }
__forceinline__ __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
__forceinline__ __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
__forceinline__ __nv_bfloat16 __double2bfloat16(double d) { return __nv_bfloat16(d); }
__forceinline__ __nv_bfloat16 __ushort_as_bfloat16(unsigned short b) {
    __nv_bfloat16 h;
    h.__x = b;
    return h;
}
__forceinline__ unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.__x; }
__forceinline__ __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return __nv_bfloat162(x, y);
}
__forceinline__ __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
    return __nv_bfloat162(x, y);
}
__forceinline__ float2 __bfloat1622float2(__nv_bfloat162 v) {
    return float2(float(v.x), float(v.y));
}
__forceinline__ __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
__forceinline__ __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }

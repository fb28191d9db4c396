// The lab's __nv_bfloat16, and what other people's code uses besides.
#pragma once
#include "../include/cuda_bf16.h"

#include "half_pairs.h"

EMU_HALF_MORE(__nv_bfloat16, __nv_bfloat162)
EMU_HALF_CASTS(__nv_bfloat16, __nv_bfloat162, bfloat16)
EMU_HALF_PAIRS(__nv_bfloat16, __nv_bfloat162, bfloat16)
EMU_HALF_RAW(__nv_bfloat16, __nv_bfloat162, __nv_bfloat16_raw, __nv_bfloat162_raw)
__forceinline__ __nv_bfloat162 __lowhigh2highlow(__nv_bfloat162 a) {
    return __nv_bfloat162(a.y, a.x);
}
__forceinline__ __nv_bfloat16 __int2bfloat16_rn(int i) { return __nv_bfloat16(i); }
__forceinline__ float __low2float(__nv_bfloat162 v) { return float(v.x); }
__forceinline__ float __high2float(__nv_bfloat162 v) { return float(v.y); }
__forceinline__ __nv_bfloat162 __float2bfloat162_rn(float x) { return __nv_bfloat162(x, x); }
__forceinline__ __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) {
    return __nv_bfloat162(x, x);
}

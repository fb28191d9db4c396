// The lab's __half, and what other people's code uses besides.
#pragma once
#include "../include/cuda_fp16.h"

#include "half_pairs.h"

EMU_HALF_MORE(__half, __half2)
EMU_HALF_CASTS(__half, __half2, half)
EMU_HALF_PAIRS(__half, __half2, half)
EMU_HALF_RAW(__half, __half2, __half_raw, __half2_raw)
__forceinline__ __half2 __lowhigh2highlow(__half2 a) { return __half2(a.y, a.x); }
typedef __half nv_half;
typedef __half2 nv_half2;

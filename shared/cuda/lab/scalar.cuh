// Element types: what a kernel computes in, and how it gets there and back.
//
// Storage may be f16, bf16, f32 or f64; arithmetic is in f32 (f64 for f64). A kernel converts at
// each load and each store and nowhere else.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace lab {

template <class T> constexpr bool is_f16 = false;
template <> constexpr bool is_f16<__half> = true;
template <class T> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<__nv_bfloat16> = true;

template <class T> struct arithmetic { using type = float; };
template <> struct arithmetic<double> { using type = double; };
template <class T> using math_t = typename arithmetic<T>::type;

__device__ __forceinline__ float to_math(float v) { return v; }
__device__ __forceinline__ double to_math(double v) { return v; }
__device__ __forceinline__ float to_math(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_math(__nv_bfloat16 v) { return __bfloat162float(v); }

template <class T> __device__ __forceinline__ T from_math(math_t<T> v) { return v; }
template <> __device__ __forceinline__ __half from_math<__half>(float v) { return __float2half(v); }
template <> __device__ __forceinline__ __nv_bfloat16 from_math<__nv_bfloat16>(float v) {
    return __float2bfloat16(v);
}

// Minus infinity, the neutral element of max.
template <class M> __device__ __forceinline__ M lowest();
template <> __device__ __forceinline__ float lowest<float>() { return __int_as_float(0xff800000); }

__device__ __forceinline__ float exponential(float v) { return expf(v); }
__device__ __forceinline__ double exponential(double v) { return exp(v); }
__device__ __forceinline__ float logarithm(float v) { return logf(v); }
__device__ __forceinline__ double logarithm(double v) { return log(v); }
__device__ __forceinline__ float root(float v) { return sqrtf(v); }
__device__ __forceinline__ double root(double v) { return sqrt(v); }

}  // namespace lab

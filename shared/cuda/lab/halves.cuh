// Two halves in a word, as fragments and rows in memory have them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "lab/ptx/mma.cuh"

namespace lab {

template <class T> struct TwoOf { using type = __nv_bfloat162; };
template <> struct TwoOf<__half> { using type = __half2; };

// The first in the lower part.
template <class T> __device__ __forceinline__ unsigned two_halves(float first, float second) {
    unsigned word;
    if constexpr (is_f16<T>) {
        __half2 two = __floats2half2_rn(first, second);
        memcpy(&word, &two, sizeof word);
    } else {
        __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
        memcpy(&word, &two, sizeof word);
    }
    return word;
}

// What they are.
template <class T> __device__ __forceinline__ float2 floats_of(unsigned word) {
    typename TwoOf<T>::type two;
    memcpy(static_cast<void*>(&two), &word, sizeof word);
    if constexpr (is_f16<T>) return __half22float2(two);
    else return __bfloat1622float2(two);
}

// Two products of two halves each, rounded.
template <class T> __device__ __forceinline__ unsigned multiply_halves(unsigned a, unsigned b) {
    typename TwoOf<T>::type x, y;
    memcpy(static_cast<void*>(&x), &a, sizeof a);
    memcpy(static_cast<void*>(&y), &b, sizeof b);
    x = __hmul2(x, y);
    memcpy(&a, static_cast<void*>(&x), sizeof a);
    return a;
}

// Two differences, rounded.
template <class T> __device__ __forceinline__ unsigned subtract_halves(unsigned a, unsigned b) {
    typename TwoOf<T>::type x, y;
    memcpy(static_cast<void*>(&x), &a, sizeof a);
    memcpy(static_cast<void*>(&y), &b, sizeof b);
    x = __hsub2(x, y);
    memcpy(&a, static_cast<void*>(&x), sizeof a);
    return a;
}

}  // namespace lab

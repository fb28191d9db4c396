// The functions of a cell's gates, by ex2 and rcp, or tanh.
#pragma once
#include "lab/ptx/ex2.cuh"
#include "lab/ptx/rcp.cuh"
#include "lab/ptx/tanh.cuh"
#include "lab/scalar.cuh"

namespace lab {

// 1 / (1 + exp(-TIMES v)). Off by 1e-7, beside 1: fewer instructions than expf, a division and tanhf.
template <int TIMES = 1> __device__ __forceinline__ float quick_sigmoid(float v) {
    constexpr float LOG2E = 1.44269504f;
    return quick_reciprocal(1.0f + power_of_two(-LOG2E * TIMES * v));
}
__device__ __forceinline__ float quick_tangent(float v) { return 2.0f * quick_sigmoid<2>(v) - 1.0f; }

// The same of numbers that become T's: of bfloat16 by one instruction of the special function unit.
template <class T> __device__ __forceinline__ float tangent_for(float v) {
    if constexpr (is_bf16<T>) return rough_tangent(v);
    else return quick_tangent(v);
}
template <class T> __device__ __forceinline__ float sigmoid_for(float v) {
    if constexpr (is_bf16<T>) return 0.5f * rough_tangent(0.5f * v) + 0.5f;
    else return quick_sigmoid(v);
}

}  // namespace lab

// A step of a cell as lstm.cuh has it. Of f16 by seven instructions of the special function unit in place of ten: it makes 16
// results a clock, which many cells wait for. Of p = 1 + exp(−a) and q = exp(−2 a_g)
//
//   f c + i g = (c p_i (1 + q) + p_f (1 − q)) / (p_i p_f (1 + q))        o tanh(c_t) likewise: two divisions in place of five
//
// A gate of −27 and one of −28 are both taken as shut: so no product of three is beyond f32.
#pragma once
#include "lab/ptx/ex2.cuh"
#include "lab/ptx/rcp.cuh"
#include "lab/quick.cuh"

namespace lab {

// exp(TIMES v), 2^40 at most; NaN stays NaN.
template <int TIMES> __device__ __forceinline__ float quick_exp(float v) {
    constexpr float LOG2E = 1.44269504f;
    v *= LOG2E * TIMES;
    return power_of_two(v > 40.0f ? 40.0f : v);
}

// From the a of the gates i, f, g, o: the gates in place of a, c_t in place of c; h_t. Of bfloat16 as it stands above, each
// function one instruction (lab/ptx/tanh.cuh).
template <class T> __device__ __forceinline__ float quick_step(float4& a, float& c) {
    if constexpr (is_bf16<T>) {
        a = make_float4(sigmoid_for<T>(a.x), sigmoid_for<T>(a.y), tangent_for<T>(a.z), sigmoid_for<T>(a.w));
        c = a.y * c + a.x * a.z;
        return a.w * tangent_for<T>(c);
    } else {
        float i = 1.0f + quick_exp<-1>(a.x), f = 1.0f + quick_exp<-1>(a.y), o = 1.0f + quick_exp<-1>(a.w);
        float q = quick_exp<-2>(a.z), g = 1.0f + q, i_g = i * g, part = quick_reciprocal(i_g * f);
        c = (i_g * c + f * (1.0f - q)) * part;
        float u = quick_exp<-2>(c), part_of_h = quick_reciprocal(o * (1.0f + u));
        a = make_float4(f * g * part, i_g * part, i * f * (1.0f - q) * part, (1.0f + u) * part_of_h);
        return (1.0f - u) * part_of_h;
    }
}

}  // namespace lab

// SwiGLU (Shazeer 2020, arXiv 2002.05202) of one element, and its gradients:
//
//     u = silu(a) b          silu(a) = a σ(a)
//     da = du b σ(a) (1 + a (1 − σ(a)))        db = du silu(a)
#pragma once
#include "lab/quick.cuh"

namespace lab {

__device__ __forceinline__ float swiglu(float gate, float up) { return up * (gate * quick_sigmoid(gate)); }

// From what comes back to u.
struct SwiGluGradients { float gate, up, u; };
__device__ __forceinline__ SwiGluGradients swiglu_gradients(float gate, float up, float du) {
    float sigmoid = quick_sigmoid(gate), silu = gate * sigmoid;
    return {du * up * (sigmoid + silu * (1.0f - sigmoid)), silu * du, up * silu};
}

}  // namespace lab

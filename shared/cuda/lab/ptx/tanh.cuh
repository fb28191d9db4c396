// tanh.approx: a hyperbolic tangent by one instruction. PTX ISA, "Floating-Point Instructions: tanh".
#pragma once

namespace lab {

// tanh(x), off by a part in 2^11 of itself at most: a sixteenth of the step from one bfloat16
// to the next.
__device__ __forceinline__ float rough_tangent(float x) {
#ifdef LAB_EMULATOR
    return tanhf(x);
#else
    float tangent;
    asm("tanh.approx.f32 %0, %1;" : "=f"(tangent) : "f"(x));
    return tangent;
#endif
}

}  // namespace lab

// ex2.approx.ftz: powers of two by one instruction. PTX ISA, "Floating-Point Instructions: ex2".
#pragma once

namespace lab {

// 2^x, to two units in the last place; what is below 2^-126 is 0. exp2f keeps that too, for as many
// instructions again.
__device__ __forceinline__ float power_of_two(float x) {
#ifdef LAB_EMULATOR
    float power = exp2f(x);
    return power < 1.17549435e-38f ? 0.0f : power;
#else
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#endif
}

}  // namespace lab

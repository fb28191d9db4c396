// cvt, sm_80: conversions that CUDA C++ has no name for. PTX ISA, "Data Movement and Conversion
// Instructions: cvt".
#pragma once

namespace lab {

// The bits of an f32 rounded to TF32: 8 of exponent as f32 has, 10 of mantissa as f16 has. The
// tensor cores ignore the 13 bits below; unrounded that would be a cut, twice the error and to one
// side.
__device__ __forceinline__ unsigned to_tf32(unsigned f32) {
#ifdef LAB_EMULATOR
    return emu::to_tf32(f32);
#else
    unsigned tf32;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(tf32) : "f"(__uint_as_float(f32)));
    return tf32;
#endif
}

}  // namespace lab

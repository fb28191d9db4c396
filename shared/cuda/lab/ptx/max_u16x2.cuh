// max.u16x2, sm_90: the larger of two pairs of 16-bit numbers without a sign. PTX ISA, "Integer Arithmetic Instructions: max".
#pragma once

namespace lab {

// Each half of the word is the larger of both halves there.
__device__ __forceinline__ unsigned larger_u16_pair(unsigned a, unsigned b) {
#ifdef LAB_EMULATOR
    unsigned low = max(a & 0xffff, b & 0xffff), high = max(a >> 16, b >> 16);
    return high << 16 | low;
#else
    return __vmaxu2(a, b);
#endif
}

}  // namespace lab

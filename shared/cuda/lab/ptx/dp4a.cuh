// dp4a: four products of bytes and their sum, one instruction. PTX ISA, "Integer Arithmetic Instructions: dp4a".
#pragma once

namespace lab {

// c + Σ a_i b_i over the four bytes of a and of b, all with signs.
__device__ __forceinline__ int dot_bytes(unsigned a, unsigned b, int c) {
#ifdef LAB_EMULATOR
    for (int i = 0; i < 4; ++i) {
        auto of = [&](unsigned word) { return static_cast<int>(static_cast<signed char>(word >> (8 * i) & 0xff)); };
        c += of(a) * of(b);
    }
    return c;
#else
    return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
#endif
}

}  // namespace lab

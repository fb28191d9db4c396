// prmt: four bytes of eight, one instruction. PTX ISA, "Data Movement and Conversion Instructions: prmt".
#pragma once

namespace lab {

// Byte i is the one that digit i of the selector says: 0 to 3 of `low`, 4 to 7 of `high`.
__device__ __forceinline__ unsigned permute_bytes(unsigned low, unsigned high, unsigned selector) {
#ifdef LAB_EMULATOR
    unsigned bytes = 0;
    for (int i = 0; i < 4; ++i) {
        unsigned from = selector >> (4 * i) & 7;
        bytes |= ((from < 4 ? low : high) >> (8 * (from % 4)) & 0xff) << (8 * i);
    }
    return bytes;
#else
    return __byte_perm(low, high, selector);
#endif
}

}  // namespace lab

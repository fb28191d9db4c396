// Loads of what is read once: 16 bytes past the L1 cache, whose room stays with what is read again. PTX ISA, "ld.global.nc" and
// "Cache Eviction Priority Hints": L1::no_allocate, sm_70. Nobody may write the memory while the kernel runs.
#pragma once

namespace lab {

__device__ __forceinline__ uint4 load_once(const void* from) {
#ifdef LAB_EMULATOR
    return *static_cast<const uint4*>(from);
#else
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
#endif
}

}  // namespace lab

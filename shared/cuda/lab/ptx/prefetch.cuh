// cp.async.bulk.prefetch.L2, sm_90: brings a stretch of memory to the L2 cache. No register and no thread waits for it, and it reads
// nothing as far as a program can tell: it may come before what is there is written. PTX ISA, "cp.async.bulk.prefetch".
#pragma once

namespace lab {

// `from` and `bytes` are multiples of 16. Before sm_90 it does nothing.
__device__ __forceinline__ void prefetch_bulk(const void* from, unsigned bytes) {
#if !defined(LAB_EMULATOR) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#else
    (void)from, (void)bytes;
#endif
}

// The 128 bytes around `from`.
__device__ __forceinline__ void prefetch_line(const void* from) {
#ifndef LAB_EMULATOR
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
#else
    (void)from;
#endif
}

}  // namespace lab

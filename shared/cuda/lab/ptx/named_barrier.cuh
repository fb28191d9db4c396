// bar.sync and bar.arrive: barriers for a part of a block, as many as fifteen. PTX ISA, "Parallel
// Synchronization and Communication Instructions: barrier".
//
// Each call says how many threads the barrier is for, whole warps, those that only arrive among them. When so many
// have come, who waits goes on, and the barrier is as new. What a thread has done before it came is seen by those
// who go on. Number 0 is the barrier of __syncthreads(). All lanes of a warp come to a call together.
#pragma once

namespace lab {

// Arrives, and waits for the others.
__device__ __forceinline__ void named_barrier_sync(int number, int threads) {
#ifdef LAB_EMULATOR
    emu_named_barrier(number, threads, false);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
#endif
}

// Arrives, and goes on.
__device__ __forceinline__ void named_barrier_arrive(int number, int threads) {
#ifdef LAB_EMULATOR
    emu_named_barrier(number, threads, true);
#else
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
#endif
}

}  // namespace lab

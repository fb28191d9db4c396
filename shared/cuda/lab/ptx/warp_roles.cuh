// What warps need that do different things: registers handed from one warpgroup to another (setmaxnreg, sm_90a), and
// one lane to speak for a warp (elect.sync, sm_90). PTX ISA, "Miscellaneous Instructions: setmaxnreg", "Parallel
// Synchronization and Communication Instructions: elect.sync".
//
// A block is launched with the same number of registers for each thread, and these are all that it has. A warpgroup that
// needs few gives some back; one that needs more waits until they are there. All its 128 threads come to the same call,
// and meet before they come to another. The compiler must know the number at the launch: __launch_bounds__(threads, 1).
#pragma once
#include "lab/ptx/cluster.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

// From now on at most COUNT a thread, a multiple of 8 from 24 to 256, and no more than before.
template <int COUNT> __device__ __forceinline__ void registers_decrease() {
    static_assert(COUNT >= 24 && COUNT <= 256 && COUNT % 8 == 0, "24 to 256, a multiple of 8");
#ifdef LAB_EMULATOR
    emu_set_registers(COUNT, false);
#else
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

// As many from now on, and no fewer than before; waits until others have given them back.
template <int COUNT> __device__ __forceinline__ void registers_increase() {
    static_assert(COUNT >= 24 && COUNT <= 256 && COUNT % 8 == 0, "24 to 256, a multiple of 8");
#ifdef LAB_EMULATOR
    emu_set_registers(COUNT, true);
#else
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

// True in one lane of the warp, all of whose lanes come here: which one is not said, but it is always the same.
__device__ __forceinline__ bool elect_one() {
#ifdef LAB_EMULATOR
    __any_sync(0xffffffffu, true);
    return cooperative_groups::this_thread_block().thread_rank() % 32 == 0;
#else
    unsigned elected;
    asm volatile("{ .reg .pred own; elect.sync _|own, 0xffffffff; selp.u32 %0, 1, 0, own; }" : "=r"(elected));
    return elected != 0;
#endif
}

}  // namespace lab
#endif

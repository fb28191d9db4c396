// griddepcontrol: a grid that begins before the one before it has ended, sm_90. PTX ISA, "Parallel Synchronization
// and Communication Instructions: griddepcontrol"; CUDA C++ Programming Guide, "Programmatic Dependent Launch".
//
// The host says which launch may do so (`Launch::overlap_previous`). Such a grid begins when all blocks of the grid
// before it have called griddep_launch_dependents() or have ended. What it does first (barriers, addresses, weights that
// nobody writes) then costs no time of its own. Neither of the two makes any memory visible: a block that has ended may
// have stores under way. So, before griddep_wait(), a thread
//   - reads nothing that the grid before writes,
//   - writes nothing that the grid before reads or writes,
// and a thread that has not waited may do either behind a barrier with one that has.
//
// A kernel that never waits is right only if it shares nothing with the grid before, and it may then end first. The next
// grid's wait is for this one alone: nothing then tells it that the grid before this one has ended. And if this one lets
// the next begin before it has waited itself, then both grids before may still run. So: wait in every kernel that overlaps.
//
// A pointer behind which the grid before writes is not `const __restrict__`: the compiler could read it before the wait.
//
// For older GPUs both do nothing, for there the host leaves the overlap out, and all before has ended.
#pragma once

namespace lab {

// Waits until the grid before has ended and all that it wrote is visible to this one. In a launch that overlaps
// nothing it returns at once.
__device__ __forceinline__ void griddep_wait() {
#ifdef LAB_EMULATOR
    emu_griddep_wait();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// This block no longer keeps the next grid from beginning. One thread is enough, and only its first call counts.
__device__ __forceinline__ void griddep_launch_dependents() {
#ifdef LAB_EMULATOR
    emu_griddep_launch_dependents();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace lab

// What nvcc includes before a file of CUDA C++, as far as it is the device's: on top of emulator.h,
// which has what the lab's own kernels use. The host's functions are not here.
#pragma once
#include "../include/emulator.h"

#include "assert.h"
#include "atomics.h"
#include "casts.h"
#include "integers.h"
#include "maths.h"
#include "memory.h"
#include "ptx.h"
#include "simd.h"
#include "vectors.h"
#include "warp.h"

__forceinline__ void cudaGridDependencySynchronize() { EMU_NEEDS_griddepcontrol emu_griddep_wait(); }
__forceinline__ void cudaTriggerProgrammaticLaunchCompletion() {
    EMU_NEEDS_griddepcontrol emu_griddep_launch_dependents();
}

#define __CUDA_ALIGN__(n) __align__(n)
#define __builtin_align__(n) __align__(n)
#define __device_builtin__
#define __cudart_builtin__
#define __managed__ static
#define __inline_hint__
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __block_size__(...)

// CUDA's runtime, for programs that run on the emulator.
#pragma once
// By these, other headers ask whether it is there.
#define __CUDA_RUNTIME_H__
#define __CUDA_RUNTIME_API_H__
#define __DRIVER_TYPES_H__
#include <sys/time.h>

#include <algorithm>

// What only device code calls has short names, which host code may define itself.
#ifdef __CUDACC__
#include "device.h"
#else
#include "vectors.h"
#endif
#include "runtime/api.h"

// The runtime API under the names by which C calls it: compiled once into a program that has files of C.
#pragma once
#include "../cuda_runtime.h"

#define EMU_FOR_C(result, name, parameters, arguments)                 \
    extern "C" result emu_for_c_##name parameters __asm__(#name);      \
    extern "C" result emu_for_c_##name parameters { return name arguments; }
EMU_FOR_C(cudaError_t, cudaSetDevice, (int n), (n))
EMU_FOR_C(cudaError_t, cudaGetDevice, (int* n), (n))
EMU_FOR_C(cudaError_t, cudaGetDeviceCount, (int* n), (n))
EMU_FOR_C(cudaError_t, cudaMalloc, (void** p, size_t bytes), (p, bytes))
EMU_FOR_C(cudaError_t, cudaFree, (void* p), (p))
EMU_FOR_C(cudaError_t, cudaMemcpy, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind),
          (to, from, bytes, kind))
EMU_FOR_C(cudaError_t, cudaMemset, (void* p, int value, size_t bytes), (p, value, bytes))
EMU_FOR_C(cudaError_t, cudaDeviceSynchronize, (), ())
EMU_FOR_C(cudaError_t, cudaThreadSynchronize, (), ())
EMU_FOR_C(cudaError_t, cudaDeviceReset, (), ())
EMU_FOR_C(cudaError_t, cudaThreadExit, (), ())
EMU_FOR_C(cudaError_t, cudaGetLastError, (), ())
EMU_FOR_C(const char*, cudaGetErrorString, (cudaError_t error), (error))
#undef EMU_FOR_C

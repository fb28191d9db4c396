// Of the driver API what asks for devices, and tensor maps; modules and launches are not emulated. Many programs include this
// header and use the runtime's names alone.
#pragma once
#define __cuda_cuda_h__
#include "cuda_runtime.h"

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef cudaStream_t CUstream;
typedef cudaEvent_t CUevent;
#define EMU_RESULTS(of)                                \
    of(CUDA_SUCCESS, 0, "no error")                    \
    of(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument") \
    of(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory")   \
    of(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error") \
    of(CUDA_ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected") \
    of(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal") \
    of(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported") \
    of(CUDA_ERROR_UNKNOWN, 999, "unknown error")
#define EMU_ENUMERATOR(name, value, text) name = value,
typedef enum cudaError_enum { EMU_RESULTS(EMU_ENUMERATOR) } CUresult;
#undef EMU_ENUMERATOR
enum CUcomputemode { CU_COMPUTEMODE_DEFAULT = 0, CU_COMPUTEMODE_PROHIBITED = 2 };
// The member of cudaDeviceProp that answers, beside the attributes that the runtime has under another name.
#define EMU_DRIVER_ATTRIBUTES(of)                                                            \
    of(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1, p.maxThreadsPerBlock)                   \
    of(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 2, p.maxThreadsDim[0])                           \
    of(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 3, p.maxThreadsDim[1])                           \
    of(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 4, p.maxThreadsDim[2])                           \
    of(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 5, p.maxGridSize[0])                              \
    of(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 6, p.maxGridSize[1])                              \
    of(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 7, p.maxGridSize[2])                              \
    of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 8, p.sharedMemPerBlock)              \
    of(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 9, p.totalConstMem)                        \
    of(CU_DEVICE_ATTRIBUTE_WARP_SIZE, 10, p.warpSize)                                        \
    of(CU_DEVICE_ATTRIBUTE_MAX_PITCH, 11, p.memPitch)                                        \
    of(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 12, p.regsPerBlock)                      \
    of(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 13, p.clockRate)                                      \
    of(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 14, p.textureAlignment)                        \
    of(CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 15, p.deviceOverlap)                                 \
    of(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16, p.multiProcessorCount)                  \
    of(CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT, 17, p.kernelExecTimeoutEnabled)              \
    of(CU_DEVICE_ATTRIBUTE_INTEGRATED, 18, p.integrated)                                     \
    of(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 19, p.canMapHostMemory)                      \
    of(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 20, p.computeMode)                                  \
    of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 21, p.maxTexture1D)                      \
    of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 22, p.maxTexture2D[0])                   \
    of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 23, p.maxTexture2D[1])                  \
    of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 24, p.maxTexture3D[0])                   \
    of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 25, p.maxTexture3D[1])                  \
    of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 26, p.maxTexture3D[2])                   \
    of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 27, p.maxTexture2DLayered[0])    \
    of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 28, p.maxTexture2DLayered[1])   \
    of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 29, p.maxTexture2DLayered[2])   \
    of(CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 30, p.surfaceAlignment)                        \
    of(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 31, p.concurrentKernels)                      \
    of(CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 32, p.ECCEnabled)                                    \
    of(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 33, p.pciBusID)                                       \
    of(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 34, p.pciDeviceID)                                 \
    of(CU_DEVICE_ATTRIBUTE_TCC_DRIVER, 35, p.tccDriver)                                      \
    of(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 36, p.memoryClockRate)                         \
    of(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 37, p.memoryBusWidth)                    \
    of(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 38, p.l2CacheSize)                                 \
    of(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 39, p.maxThreadsPerMultiProcessor) \
    of(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 40, p.asyncEngineCount)                       \
    of(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 41, p.unifiedAddressing)                      \
    of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH, 42, p.maxTexture1DLayered[0])    \
    of(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS, 43, p.maxTexture1DLayered[1])   \
    of(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 50, p.pciDomainID)                                 \
    of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75, p.major)                            \
    of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76, p.minor)                            \
    of(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 83, p.managedMemory)                              \
    of(CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 90, p.computePreemptionSupported)   \
    of(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 95, p.cooperativeLaunch)                      \
    of(CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH, 96, p.cooperativeMultiDeviceLaunch)
#define EMU_ENUMERATOR(name, value, answer) name = value,
typedef enum CUdevice_attribute_enum {
    EMU_DRIVER_ATTRIBUTES(EMU_ENUMERATOR)
} CUdevice_attribute;
#undef EMU_ENUMERATOR

#include "tensor_maps.h"

inline CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
inline CUresult cuDeviceGetCount(int* n) { *n = 1; return CUDA_SUCCESS; }
inline CUresult cuDeviceGet(CUdevice* to, int n) {
    *to = n;
    return n == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
inline CUresult cuDeviceGetName(char* to, int bytes, CUdevice) {
    snprintf(to, size_t(bytes), "%s", cudaDeviceProp().name);
    return CUDA_SUCCESS;
}
inline CUresult cuDriverGetVersion(int* to) { *to = CUDA_VERSION; return CUDA_SUCCESS; }
inline CUresult cuDeviceTotalMem(size_t* to, CUdevice) {
    *to = cudaDeviceProp().totalGlobalMem;
    return CUDA_SUCCESS;
}
inline CUresult cuDeviceCanAccessPeer(int* to, CUdevice, CUdevice) {
    *to = 0;
    return CUDA_SUCCESS;
}
inline CUresult cuDeviceGetAttribute(int* to, CUdevice_attribute attribute, CUdevice n) {
    if (n != 0) return CUDA_ERROR_INVALID_DEVICE;
    cudaDeviceProp p;
#define EMU_CASE(name, value, answer) case name: *to = int(answer); return CUDA_SUCCESS;
    switch (attribute) { EMU_DRIVER_ATTRIBUTES(EMU_CASE) }
#undef EMU_CASE
    return CUDA_ERROR_INVALID_VALUE;
}
inline CUresult cuGetErrorName(CUresult error, const char** to) {
#define EMU_CASE(name, value, text) case name: *to = #name; return CUDA_SUCCESS;
    switch (error) { EMU_RESULTS(EMU_CASE) }
#undef EMU_CASE
    return CUDA_ERROR_INVALID_VALUE;
}
inline CUresult cuGetErrorString(CUresult error, const char** to) {
#define EMU_CASE(name, value, text) case name: *to = text; return CUDA_SUCCESS;
    switch (error) { EMU_RESULTS(EMU_CASE) }
#undef EMU_CASE
    return CUDA_ERROR_INVALID_VALUE;
}

// Structs of NVIDIA's runtime as programs were compiled with them, where the emulator's own have another layout.
// CUDA Runtime API, "Data types used by CUDA Runtime", 12 and 13.
#pragma once
#include <cstring>

#include "../runtime/types.h"

namespace emu {
namespace cudart {
// Members in the order of both versions; those in DROPPED are not in 13 any more.
#define EMU_MEMBERS(ONE, MANY, DROPPED)                                                                                   \
    ONE(size_t, totalGlobalMem) ONE(size_t, sharedMemPerBlock) ONE(int, regsPerBlock) ONE(int, warpSize)                  \
    ONE(size_t, memPitch) ONE(int, maxThreadsPerBlock) MANY(int, maxThreadsDim, 3) MANY(int, maxGridSize, 3)              \
    DROPPED(int, clockRate) ONE(size_t, totalConstMem) ONE(int, major) ONE(int, minor) ONE(size_t, textureAlignment)      \
    ONE(size_t, texturePitchAlignment) DROPPED(int, deviceOverlap) ONE(int, multiProcessorCount)                          \
    DROPPED(int, kernelExecTimeoutEnabled) ONE(int, integrated) ONE(int, canMapHostMemory) DROPPED(int, computeMode)
#define EMU_LATER_MEMBERS(ONE, DROPPED)                                                                                   \
    ONE(size_t, surfaceAlignment) ONE(int, concurrentKernels) ONE(int, ECCEnabled) ONE(int, pciBusID)                     \
    ONE(int, pciDeviceID) ONE(int, pciDomainID) ONE(int, tccDriver) ONE(int, asyncEngineCount)                            \
    ONE(int, unifiedAddressing) DROPPED(int, memoryClockRate) ONE(int, memoryBusWidth) ONE(int, l2CacheSize)              \
    ONE(int, persistingL2CacheMaxSize) ONE(int, maxThreadsPerMultiProcessor) ONE(int, streamPrioritiesSupported)          \
    ONE(int, globalL1CacheSupported) ONE(int, localL1CacheSupported) ONE(size_t, sharedMemPerMultiprocessor)              \
    ONE(int, regsPerMultiprocessor) ONE(int, managedMemory) ONE(int, isMultiGpuBoard) ONE(int, multiGpuBoardGroupID)      \
    ONE(int, hostNativeAtomicSupported) DROPPED(int, singleToDoublePrecisionPerfRatio) ONE(int, pageableMemoryAccess)     \
    ONE(int, concurrentManagedAccess) ONE(int, computePreemptionSupported) ONE(int, canUseHostPointerForRegisteredMem)    \
    ONE(int, cooperativeLaunch) DROPPED(int, cooperativeMultiDeviceLaunch) ONE(size_t, sharedMemPerBlockOptin)            \
    ONE(int, pageableMemoryAccessUsesHostPageTables) ONE(int, directManagedMemAccessFromHost)                             \
    ONE(int, maxBlocksPerMultiProcessor) ONE(int, accessPolicyMaxWindowSize) ONE(size_t, reservedSharedMemPerBlock)
#define EMU_MEMBER(type, name) type name;
#define EMU_ARRAY(type, name, count) type name[count];
#if LAB_CUDART >= 13
#define EMU_DROPPED(type, name)
#else
#define EMU_DROPPED(type, name) type name;
#endif
struct Properties {
    char name[256];
    cudaUUID_t uuid;
    char luid[8];
    unsigned luidDeviceNodeMask;
    EMU_MEMBERS(EMU_MEMBER, EMU_ARRAY, EMU_DROPPED)
    // Of textures and surfaces: none is run here.
    int maxTexture1D, maxTexture1DMipmap;
#if LAB_CUDART < 13
    int maxTexture1DLinear;
#endif
    int maxTextures[37];
    EMU_LATER_MEMBERS(EMU_MEMBER, EMU_DROPPED)
    int hostRegisterSupported, sparseCudaArraySupported, hostRegisterReadOnlySupported, timelineSemaphoreInteropSupported,
        memoryPoolsSupported, gpuDirectRDMASupported;
    unsigned gpuDirectRDMAFlushWritesOptions;
    int gpuDirectRDMAWritesOrdering;
    unsigned memoryPoolSupportedHandleTypes;
    int deferredMappingCudaArraySupported, ipcEventSupported, clusterLaunch, unifiedFunctionPointers, reserved[63];
};

inline void fill(Properties* to, const cudaDeviceProp& from) {
    memset(to, 0, sizeof *to);
    memcpy(to->name, from.name, sizeof to->name);
#undef EMU_MEMBER
#undef EMU_ARRAY
#undef EMU_DROPPED
#define EMU_MEMBER(type, name) to->name = from.name;
#define EMU_ARRAY(type, name, count) memcpy(to->name, from.name, sizeof to->name);
#if LAB_CUDART >= 13
#define EMU_DROPPED(type, name)
#else
#define EMU_DROPPED(type, name) to->name = from.name;
#endif
    EMU_MEMBERS(EMU_MEMBER, EMU_ARRAY, EMU_DROPPED)
    EMU_LATER_MEMBERS(EMU_MEMBER, EMU_DROPPED)
    to->memoryPoolsSupported = 1;
    to->clusterLaunch = EMU_ARCH >= 900;
}

struct FunctionAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA, maxDynamicSharedSizeBytes, preferredShmemCarveout,
        clusterDimMustBeSet, requiredClusterWidth, requiredClusterHeight, requiredClusterDepth,
        clusterSchedulingPolicyPreference, nonPortableClusterSizeAllowed, reserved[16];
};
struct LaunchAttribute {
    int id, pad;
    union {
        char bytes[64];
        int number;
        unsigned sizes[3];
    } value;
};
struct LaunchConfig {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    const LaunchAttribute* attributes;
    unsigned count;
};
}  // namespace cudart
}  // namespace emu

// The runtime API's types: errors, devices, streams, what a launch is configured by.
#pragma once
#include "emulator.h"

// The GPU that is stood for, as __CUDA_ARCH__ has it, and the bytes of shared memory that a block of it may have.
#ifndef EMU_ARCH
#define EMU_ARCH 800
#define EMU_SHARED (163 << 10)
#endif

// A member of cudaDeviceProp has this name.
#undef warpSize
constexpr int warpSize = 32;
// Kernels' variables, which a program may also declare extern or static.
#undef __constant__
#define __constant__
#define __managed__
// Where a program says it, it is rewritten; g++'s headers mean an attribute.
#undef __noinline__
#define __cudart_builtin__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __block_size__(...)
#define __maxnreg__(...)
// Of a kernel in a macro; kept where the preprocessor alone reads it.
#ifndef EMU_MADE
#define EMU_MADE(...)
#endif

#define CUDART_VERSION 12040
#define CUDA_VERSION 12040
#define CUDART_CB
#define CUDARTAPI
#define __CUDART_API_VERSION CUDART_VERSION

#define EMU_ERRORS(of)                                                                             \
    of(cudaSuccess, 0, "no error")                                                                 \
    of(cudaErrorInvalidValue, 1, "invalid argument")                                               \
    of(cudaErrorMemoryAllocation, 2, "out of memory")                                              \
    of(cudaErrorMapBufferObjectFailed, 205, "mapping of buffer object failed")                    \
    of(cudaErrorPriorLaunchFailure, 53, "unspecified launch failure in prior launch")              \
    of(cudaErrorProfilerDisabled, 5, "profiler disabled while using external profiling tool")      \
    of(cudaErrorProfilerNotInitialized, 6, "profiler not initialized")                             \
    of(cudaErrorProfilerAlreadyStarted, 7, "profiler already started")                             \
    of(cudaErrorProfilerAlreadyStopped, 8, "profiler already stopped")                             \
    of(cudaErrorInvalidTexture, 18, "invalid texture reference")                                   \
    of(cudaErrorInvalidTextureBinding, 19, "texture is not bound to a pointer")                    \
    of(cudaErrorInvalidChannelDescriptor, 20, "invalid channel descriptor")                        \
    of(cudaErrorAddressOfConstant, 22, "invalid address of constant")                              \
    of(cudaErrorTextureFetchFailed, 23, "fetch from texture failed")                               \
    of(cudaErrorTextureNotBound, 24, "cannot fetch from a texture that is not bound")              \
    of(cudaErrorSynchronizationError, 25, "incorrect use of __syncthreads()")                      \
    of(cudaErrorInvalidFilterSetting, 26, "linear filtering not supported for non-float type")     \
    of(cudaErrorInvalidNormSetting, 27, "read as normalized float not supported for 32-bit non float type") \
    of(cudaErrorMixedDeviceExecution, 28, "device emulation mode and device execution mode cannot be mixed") \
    of(cudaErrorNotYetImplemented, 31, "feature not yet implemented")                              \
    of(cudaErrorMemoryValueTooLarge, 32, "memory size or pointer value too large to fit in 32 bit") \
    of(cudaErrorInvalidSurface, 37, "invalid surface reference")                                   \
    of(cudaErrorDuplicateVariableName, 43, "duplicate global variable looked up by string name")   \
    of(cudaErrorDuplicateTextureName, 44, "duplicate texture looked up by string name")            \
    of(cudaErrorDuplicateSurfaceName, 45, "duplicate surface looked up by string name")            \
    of(cudaErrorDevicesUnavailable, 46, "all CUDA-capable devices are busy or unavailable")        \
    of(cudaErrorIncompatibleDriverContext, 49, "incompatible driver context")                      \
    of(cudaErrorStartupFailure, 127, "startup failure in cuda runtime")                            \
    of(cudaErrorInvalidKernelImage, 200, "device kernel image is invalid")                         \
    of(cudaErrorUnmapBufferObjectFailed, 206, "unmapping of buffer object failed")                 \
    of(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device") \
    of(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error encountered")                      \
    of(cudaErrorUnsupportedLimit, 215, "limit is not supported on this architecture")              \
    of(cudaErrorSharedObjectSymbolNotFound, 302, "shared object symbol not found")                 \
    of(cudaErrorSharedObjectInitFailed, 303, "shared object initialization failed")                \
    of(cudaErrorSetOnActiveProcess, 708, "cannot set while device is active in this process")      \
    of(cudaErrorTooManyPeers, 711, "peer mapping resources exhausted")                             \
    of(cudaErrorApiFailureBase, 10000, "api failure base")                                         \
    of(cudaErrorInitializationError, 3, "initialization error")                                    \
    of(cudaErrorCudartUnloading, 4, "driver shutting down")                                        \
    of(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                         \
    of(cudaErrorInvalidPitchValue, 12, "invalid pitch argument")                                   \
    of(cudaErrorInvalidSymbol, 13, "invalid device symbol")                                        \
    of(cudaErrorInvalidHostPointer, 16, "invalid host pointer")                                    \
    of(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")                                \
    of(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                   \
    of(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version") \
    of(cudaErrorMissingConfiguration, 52, "__global__ function call is not configured")            \
    of(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                              \
    of(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                               \
    of(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                      \
    of(cudaErrorDeviceAlreadyInUse, 216, "exclusive-thread device already in use")                 \
    of(cudaErrorPeerAccessUnsupported, 217, "peer access is not supported between these two devices") \
    of(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                             \
    of(cudaErrorNotReady, 600, "device not ready")                                                 \
    of(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                   \
    of(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")              \
    of(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                     \
    of(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")                   \
    of(cudaErrorPeerAccessNotEnabled, 705, "peer access has not been enabled")                     \
    of(cudaErrorAssert, 710, "device-side assert triggered")                                       \
    of(cudaErrorHostMemoryAlreadyRegistered, 712, "part or all of the requested memory range is already mapped") \
    of(cudaErrorHostMemoryNotRegistered, 713, "pointer does not correspond to a registered memory region") \
    of(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                  \
    of(cudaErrorCooperativeLaunchTooLarge, 720, "too many blocks in cooperative launch")           \
    of(cudaErrorNotSupported, 801, "operation not supported")                                      \
    of(cudaErrorUnknown, 999, "unknown error")
#define EMU_ENUMERATOR(name, value, text) name = value,
enum cudaError { EMU_ERRORS(EMU_ENUMERATOR) };
#undef EMU_ENUMERATOR
typedef cudaError cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaFuncCache {
    cudaFuncCachePreferNone,
    cudaFuncCachePreferShared,
    cudaFuncCachePreferL1,
    cudaFuncCachePreferEqual
};
enum cudaSharedMemConfig {
    cudaSharedMemBankSizeDefault,
    cudaSharedMemBankSizeFourByte,
    cudaSharedMemBankSizeEightByte
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
    cudaFuncAttributeNonPortableClusterSizeAllowed = 14
};
enum cudaLimit {
    cudaLimitStackSize,
    cudaLimitPrintfFifoSize,
    cudaLimitMallocHeapSize,
    cudaLimitDevRuntimeSyncDepth,
    cudaLimitDevRuntimePendingLaunchCount,
    cudaLimitMaxL2FetchGranularity,
    cudaLimitPersistingL2CacheSize
};
enum cudaComputeMode {
    cudaComputeModeDefault,
    cudaComputeModeExclusive,
    cudaComputeModeProhibited,
    cudaComputeModeExclusiveProcess
};
enum cudaMemoryType {
    cudaMemoryTypeUnregistered,
    cudaMemoryTypeHost,
    cudaMemoryTypeDevice,
    cudaMemoryTypeManaged
};
enum cudaMemoryAdvise {
    cudaMemAdviseSetReadMostly = 1,
    cudaMemAdviseUnsetReadMostly,
    cudaMemAdviseSetPreferredLocation,
    cudaMemAdviseUnsetPreferredLocation,
    cudaMemAdviseSetAccessedBy,
    cudaMemAdviseUnsetAccessedBy
};
enum cudaSharedCarveout {
    cudaSharedmemCarveoutDefault = -1,
    cudaSharedmemCarveoutMaxL1 = 0,
    cudaSharedmemCarveoutMaxShared = 100
};
// The member of cudaDeviceProp that answers, or the answer.
#define EMU_ATTRIBUTES(of)                                                          \
    of(cudaDevAttrMaxThreadsPerBlock, 1, p.maxThreadsPerBlock)                      \
    of(cudaDevAttrMaxBlockDimX, 2, p.maxThreadsDim[0])                              \
    of(cudaDevAttrMaxBlockDimY, 3, p.maxThreadsDim[1])                              \
    of(cudaDevAttrMaxBlockDimZ, 4, p.maxThreadsDim[2])                              \
    of(cudaDevAttrMaxGridDimX, 5, p.maxGridSize[0])                                 \
    of(cudaDevAttrMaxGridDimY, 6, p.maxGridSize[1])                                 \
    of(cudaDevAttrMaxGridDimZ, 7, p.maxGridSize[2])                                 \
    of(cudaDevAttrMaxSharedMemoryPerBlock, 8, p.sharedMemPerBlock)                  \
    of(cudaDevAttrTotalConstantMemory, 9, p.totalConstMem)                          \
    of(cudaDevAttrWarpSize, 10, p.warpSize)                                         \
    of(cudaDevAttrMaxPitch, 11, p.memPitch)                                         \
    of(cudaDevAttrMaxRegistersPerBlock, 12, p.regsPerBlock)                         \
    of(cudaDevAttrClockRate, 13, p.clockRate)                                       \
    of(cudaDevAttrTextureAlignment, 14, p.textureAlignment)                         \
    of(cudaDevAttrGpuOverlap, 15, p.deviceOverlap)                                  \
    of(cudaDevAttrMultiProcessorCount, 16, p.multiProcessorCount)                   \
    of(cudaDevAttrKernelExecTimeout, 17, p.kernelExecTimeoutEnabled)                \
    of(cudaDevAttrIntegrated, 18, p.integrated)                                     \
    of(cudaDevAttrCanMapHostMemory, 19, p.canMapHostMemory)                         \
    of(cudaDevAttrComputeMode, 20, p.computeMode)                                   \
    of(cudaDevAttrConcurrentKernels, 31, p.concurrentKernels)                       \
    of(cudaDevAttrEccEnabled, 32, p.ECCEnabled)                                     \
    of(cudaDevAttrPciBusId, 33, p.pciBusID)                                         \
    of(cudaDevAttrPciDeviceId, 34, p.pciDeviceID)                                   \
    of(cudaDevAttrTccDriver, 35, p.tccDriver)                                       \
    of(cudaDevAttrMemoryClockRate, 36, p.memoryClockRate)                           \
    of(cudaDevAttrGlobalMemoryBusWidth, 37, p.memoryBusWidth)                       \
    of(cudaDevAttrL2CacheSize, 38, p.l2CacheSize)                                   \
    of(cudaDevAttrMaxThreadsPerMultiProcessor, 39, p.maxThreadsPerMultiProcessor)   \
    of(cudaDevAttrAsyncEngineCount, 40, p.asyncEngineCount)                         \
    of(cudaDevAttrUnifiedAddressing, 41, p.unifiedAddressing)                       \
    of(cudaDevAttrComputeCapabilityMajor, 75, p.major)                              \
    of(cudaDevAttrComputeCapabilityMinor, 76, p.minor)                              \
    of(cudaDevAttrStreamPrioritiesSupported, 78, p.streamPrioritiesSupported)       \
    of(cudaDevAttrGlobalL1CacheSupported, 79, p.globalL1CacheSupported)             \
    of(cudaDevAttrLocalL1CacheSupported, 80, p.localL1CacheSupported)               \
    of(cudaDevAttrMaxSharedMemoryPerMultiprocessor, 81, p.sharedMemPerMultiprocessor) \
    of(cudaDevAttrMaxRegistersPerMultiprocessor, 82, p.regsPerMultiprocessor)       \
    of(cudaDevAttrManagedMemory, 83, p.managedMemory)                               \
    of(cudaDevAttrIsMultiGpuBoard, 84, p.isMultiGpuBoard)                           \
    of(cudaDevAttrHostNativeAtomicSupported, 86, p.hostNativeAtomicSupported)       \
    of(cudaDevAttrSingleToDoublePrecisionPerfRatio, 87, p.singleToDoublePrecisionPerfRatio) \
    of(cudaDevAttrPageableMemoryAccess, 88, p.pageableMemoryAccess)                 \
    of(cudaDevAttrConcurrentManagedAccess, 89, p.concurrentManagedAccess)           \
    of(cudaDevAttrComputePreemptionSupported, 90, p.computePreemptionSupported)     \
    of(cudaDevAttrCanUseHostPointerForRegisteredMem, 91, 0)                         \
    of(cudaDevAttrCooperativeLaunch, 95, p.cooperativeLaunch)                       \
    of(cudaDevAttrCooperativeMultiDeviceLaunch, 96, 0)                              \
    of(cudaDevAttrMaxSharedMemoryPerBlockOptin, 97, p.sharedMemPerBlockOptin)       \
    of(cudaDevAttrHostRegisterSupported, 99, 0)                                     \
    of(cudaDevAttrMaxBlocksPerMultiprocessor, 106, p.maxBlocksPerMultiProcessor)    \
    of(cudaDevAttrReservedSharedMemoryPerBlock, 111, p.reservedSharedMemPerBlock)   \
    of(cudaDevAttrMemoryPoolsSupported, 115, 1)
#define EMU_ENUMERATOR(name, value, answer) name = value,
enum cudaDeviceAttr { EMU_ATTRIBUTES(EMU_ENUMERATOR) };
#undef EMU_ENUMERATOR

constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0,
                   cudaEventBlockingSync = 1, cudaEventDisableTiming = 2, cudaEventInterprocess = 4,
                   cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2,
                   cudaHostAllocWriteCombined = 4, cudaHostRegisterDefault = 0,
                   cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2,
                   cudaMemAttachGlobal = 1, cudaMemAttachHost = 2, cudaMemAttachSingle = 4,
                   cudaDeviceScheduleAuto = 0, cudaDeviceScheduleSpin = 1,
                   cudaDeviceScheduleYield = 2, cudaDeviceBlockingSync = 4,
                   cudaDeviceScheduleBlockingSync = 4, cudaDeviceMapHost = 8,
                   cudaOccupancyDefault = 0;
constexpr int cudaCpuDeviceId = -1, cudaInvalidDeviceId = -2;

// A stream is done with whatever is put into it before the call returns: one of the orders that are
// allowed. An event keeps the time.
struct CUstream_st { unsigned flags; int priority; };
struct CUevent_st { double milliseconds; };
typedef CUstream_st* cudaStream_t;
typedef CUevent_st* cudaEvent_t;
#define cudaStreamLegacy ((cudaStream_t)1)
#define cudaStreamPerThread ((cudaStream_t)2)
typedef void (*cudaStreamCallback_t)(cudaStream_t, cudaError_t, void*);
typedef void (*cudaHostFn_t)(void*);

struct cudaMemPool_st { unsigned long long threshold; };
typedef cudaMemPool_st* cudaMemPool_t;
enum cudaMemPoolAttr {
    cudaMemPoolReuseFollowEventDependencies = 1,
    cudaMemPoolReuseAllowOpportunistic,
    cudaMemPoolReuseAllowInternalDependencies,
    cudaMemPoolAttrReleaseThreshold
};
enum cudaMemLocationType { cudaMemLocationTypeInvalid, cudaMemLocationTypeDevice, cudaMemLocationTypeHost };
struct cudaMemLocation { cudaMemLocationType type; int id; };
enum cudaMemAccessFlags {
    cudaMemAccessFlagsProtNone,
    cudaMemAccessFlagsProtRead,
    cudaMemAccessFlagsProtReadWrite = 3
};
struct cudaMemAccessDesc { cudaMemLocation location; cudaMemAccessFlags flags; };
enum cudaDeviceP2PAttr {
    cudaDevP2PAttrPerformanceRank = 1,
    cudaDevP2PAttrAccessSupported,
    cudaDevP2PAttrNativeAtomicSupported,
    cudaDevP2PAttrCudaArrayAccessSupported
};
enum cudaAccessProperty {
    cudaAccessPropertyNormal,
    cudaAccessPropertyStreaming,
    cudaAccessPropertyPersisting
};
struct cudaAccessPolicyWindow {
    void* base_ptr;
    size_t num_bytes;
    float hitRatio;
    cudaAccessProperty hitProp, missProp;
};
enum cudaStreamAttrID { cudaStreamAttributeAccessPolicyWindow = 1 };
struct cudaStreamAttrValue { cudaAccessPolicyWindow accessPolicyWindow; };

struct cudaExtent { size_t width, height, depth; };
struct cudaPos { size_t x, y, z; };
struct cudaPitchedPtr { void* ptr; size_t pitch, xsize, ysize; };
struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};
struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA,
        maxDynamicSharedSizeBytes, preferredShmemCarveout;
};
struct CUuuid_st { char bytes[16]; };
typedef CUuuid_st cudaUUID_t;

// Of an A100, in the members that programs ask for, but for what the architecture says.
struct cudaDeviceProp {
    char name[256] = "the vLSTM lab's emulator";
    cudaUUID_t uuid = {};
    size_t totalGlobalMem = size_t(16) << 30, sharedMemPerBlock = 48 << 10;
    int regsPerBlock = 65536, warpSize = 32;
    size_t memPitch = 0x7fffffff;
    int maxThreadsPerBlock = 1024, maxThreadsDim[3] = {1024, 1024, 64},
        maxGridSize[3] = {0x7fffffff, 65535, 65535}, clockRate = 1410000;
    size_t totalConstMem = 64 << 10;
    int major = EMU_ARCH / 100, minor = EMU_ARCH / 10 % 10;
    size_t textureAlignment = 512, texturePitchAlignment = 32;
    int deviceOverlap = 1, multiProcessorCount = 108, kernelExecTimeoutEnabled = 0, integrated = 0,
        canMapHostMemory = 1, computeMode = 0, maxTexture1D = 131072,
        maxTexture2D[2] = {131072, 65536}, maxTexture3D[3] = {16384, 16384, 16384},
        maxTexture1DLayered[2] = {32768, 2048}, maxTexture2DLayered[3] = {32768, 32768, 2048};
    size_t surfaceAlignment = 512;
    int concurrentKernels = 1, ECCEnabled = 1, pciBusID = 0, pciDeviceID = 0, pciDomainID = 0,
        tccDriver = 0, asyncEngineCount = 3, unifiedAddressing = 1, memoryClockRate = 1215000,
        memoryBusWidth = 5120, l2CacheSize = 40 << 20, persistingL2CacheMaxSize = 30 << 20,
        maxThreadsPerMultiProcessor = 2048, streamPrioritiesSupported = 1,
        globalL1CacheSupported = 1, localL1CacheSupported = 1;
    size_t sharedMemPerMultiprocessor = EMU_SHARED + 1024;
    int regsPerMultiprocessor = 65536, managedMemory = 1, isMultiGpuBoard = 0, multiGpuBoardGroupID = 0,
        hostNativeAtomicSupported = 0, singleToDoublePrecisionPerfRatio = 2, pageableMemoryAccess = 0,
        concurrentManagedAccess = 1, computePreemptionSupported = 1,
        canUseHostPointerForRegisteredMem = 1, cooperativeLaunch = 1, cooperativeMultiDeviceLaunch = 0;
    size_t sharedMemPerBlockOptin = EMU_SHARED;
    int pageableMemoryAccessUsesHostPageTables = 0, directManagedMemAccessFromHost = 0,
        maxBlocksPerMultiProcessor = 32, accessPolicyMaxWindowSize = 0;
    size_t reservedSharedMemPerBlock = 1024;
};

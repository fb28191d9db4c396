// The functions that only pass on what they get; behind them those that are refused by their name.
#pragma once
#define PASS(name, parameters, arguments) CUDART(cudaError_t, name, parameters) { return name arguments; }
#define NOTHING(name) CUDART(cudaError_t, name, ()) { EMU_API; return cudaSuccess; }
#define KIND(kind) cudaMemcpyKind(kind)

// ---- errors ----------------------------------------------------------------------------------------------------------
PASS(cudaGetLastError, (), ())
PASS(cudaPeekAtLastError, (), ())
CUDART(const char*, cudaGetErrorName, (int code)) { return cudaGetErrorName(cudaError_t(code)); }
CUDART(const char*, cudaGetErrorString, (int code)) { return cudaGetErrorString(cudaError_t(code)); }

// ---- memory ----------------------------------------------------------------------------------------------------------
PASS(cudaMalloc, (void** to, size_t bytes), (to, bytes))
PASS(cudaMallocAsync, (void** to, size_t bytes, cudaStream_t stream), (to, bytes, stream))
PASS(cudaMallocFromPoolAsync, (void** to, size_t bytes, cudaMemPool_t pool, cudaStream_t stream), (to, bytes, pool, stream))
PASS(cudaMallocManaged, (void** to, size_t bytes, unsigned flags), (to, bytes, flags))
PASS(cudaMallocHost, (void** to, size_t bytes), (to, bytes))
PASS(cudaHostAlloc, (void** to, size_t bytes, unsigned flags), (to, bytes, flags))
PASS(cudaMallocPitch, (void** to, size_t* pitch, size_t width, size_t height), (to, pitch, width, height))
PASS(cudaFree, (void* p), (p))
PASS(cudaFreeAsync, (void* p, cudaStream_t stream), (p, stream))
PASS(cudaFreeHost, (void* p), (p))
CUDART(cudaError_t, cudaHostGetDevicePointer, (void** to, void* p, unsigned flags)) {
    char* device = registered(p);
    return cudaHostGetDevicePointer(to, device ? device : p, flags);
}
PASS(cudaHostRegister, (void* p, size_t bytes, unsigned flags), (p, bytes, flags))
PASS(cudaHostUnregister, (void* p), (p))
PASS(cudaMemcpy, (void* to, const void* from, size_t bytes, int kind), (to, from, bytes, KIND(kind)))
PASS(cudaMemcpyAsync, (void* to, const void* from, size_t bytes, int kind, cudaStream_t stream),
     (to, from, bytes, KIND(kind), stream))
PASS(cudaMemcpyPeer, (void* to, int a, const void* from, int b, size_t bytes), (to, a, from, b, bytes))
PASS(cudaMemcpyPeerAsync, (void* to, int a, const void* from, int b, size_t bytes, cudaStream_t stream),
     (to, a, from, b, bytes, stream))
PASS(cudaMemcpy2D, (void* to, size_t to_pitch, const void* from, size_t pitch, size_t width, size_t height, int kind),
     (to, to_pitch, from, pitch, width, height, KIND(kind)))
PASS(cudaMemcpy2DAsync,
     (void* to, size_t to_pitch, const void* from, size_t pitch, size_t width, size_t height, int kind, cudaStream_t stream),
     (to, to_pitch, from, pitch, width, height, KIND(kind), stream))
PASS(cudaMemset, (void* to, int value, size_t bytes), (to, value, bytes))
PASS(cudaMemsetAsync, (void* to, int value, size_t bytes, cudaStream_t stream), (to, value, bytes, stream))
PASS(cudaMemset2D, (void* to, size_t pitch, int value, size_t width, size_t height), (to, pitch, value, width, height))
CUDART(cudaError_t, cudaMemset2DAsync, (void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t)) {
    return cudaMemset2D(to, pitch, value, width, height);
}
PASS(cudaMemGetInfo, (size_t* free, size_t* total), (free, total))
CUDART(cudaError_t, cudaPointerGetAttributes, (void* to, const void* p)) {
    // 13 has eight words more, which are reserved.
    struct Attributes { int type, device; void *device_pointer, *host_pointer; } own = {};
    cudaPointerAttributes found;
    cudaError_t code = cudaPointerGetAttributes(&found, p);
    static const int types[] = {0, 1, 2, 3};
    own = {types[found.type], found.device, found.devicePointer, found.hostPointer};
    own.type = found.type == cudaMemoryTypeHost ? 1 : found.type == cudaMemoryTypeDevice ? 2 : found.type == cudaMemoryTypeManaged ? 3 : 0;
    if (LAB_CUDART >= 13) memset((char*)to + sizeof own, 0, 8 * sizeof(long));
    memcpy(to, &own, sizeof own);
    return code;
}
PASS(cudaDeviceGetDefaultMemPool, (cudaMemPool_t* to, int n), (to, n))
PASS(cudaDeviceGetMemPool, (cudaMemPool_t* to, int n), (to, n))
NOTHING(cudaMemPoolSetAttribute)
NOTHING(cudaMemPoolTrimTo)
NOTHING(cudaDeviceSetMemPool)
NOTHING(cudaMemPrefetchAsync)
NOTHING(cudaMemPrefetchAsync_v2)
NOTHING(cudaMemAdvise)
NOTHING(cudaMemAdvise_v2)
NOTHING(cudaStreamAttachMemAsync)

// ---- devices -----------------------------------------------------------------------------------------------------------
PASS(cudaGetDeviceCount, (int* n), (n))
PASS(cudaGetDevice, (int* n), (n))
PASS(cudaSetDevice, (int n), (n))
CUDART(cudaError_t, cudaInitDevice, (int n, unsigned, unsigned)) { return cudaSetDevice(n); }
CUDART(cudaError_t, cudaGetDeviceProperties, (cudart::Properties * to, int n)) {
    EMU_API;
    if (n != 0) return keep(cudaErrorInvalidDevice);
    fill(to, cudaDeviceProp());
    // They have another address there.
    to->canUseHostPointerForRegisteredMem = 0;
    to->hostRegisterSupported = 1;
    return cudaSuccess;
}
CUDART_ALSO(cudaError_t, cudaGetDeviceProperties_v2, cudaGetDeviceProperties, (cudart::Properties*, int))
PASS(cudaDeviceGetAttribute, (int* to, int attribute, int n), (to, cudaDeviceAttr(attribute), n))
CUDART(cudaError_t, cudaDriverGetVersion, (int* to)) { *to = 1000 * LAB_CUDART; return cudaSuccess; }
CUDART(cudaError_t, cudaRuntimeGetVersion, (int* to)) { *to = 1000 * LAB_CUDART; return cudaSuccess; }
PASS(cudaDeviceCanAccessPeer, (int* to, int a, int b), (to, a, b))
PASS(cudaDeviceGetP2PAttribute, (int* to, int attribute, int a, int b), (to, cudaDeviceP2PAttr(attribute), a, b))
PASS(cudaDeviceGetStreamPriorityRange, (int* least, int* greatest), (least, greatest))
PASS(cudaDeviceGetLimit, (size_t* to, int limit), (to, cudaLimit(limit)))
PASS(cudaChooseDevice, (int* to, const void* p), (to, p))
PASS(cudaDeviceReset, (), ())
CUDART(cudaError_t, cudaGetDeviceFlags, (unsigned* to)) { EMU_API; *to = 0; return cudaSuccess; }
CUDART(cudaError_t, cudaDeviceGetCacheConfig, (int* to)) { EMU_API; *to = 0; return cudaSuccess; }
CUDART(cudaError_t, cudaDeviceGetSharedMemConfig, (int* to)) { EMU_API; *to = 1; return cudaSuccess; }
NOTHING(cudaDeviceSynchronize)
NOTHING(cudaThreadExit)
NOTHING(cudaThreadSynchronize)
NOTHING(cudaSetDeviceFlags)
NOTHING(cudaDeviceSetCacheConfig)
NOTHING(cudaDeviceSetSharedMemConfig)
NOTHING(cudaDeviceSetLimit)
NOTHING(cudaProfilerStart)
NOTHING(cudaProfilerStop)
NOTHING(cudaCtxResetPersistingL2Cache)

// ---- streams and events --------------------------------------------------------------------------------------------------
PASS(cudaStreamCreate, (cudaStream_t* to), (to))
PASS(cudaStreamCreateWithFlags, (cudaStream_t* to, unsigned flags), (to, flags))
PASS(cudaStreamCreateWithPriority, (cudaStream_t* to, unsigned flags, int priority), (to, flags, priority))
PASS(cudaStreamDestroy, (cudaStream_t stream), (stream))
PASS(cudaStreamGetPriority, (cudaStream_t stream, int* to), (stream, to))
PASS(cudaStreamAddCallback, (cudaStream_t stream, cudaStreamCallback_t call, void* data, unsigned flags), (stream, call, data, flags))
PASS(cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t call, void* data), (stream, call, data))
NOTHING(cudaStreamSetAttribute)
NOTHING(cudaStreamSynchronize)
NOTHING(cudaStreamQuery)
NOTHING(cudaStreamWaitEvent)
PASS(cudaStreamBeginCapture, (cudaStream_t stream, int mode), (stream, cudaStreamCaptureMode(mode)))
PASS(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t* to), (stream, to))
PASS(cudaStreamIsCapturing, (cudaStream_t stream, cudaStreamCaptureStatus* to), (stream, to))
CUDART(cudaError_t, cudaGraphInstantiate, (cudaGraphExec_t * to, cudaGraph_t graph, unsigned long long)) {
    return cudaGraphInstantiate(to, graph, 0);
}
CUDART_ALSO(cudaError_t, cudaGraphInstantiateWithFlags, cudaGraphInstantiate, (cudaGraphExec_t*, cudaGraph_t, unsigned long long))
PASS(cudaGraphLaunch, (cudaGraphExec_t graph, cudaStream_t stream), (graph, stream))
PASS(cudaGraphCreate, (cudaGraph_t* to, unsigned flags), (to, flags))
PASS(cudaGraphDestroy, (cudaGraph_t graph), (graph))
PASS(cudaGraphExecDestroy, (cudaGraphExec_t graph), (graph))
NOTHING(cudaGraphUpload)
PASS(cudaEventCreate, (cudaEvent_t* to), (to))
PASS(cudaEventCreateWithFlags, (cudaEvent_t* to, unsigned flags), (to, flags))
PASS(cudaEventDestroy, (cudaEvent_t event), (event))
PASS(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
CUDART(cudaError_t, cudaEventRecordWithFlags, (cudaEvent_t event, cudaStream_t stream, unsigned)) {
    return cudaEventRecord(event, stream);
}
PASS(cudaEventElapsedTime, (float* to, cudaEvent_t from, cudaEvent_t until), (to, from, until))
CUDART_ALSO(cudaError_t, cudaEventElapsedTime_v2, cudaEventElapsedTime, (float*, cudaEvent_t, cudaEvent_t))
NOTHING(cudaEventSynchronize)
NOTHING(cudaEventQuery)

// Streams of a thread of its own are streams here.
#define ALSO(name) CUDART_ALSO(cudaError_t, name##_ptsz, name, ())
ALSO(cudaMemcpyAsync) ALSO(cudaMemsetAsync) ALSO(cudaMallocAsync) ALSO(cudaFreeAsync) ALSO(cudaMemcpyToSymbolAsync)
ALSO(cudaMemcpyFromSymbolAsync) ALSO(cudaMemcpy2DAsync) ALSO(cudaMemset2DAsync) ALSO(cudaLaunchHostFunc)
ALSO(cudaLaunchCooperativeKernel) ALSO(cudaStreamSynchronize) ALSO(cudaStreamQuery) ALSO(cudaStreamWaitEvent)
ALSO(cudaStreamGetPriority) ALSO(cudaStreamAddCallback) ALSO(cudaStreamBeginCapture) ALSO(cudaStreamEndCapture)
ALSO(cudaStreamIsCapturing) ALSO(cudaGraphLaunch) ALSO(cudaEventRecord) ALSO(cudaEventRecordWithFlags)
ALSO(cudaMemPrefetchAsync) ALSO(cudaMallocFromPoolAsync) ALSO(cudaGetDriverEntryPoint) ALSO(cudaGetDriverEntryPointByVersion)
#define ALSO_DEFAULT(name) CUDART_ALSO(cudaError_t, name##_ptds, name, ())
ALSO_DEFAULT(cudaMemcpy) ALSO_DEFAULT(cudaMemset) ALSO_DEFAULT(cudaMemcpyToSymbol) ALSO_DEFAULT(cudaMemcpyFromSymbol)
ALSO_DEFAULT(cudaMemcpy2D) ALSO_DEFAULT(cudaMemset2D)

// ---- what has no answer ----------------------------------------------------------------------------------------------------
#define REFUSED(name) CUDART(cudaError_t, name, ()) { return not_supported(#name); }
#include "refused.h"

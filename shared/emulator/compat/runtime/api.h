// The runtime API, as far as an emulated device has an answer. What has none returns
// cudaErrorNotSupported, and the report says its name.
#pragma once
#include <ctime>

#include "launch.h"

#define EMU_UNSUPPORTED(name)                                                       \
    template <class... A> inline cudaError_t name(A&&...) {                         \
        ::emu::host->unsupported(#name);                                            \
        return ::emu::keep(cudaErrorNotSupported);                                  \
    }
// Done by the time it is asked for.
#define EMU_NOTHING(name) \
    template <class... A> inline cudaError_t name(A&&...) { EMU_API; return cudaSuccess; }

// ---- errors -----------------------------------------------------------------------------------
inline cudaError_t cudaGetLastError() {
    if (emu::in_kernel()) return cudaSuccess;
    EMU_QUERY;
    cudaError_t last = emu::last_error;
    emu::last_error = cudaSuccess;
    return last;
}
inline cudaError_t cudaPeekAtLastError() { EMU_QUERY; return emu::last_error; }
inline const char* cudaGetErrorName(cudaError_t error) {
#define EMU_CASE(name, value, text) case name: return #name;
    switch (error) { EMU_ERRORS(EMU_CASE) }
#undef EMU_CASE
    return "unrecognized error code";
}
inline const char* cudaGetErrorString(cudaError_t error) {
#define EMU_CASE(name, value, text) case name: return text;
    switch (error) { EMU_ERRORS(EMU_CASE) }
#undef EMU_CASE
    return "unrecognized error code";
}

// ---- memory -----------------------------------------------------------------------------------
namespace emu {
template <class T> cudaError_t allocate(T** to, size_t bytes, int kind) {
    EMU_API;
    if (!to) return keep(cudaErrorInvalidValue);
    *to = static_cast<T*>(bytes ? host->allocate(bytes, kind) : nullptr);
    return bytes && !*to ? keep(cudaErrorMemoryAllocation) : cudaSuccess;
}
inline cudaError_t release(void* address, int kind) {
    EMU_API;
    return address ? keep(host->release(address, kind)) : cudaSuccess;
}
inline cudaError_t copy(void* to, const void* from, size_t bytes, int kind) {
    EMU_API;
    return bytes ? keep(host->copy(to, from, bytes, kind)) : cudaSuccess;
}
inline cudaError_t copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                             size_t width, size_t height, int kind) {
    if (width > to_pitch || width > from_pitch) return keep(cudaErrorInvalidPitchValue);
    for (size_t row = 0; row < height; ++row) {
        cudaError_t error = copy((char*)to + row * to_pitch, (const char*)from + row * from_pitch,
                                 width, kind);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
}  // namespace emu

template <class T> cudaError_t cudaMalloc(T** to, size_t bytes) {
    return emu::allocate(to, bytes, EMU_DEVICE);
}
template <class T> cudaError_t cudaMallocAsync(T** to, size_t bytes, cudaStream_t) {
    return emu::allocate(to, bytes, EMU_DEVICE);
}
template <class T>
cudaError_t cudaMallocManaged(T** to, size_t bytes, unsigned = cudaMemAttachGlobal) {
    return emu::allocate(to, bytes, EMU_MANAGED);
}
template <class T> cudaError_t cudaMallocHost(T** to, size_t bytes, unsigned = 0) {
    return emu::allocate(to, bytes, EMU_HOST);
}
template <class T> cudaError_t cudaHostAlloc(T** to, size_t bytes, unsigned) {
    return emu::allocate(to, bytes, EMU_HOST);
}
template <class T>
cudaError_t cudaMallocPitch(T** to, size_t* pitch, size_t width, size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return emu::allocate(to, *pitch * height, EMU_DEVICE);
}
inline cudaError_t cudaFree(void* p) { return emu::release(p, EMU_DEVICE); }
inline cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return emu::release(p, EMU_DEVICE); }
inline cudaError_t cudaFreeHost(void* p) { return emu::release(p, EMU_HOST); }
template <class T> cudaError_t cudaHostGetDevicePointer(T** to, void* p, unsigned) {
    EMU_API;
    *to = static_cast<T*>(p);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return emu::copy(to, from, bytes, kind);
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t = nullptr) {
    if (emu::is_captured([=] { emu::copy(to, from, bytes, kind); })) return cudaSuccess;
    return emu::copy(to, from, bytes, kind);
}
inline cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) {
    return emu::copy(to, from, bytes, cudaMemcpyDeviceToDevice);
}
inline cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                       cudaStream_t = nullptr) {
    return emu::copy(to, from, bytes, cudaMemcpyDeviceToDevice);
}
inline cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                size_t width, size_t height, cudaMemcpyKind kind) {
    return emu::copy_rows(to, to_pitch, from, from_pitch, width, height, kind);
}
inline cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                     size_t width, size_t height, cudaMemcpyKind kind,
                                     cudaStream_t = nullptr) {
    return emu::copy_rows(to, to_pitch, from, from_pitch, width, height, kind);
}
inline cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    EMU_API;
    return bytes ? emu::keep(emu::host->fill(to, value, bytes)) : cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t = nullptr) {
    if (emu::is_captured([=] { cudaMemset(to, value, bytes); })) return cudaSuccess;
    return cudaMemset(to, value, bytes);
}
inline cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) {
    cudaError_t error = cudaSuccess;
    for (size_t row = 0; row < height && error == cudaSuccess; ++row)
        error = cudaMemset((char*)to + row * pitch, value, width);
    return error;
}
// A __device__ or __constant__ variable is a variable of the program.
template <class T>
cudaError_t cudaMemcpyToSymbol(T& to, const void* from, size_t bytes, size_t offset = 0,
                               cudaMemcpyKind = cudaMemcpyHostToDevice) {
    EMU_API;
    if (offset + bytes > sizeof(T)) return emu::keep(cudaErrorInvalidValue);
    memcpy((char*)&to + offset, from, bytes);
    return cudaSuccess;
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& from, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind = cudaMemcpyDeviceToHost) {
    EMU_API;
    if (offset + bytes > sizeof(T)) return emu::keep(cudaErrorInvalidValue);
    memcpy(to, (const char*)&from + offset, bytes);
    return cudaSuccess;
}
template <class T>
cudaError_t cudaMemcpyToSymbolAsync(T& to, const void* from, size_t bytes, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t = nullptr) {
    return cudaMemcpyToSymbol(to, from, bytes, offset, kind);
}
template <class T>
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const T& from, size_t bytes, size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t = nullptr) {
    return cudaMemcpyFromSymbol(to, from, bytes, offset, kind);
}
template <class P, class T> cudaError_t cudaGetSymbolAddress(P** to, const T& symbol) {
    EMU_API;
    *to = (P*)&symbol;
    return cudaSuccess;
}
template <class T> cudaError_t cudaGetSymbolSize(size_t* to, const T&) {
    EMU_API;
    *to = sizeof(T);
    return cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    EMU_API;
    *free = *total = cudaDeviceProp().totalGlobalMem;
    return cudaSuccess;
}
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* to, const void* p) {
    EMU_API;
    size_t bytes;
    static const cudaMemoryType types[] = {cudaMemoryTypeDevice, cudaMemoryTypeManaged,
                                           cudaMemoryTypeHost};
    int type = emu::host->type_of(p, &bytes);
    *to = {type < 0 ? cudaMemoryTypeUnregistered : types[type], 0, type < 0 ? nullptr : (void*)p,
           type == EMU_DEVICE ? nullptr : (void*)p};
    return cudaSuccess;
}
inline cudaPitchedPtr make_cudaPitchedPtr(void* p, size_t pitch, size_t x, size_t y) {
    return {p, pitch, x, y};
}
inline cudaExtent make_cudaExtent(size_t w, size_t h, size_t d) { return {w, h, d}; }
inline cudaPos make_cudaPos(size_t x, size_t y, size_t z) { return {x, y, z}; }
// There is one pool, which gives back at once.
inline cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* to, int) {
    EMU_API;
    static cudaMemPool_st pool = {};
    *to = &pool;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* to, int n) {
    return cudaDeviceGetDefaultMemPool(to, n);
}
template <class T> cudaError_t cudaMallocFromPoolAsync(T** to, size_t bytes, cudaMemPool_t, cudaStream_t) {
    return emu::allocate(to, bytes, EMU_DEVICE);
}
EMU_NOTHING(cudaMemPoolSetAttribute)
EMU_NOTHING(cudaMemPoolTrimTo)
EMU_NOTHING(cudaDeviceSetMemPool)
EMU_UNSUPPORTED(cudaMemPoolCreate)
EMU_UNSUPPORTED(cudaMemPoolSetAccess)
EMU_NOTHING(cudaMemPrefetchAsync)
EMU_NOTHING(cudaMemAdvise)
EMU_NOTHING(cudaStreamAttachMemAsync)
inline cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
    EMU_API;
    return emu::keep(emu::host->adopt(p, bytes));
}
inline cudaError_t cudaHostUnregister(void* p) {
    EMU_API;
    return emu::keep(emu::host->disown(p));
}
#include "textures.h"

// ---- devices ----------------------------------------------------------------------------------
inline cudaError_t cudaGetDeviceCount(int* n) { EMU_QUERY; *n = 1; return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* n) { EMU_QUERY; *n = 0; return cudaSuccess; }
inline cudaError_t cudaSetDevice(int n) {
    EMU_QUERY;
    return n == 0 ? cudaSuccess : emu::keep(cudaErrorInvalidDevice);
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int n) {
    EMU_QUERY;
    if (n != 0) return emu::keep(cudaErrorInvalidDevice);
    *to = cudaDeviceProp();
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* to, cudaDeviceAttr attribute, int n) {
    EMU_QUERY;
    if (n != 0) return emu::keep(cudaErrorInvalidDevice);
    cudaDeviceProp p;
#define EMU_CASE(name, value, answer) case name: *to = int(answer); return cudaSuccess;
    switch (attribute) { EMU_ATTRIBUTES(EMU_CASE) }
#undef EMU_CASE
    return emu::keep(cudaErrorInvalidValue);
}
inline cudaError_t cudaDriverGetVersion(int* to) { *to = CUDART_VERSION; return cudaSuccess; }
inline cudaError_t cudaRuntimeGetVersion(int* to) { *to = CUDART_VERSION; return cudaSuccess; }
inline cudaError_t cudaDeviceCanAccessPeer(int* to, int, int) { *to = 0; return cudaSuccess; }
inline cudaError_t cudaDeviceGetP2PAttribute(int* to, cudaDeviceP2PAttr, int, int) {
    *to = 0;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    EMU_API;
    *least = 0, *greatest = -5;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetLimit(size_t* to, cudaLimit) { *to = 8 << 20; return cudaSuccess; }
inline cudaError_t cudaDeviceReset() { return cudaSuccess; }
inline cudaError_t cudaThreadExit() { return cudaSuccess; }
EMU_NOTHING(cudaDeviceSynchronize)
EMU_NOTHING(cudaThreadSynchronize)
EMU_NOTHING(cudaSetDeviceFlags)
EMU_NOTHING(cudaDeviceSetCacheConfig)
EMU_NOTHING(cudaDeviceSetSharedMemConfig)
EMU_NOTHING(cudaDeviceSetLimit)
EMU_NOTHING(cudaProfilerStart)
EMU_NOTHING(cudaProfilerStop)
EMU_UNSUPPORTED(cudaDeviceEnablePeerAccess)
EMU_UNSUPPORTED(cudaDeviceDisablePeerAccess)
template <class P> inline cudaError_t cudaChooseDevice(int* to, const P*) { *to = 0; return cudaSuccess; }

// ---- streams and events -------------------------------------------------------------------------
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* to, unsigned flags, int priority) {
    EMU_API;
    *to = new CUstream_st{flags, priority};
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* to, unsigned flags) {
    return cudaStreamCreateWithPriority(to, flags, 0);
}
inline cudaError_t cudaStreamCreate(cudaStream_t* to) { return cudaStreamCreateWithFlags(to, 0); }
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    EMU_API;
    delete stream;
    return cudaSuccess;
}
inline cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* to) {
    EMU_API;
    *to = stream ? stream->priority : 0;
    return cudaSuccess;
}
inline cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void* data,
                                         unsigned) {
    call(stream, emu::sticky_error, data);
    EMU_API;
    return cudaSuccess;
}
inline cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t call, void* data) {
    EMU_API;
    if (emu::is_captured([=] { call(data); })) return cudaSuccess;
    call(data);
    return cudaSuccess;
}
EMU_NOTHING(cudaStreamSetAttribute)
EMU_NOTHING(cudaCtxResetPersistingL2Cache)
EMU_NOTHING(cudaStreamSynchronize)
EMU_NOTHING(cudaStreamQuery)
EMU_NOTHING(cudaStreamWaitEvent)
#include "graphs.h"

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* to, unsigned) {
    EMU_API;
    *to = new CUevent_st{-1};
    return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t* to, unsigned = 0) {
    return cudaEventCreateWithFlags(to, 0);
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
    EMU_API;
    delete event;
    return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t = nullptr) {
    EMU_API;
    if (!event) return emu::keep(cudaErrorInvalidResourceHandle);
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    event->milliseconds = t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
    return cudaSuccess;
}
// Of the emulator's time, which says nothing of a GPU's.
inline cudaError_t cudaEventElapsedTime(float* to, cudaEvent_t from, cudaEvent_t until) {
    EMU_API;
    if (!from || !until || from->milliseconds < 0 || until->milliseconds < 0)
        return emu::keep(cudaErrorInvalidResourceHandle);
    *to = float(until->milliseconds - from->milliseconds);
    return cudaSuccess;
}
EMU_NOTHING(cudaEventSynchronize)
EMU_NOTHING(cudaEventQuery)

// ---- kernels ----------------------------------------------------------------------------------
namespace emu {
template <class... A, size_t... I>
void call(void (*f)(A...), void** arguments, std::index_sequence<I...>) {
    f(*static_cast<std::remove_reference_t<A>*>(arguments[I])...);
}
template <class... A>
cudaError_t launch_kernel(void (*f)(A...), dim3 grid, dim3 block, void** arguments, size_t shared,
                          cudaStream_t stream, int cooperative) {
    EMU_QUERY;
    configure(grid, block, shared, stream, cooperative);
    call(f, arguments, std::index_sequence_for<A...>{});
    return sticky_error != cudaSuccess ? sticky_error : last_error;
}
}  // namespace emu
template <class... A>
cudaError_t cudaLaunchKernel(void (*f)(A...), dim3 grid, dim3 block, void** arguments,
                             size_t shared = 0, cudaStream_t stream = nullptr) {
    return emu::launch_kernel(f, grid, block, arguments, shared, stream, 0);
}
template <class... A>
cudaError_t cudaLaunchCooperativeKernel(void (*f)(A...), dim3 grid, dim3 block, void** arguments,
                                        size_t shared = 0, cudaStream_t stream = nullptr) {
    return emu::launch_kernel(f, grid, block, arguments, shared, stream, 1);
}
inline cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t = 0,
                                    cudaStream_t = nullptr) {
    emu::host->unsupported("cudaLaunchKernel of a kernel whose type is not known there");
    return emu::keep(cudaErrorInvalidDeviceFunction);
}
template <class F> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* to, F) {
    EMU_QUERY;
    *to = {0, 0, 0, 1024, 32, 80, 80, 0, 48 << 10, -1};
    return cudaSuccess;
}
template <class F, class A> cudaError_t cudaFuncSetAttribute(F kernel, A attribute, int value) {
    EMU_QUERY;
    if (int(attribute) != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || value > int(EMU_SHARED)) return emu::keep(cudaErrorInvalidValue);
    emu_allow_shared((const void*)kernel, size_t(value));
    return cudaSuccess;
}
template <class F> cudaError_t cudaFuncSetCacheConfig(F, cudaFuncCache) { EMU_QUERY; return cudaSuccess; }
template <class F> cudaError_t cudaFuncSetSharedMemConfig(F, cudaSharedMemConfig) { EMU_API; return cudaSuccess; }
template <class F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* to, F, int threads, size_t shared,
                                                          unsigned = 0) {
    EMU_QUERY;
    int by_threads = 2048 / (threads > 0 ? threads : 1);
    int by_shared = shared ? int((164 << 10) / (shared + 1024)) : 32;
    *to = by_threads < by_shared ? by_threads : by_shared;
    return cudaSuccess;
}
template <class F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* to, F f, int threads,
                                                                   size_t shared, unsigned) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(to, f, threads, shared);
}
template <class F>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, F, size_t = 0, int limit = 0) {
    EMU_QUERY;
    *block = limit > 0 && limit < 1024 ? limit : 1024;
    *grid = 108 * 2048 / *block;
    return cudaSuccess;
}

// A launch by a description. What else it may say than how many blocks are a cluster, and that it may overlap the launch
// before it, changes no result here.
enum cudaLaunchAttributeID {
    cudaLaunchAttributeIgnore = 0,
    cudaLaunchAttributeAccessPolicyWindow = 1,
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeSynchronizationPolicy = 3,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeClusterSchedulingPolicyPreference = 5,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
    cudaLaunchAttributePriority = 8
};
union cudaLaunchAttributeValue {
    char pad[64];
    int cooperative;
    struct { unsigned x, y, z; } clusterDim;
    int programmaticStreamSerializationAllowed;
    int priority;
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
    dim3 host_gridDim, host_blockDim;
    size_t dynamicSmemBytes = 0;
    cudaStream_t stream = nullptr;
    cudaLaunchAttribute* attrs = nullptr;
    unsigned numAttrs = 0;
};
template <class... E, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(E...), A&&... a) {
    EMU_QUERY;
    int cooperative = 0;
    unsigned cluster = 0;
    bool overlaps = false;
    for (unsigned n = 0; n < config->numAttrs; ++n) {
        const cudaLaunchAttribute& attribute = config->attrs[n];
        if (attribute.id == cudaLaunchAttributeCooperative) cooperative = attribute.val.cooperative;
        if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization)
            overlaps = attribute.val.programmaticStreamSerializationAllowed != 0;
        if (attribute.id == cudaLaunchAttributeClusterDimension) {
            auto [x, y, z] = attribute.val.clusterDim;
            if (y != 1 || z != 1) emu::host->unsupported("a cluster of blocks along y or z");
            cluster = x;
        }
    }
    emu::configure(config->host_gridDim, config->host_blockDim, config->dynamicSmemBytes, config->stream, cooperative, cluster,
                   overlaps && !cooperative);
    kernel(static_cast<E>(a)...);
    return emu::keep(emu::last_error);
}

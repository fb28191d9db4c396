// Textures, surfaces and the arrays behind them. A texture is read as a GPU reads it, with weights of 8 bits
// between texels; what it reads is not checked, for it is never outside.
#pragma once
#include <cmath>

#include "launch.h"

enum cudaChannelFormatKind {
    cudaChannelFormatKindSigned,
    cudaChannelFormatKindUnsigned,
    cudaChannelFormatKindFloat,
    cudaChannelFormatKindNone
};
struct cudaChannelFormatDesc {
    int x, y, z, w;
    cudaChannelFormatKind f;
};
enum cudaTextureAddressMode {
    cudaAddressModeWrap,
    cudaAddressModeClamp,
    cudaAddressModeMirror,
    cudaAddressModeBorder
};
enum cudaTextureFilterMode { cudaFilterModePoint, cudaFilterModeLinear };
enum cudaTextureReadMode { cudaReadModeElementType, cudaReadModeNormalizedFloat };
enum cudaResourceType {
    cudaResourceTypeArray,
    cudaResourceTypeMipmappedArray,
    cudaResourceTypeLinear,
    cudaResourceTypePitch2D
};
enum cudaSurfaceBoundaryMode {
    cudaBoundaryModeZero,
    cudaBoundaryModeClamp,
    cudaBoundaryModeTrap
};
constexpr unsigned cudaArrayDefault = 0, cudaArrayLayered = 1, cudaArraySurfaceLoadStore = 2,
                   cudaArrayCubemap = 4, cudaArrayTextureGather = 8;

// Rows without gaps between them, slice after slice.
struct cudaArray {
    cudaChannelFormatDesc desc;
    cudaExtent extent;  // as it was asked for: 0 where there is no such dimension
    unsigned flags;
    size_t element;
    char* data;
    size_t rows() const { return extent.height ? extent.height : 1; }
    size_t slices() const { return extent.depth ? extent.depth : 1; }
    size_t row() const { return extent.width * element; }
};
typedef cudaArray* cudaArray_t;
typedef const cudaArray* cudaArray_const_t;
typedef struct cudaMipmappedArray* cudaMipmappedArray_t;

struct cudaResourceDesc {
    cudaResourceType resType;
    union {
        struct { cudaArray_t array; } array;
        struct { cudaMipmappedArray_t mipmap; } mipmap;
        struct { void* devPtr; cudaChannelFormatDesc desc; size_t sizeInBytes; } linear;
        struct {
            void* devPtr;
            cudaChannelFormatDesc desc;
            size_t width, height, pitchInBytes;
        } pitch2D;
    } res;
};
struct cudaTextureDesc {
    cudaTextureAddressMode addressMode[3];
    cudaTextureFilterMode filterMode;
    cudaTextureReadMode readMode;
    int sRGB;
    float borderColor[4];
    int normalizedCoords;
    unsigned maxAnisotropy;
    cudaTextureFilterMode mipmapFilterMode;
    float mipmapLevelBias, minMipmapLevelClamp, maxMipmapLevelClamp;
    int disableTrilinearOptimization, seamlessCubemap;
};
struct cudaResourceViewDesc;
struct cudaMemcpy3DParms {
    cudaArray_t srcArray;
    cudaPos srcPos;
    cudaPitchedPtr srcPtr;
    cudaArray_t dstArray;
    cudaPos dstPos;
    cudaPitchedPtr dstPtr;
    cudaExtent extent;
    cudaMemcpyKind kind;
};
typedef unsigned long long cudaTextureObject_t;
typedef unsigned long long cudaSurfaceObject_t;

// ---- formats ----------------------------------------------------------------------------------
inline cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w,
                                                   cudaChannelFormatKind f) {
    return {x, y, z, w, f};
}
namespace emu {
// Components of a number or of a built-in vector.
template <class T, class = void> struct channels { typedef T part; };
template <class T> struct channels<T, std::void_t<decltype(T::x)>> {
    typedef std::decay_t<decltype(T::x)> part;
};
}  // namespace emu
template <class T> inline cudaChannelFormatDesc cudaCreateChannelDesc() {
    typedef typename emu::channels<T>::part Part;
    constexpr int bits = 8 * sizeof(Part), count = sizeof(T) / sizeof(Part);
    constexpr cudaChannelFormatKind kind =
        !std::is_integral<Part>::value ? cudaChannelFormatKindFloat
        : std::is_signed<Part>::value  ? cudaChannelFormatKindSigned
                                       : cudaChannelFormatKindUnsigned;
    return {bits, count > 1 ? bits : 0, count > 2 ? bits : 0, count > 3 ? bits : 0, kind};
}

// ---- arrays -----------------------------------------------------------------------------------
inline cudaError_t cudaMalloc3DArray(cudaArray_t* to, const cudaChannelFormatDesc* desc,
                                     cudaExtent extent, unsigned flags = 0) {
    EMU_API;
    size_t element = size_t(desc->x + desc->y + desc->z + desc->w) / 8;
    cudaArray array = {*desc, extent, flags, element, nullptr};
    size_t bytes = array.row() * array.rows() * array.slices();
    if (!bytes) return emu::keep(cudaErrorInvalidValue);
    // As managed memory: what writes to it is not looked at.
    array.data = static_cast<char*>(emu::host->allocate(bytes, EMU_MANAGED));
    if (!array.data) return emu::keep(cudaErrorMemoryAllocation);
    *to = new cudaArray(array);
    return cudaSuccess;
}
inline cudaError_t cudaMallocArray(cudaArray_t* to, const cudaChannelFormatDesc* desc, size_t width,
                                   size_t height = 0, unsigned flags = 0) {
    return cudaMalloc3DArray(to, desc, cudaExtent{width, height, 0}, flags);
}
inline cudaError_t cudaFreeArray(cudaArray_t array) {
    EMU_API;
    if (!array) return cudaSuccess;
    cudaError_t error = emu::keep(emu::host->release(array->data, EMU_MANAGED));
    delete array;
    return error;
}
inline cudaError_t cudaArrayGetInfo(cudaChannelFormatDesc* desc, cudaExtent* extent,
                                    unsigned* flags, cudaArray_t array) {
    EMU_API;
    if (desc) *desc = array->desc;
    if (extent) *extent = array->extent;
    if (flags) *flags = array->flags;
    return cudaSuccess;
}
inline cudaError_t cudaGetChannelDesc(cudaChannelFormatDesc* desc, cudaArray_const_t array) {
    *desc = array->desc;
    return cudaSuccess;
}
namespace emu {
// Whether width bytes of so many rows lie in the array's first slice.
inline bool is_within(cudaArray_const_t array, size_t x, size_t y, size_t width, size_t height) {
    return array && x + width <= array->row() && y + height <= array->rows();
}
inline char* texel(cudaArray_const_t array, size_t x, size_t y, size_t z = 0) {
    return array->data + (z * array->rows() + y) * array->row() + x;
}
}  // namespace emu
inline cudaError_t cudaMemcpy2DToArray(cudaArray_t to, size_t x, size_t y, const void* from,
                                       size_t pitch, size_t width, size_t height,
                                       cudaMemcpyKind kind) {
    if (!emu::is_within(to, x, y, width, height)) return emu::keep(cudaErrorInvalidValue);
    return emu::copy_rows(emu::texel(to, x, y), to->row(), from, pitch, width, height, kind);
}
inline cudaError_t cudaMemcpy2DToArrayAsync(cudaArray_t to, size_t x, size_t y, const void* from,
                                            size_t pitch, size_t width, size_t height,
                                            cudaMemcpyKind kind, cudaStream_t = nullptr) {
    return cudaMemcpy2DToArray(to, x, y, from, pitch, width, height, kind);
}
inline cudaError_t cudaMemcpy2DFromArray(void* to, size_t pitch, cudaArray_const_t from, size_t x,
                                         size_t y, size_t width, size_t height,
                                         cudaMemcpyKind kind) {
    if (!emu::is_within(from, x, y, width, height)) return emu::keep(cudaErrorInvalidValue);
    return emu::copy_rows(to, pitch, emu::texel(from, x, y), from->row(), width, height, kind);
}
inline cudaError_t cudaMemcpyToArray(cudaArray_t to, size_t x, size_t y, const void* from,
                                     size_t bytes, cudaMemcpyKind kind) {
    size_t all = to->row() * to->rows(), at = y * to->row() + x;
    if (at + bytes > all) return emu::keep(cudaErrorInvalidValue);
    return emu::copy(to->data + at, from, bytes, kind);
}
inline cudaError_t cudaMemcpyFromArray(void* to, cudaArray_const_t from, size_t x, size_t y,
                                       size_t bytes, cudaMemcpyKind kind) {
    size_t all = from->row() * from->rows(), at = y * from->row() + x;
    if (at + bytes > all) return emu::keep(cudaErrorInvalidValue);
    return emu::copy(to, from->data + at, bytes, kind);
}
inline cudaError_t cudaMalloc3D(cudaPitchedPtr* to, cudaExtent extent) {
    size_t pitch = (extent.width + 511) / 512 * 512;
    char* data;
    cudaError_t error =
        emu::allocate(&data, pitch * extent.height * extent.depth, EMU_DEVICE);
    if (error == cudaSuccess) *to = {data, pitch, extent.width, extent.height};
    return error;
}
inline cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p) {
    // Widths are in elements where an array takes part, else in bytes.
    cudaArray_const_t array = p->srcArray ? p->srcArray : p->dstArray;
    size_t element = array ? array->element : 1, width = p->extent.width * element;
    for (size_t z = 0; z < p->extent.depth; ++z) {
        auto row = [&](cudaArray_const_t array, const cudaPitchedPtr& memory, const cudaPos& at,
                       size_t* pitch) {
            *pitch = array ? array->row() : memory.pitch;
            if (array) return emu::texel(array, at.x * element, at.y, at.z + z);
            return (char*)memory.ptr + ((at.z + z) * memory.ysize + at.y) * memory.pitch + at.x;
        };
        size_t to_pitch, from_pitch;
        char* to = row(p->dstArray, p->dstPtr, p->dstPos, &to_pitch);
        char* from = row(p->srcArray, p->srcPtr, p->srcPos, &from_pitch);
        cudaError_t error =
            emu::copy_rows(to, to_pitch, from, from_pitch, width, p->extent.height, p->kind);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t = nullptr) {
    return cudaMemcpy3D(p);
}
inline cudaError_t cudaMemset3D(cudaPitchedPtr to, int value, cudaExtent extent) {
    cudaError_t error = cudaSuccess;
    for (size_t row = 0; row < extent.height * extent.depth && error == cudaSuccess; ++row) {
        size_t z = row / extent.height, y = row % extent.height;
        error = cudaMemset((char*)to.ptr + (z * to.ysize + y) * to.pitch, value, extent.width);
    }
    return error;
}

// ---- what a kernel reads ------------------------------------------------------------------------
namespace emu {
struct Texture {
    const char* data;
    size_t size[3];  // 1 where there is no such dimension; layers and faces are slices
    size_t pitch, slice, element;
    cudaChannelFormatDesc desc;
    cudaTextureDesc how;
};
#define EMU_UNWATCHED __attribute__((noinline, no_sanitize_thread))

// The place of a texel along an axis; -1 outside, where that is a border.
EMU_UNWATCHED inline long address(long i, long n, cudaTextureAddressMode mode, bool normalized) {
    if (mode == cudaAddressModeBorder) return i >= 0 && i < n ? i : -1;
    if (normalized && mode == cudaAddressModeWrap) return (i % n + n) % n;
    if (normalized && mode == cudaAddressModeMirror) {
        i = (i % (2 * n) + 2 * n) % (2 * n);
        return i < n ? i : 2 * n - 1 - i;
    }
    return i < 0 ? 0 : i < n ? i : n - 1;
}
// Where a texel lies; null in the border.
EMU_UNWATCHED inline const char* place(const Texture& t, const long* index, int rank, long layer) {
    long at[3] = {0, 0, layer};
    for (int axis = 0; axis < rank; ++axis) {
        at[axis] = address(index[axis], long(t.size[axis]), t.how.addressMode[axis],
                           t.how.normalizedCoords);
        if (at[axis] < 0) return nullptr;
    }
    return t.data + at[2] * t.slice + at[1] * t.pitch + at[0] * t.element;
}
// A texel's components as floats.
EMU_UNWATCHED inline void components(const Texture& t, const char* at, float* to) {
    const int bits[4] = {t.desc.x, t.desc.y, t.desc.z, t.desc.w};
    for (int c = 0; c < 4; ++c) {
        to[c] = 0;
        if (!bits[c]) continue;
        bool is_signed = t.desc.f == cudaChannelFormatKindSigned;
        if (t.desc.f == cudaChannelFormatKindFloat && bits[c] == 32) {
            __builtin_memcpy(to + c, at, 4);
        } else if (t.desc.f == cudaChannelFormatKindFloat) {
            _Float16 half;
            __builtin_memcpy(&half, at, 2);
            to[c] = float(half);
        } else {
            uint32_t word = 0;
            __builtin_memcpy(&word, at, bits[c] / 8);
            int shift = 32 - bits[c];
            float value = is_signed ? float(int32_t(word << shift) >> shift) : float(word);
            float most = std::ldexp(1.0f, bits[c] - (is_signed ? 1 : 0)) - 1;
            to[c] = value / most < -1 ? -1 : value / most;
        }
        at += bits[c] / 8;
    }
}
// `bytes` of the value at a place, which is in texels.
EMU_UNWATCHED inline void fetch(cudaTextureObject_t object, int rank, float x, float y, float z,
                                long layer, void* to, size_t bytes) {
    const Texture& t = *reinterpret_cast<const Texture*>(object);
    const bool normalized = t.how.normalizedCoords;
    const float given[3] = {x, y, z};
    long first[3] = {0, 0, 0};
    float part[3] = {0, 0, 0};
    const bool is_linear = t.how.filterMode == cudaFilterModeLinear;
    for (int axis = 0; axis < rank; ++axis) {
        float at = normalized ? given[axis] * float(t.size[axis]) : given[axis];
        if (is_linear) at -= 0.5f;
        float whole = std::floor(at);
        first[axis] = long(whole);
        // Fractions have 8 bits.
        if (is_linear) part[axis] = std::floor((at - whole) * 256 + 0.5f) / 256;
    }
    __builtin_memset(to, 0, bytes);
    const bool as_float = t.how.readMode == cudaReadModeNormalizedFloat || is_linear ||
                          (t.desc.f == cudaChannelFormatKindFloat && t.desc.x == 16);
    if (!as_float) {
        if (const char* texel = place(t, first, rank, layer))
            __builtin_memcpy(to, texel, bytes < t.element ? bytes : t.element);
        return;
    }
    float sum[4] = {0, 0, 0, 0};
    for (int corner = 0; corner < (is_linear ? 1 << rank : 1); ++corner) {
        long index[3];
        float weight = 1, value[4];
        for (int axis = 0; axis < 3; ++axis) {
            bool is_next = corner >> axis & 1;
            index[axis] = first[axis] + is_next;
            if (is_linear && axis < rank) weight *= is_next ? part[axis] : 1 - part[axis];
        }
        if (weight == 0) continue;
        const char* texel = place(t, index, rank, layer);
        if (texel) components(t, texel, value);
        for (int c = 0; c < 4; ++c) sum[c] += weight * (texel ? value[c] : t.how.borderColor[c]);
    }
    __builtin_memcpy(to, sum, bytes < sizeof sum ? bytes : sizeof sum);
}
// A texel of linear memory.
EMU_UNWATCHED inline void fetch_at(cudaTextureObject_t object, long i, void* to, size_t bytes) {
    const Texture& t = *reinterpret_cast<const Texture*>(object);
    __builtin_memset(to, 0, bytes);
    if (i < 0 || size_t(i) >= t.size[0]) return;
    const char* texel = t.data + i * t.element;
    if (t.how.readMode == cudaReadModeElementType) {
        __builtin_memcpy(to, texel, bytes < t.element ? bytes : t.element);
        return;
    }
    float value[4];
    components(t, texel, value);
    __builtin_memcpy(to, value, bytes < sizeof value ? bytes : sizeof value);
}
// The face of a cube that a direction meets, and where, from 0 to 1.
EMU_UNWATCHED inline int face(float x, float y, float z, float* s, float* t) {
    float ax = std::fabs(x), ay = std::fabs(y), az = std::fabs(z), along, u, v;
    int face;
    if (ax >= ay && ax >= az) {
        along = ax, face = x < 0, u = x < 0 ? z : -z, v = -y;
    } else if (ay >= az) {
        along = ay, face = 2 + (y < 0), u = x, v = y < 0 ? -z : z;
    } else {
        along = az, face = 4 + (z < 0), u = z < 0 ? -x : x, v = -y;
    }
    *s = (u / along + 1) / 2, *t = (v / along + 1) / 2;
    return face;
}
}  // namespace emu

template <class T> __forceinline__ T tex1Dfetch(cudaTextureObject_t t, int i) {
    T value;
    emu::fetch_at(t, i, &value, sizeof value);
    return value;
}
#define EMU_TEXTURE(name, parameters, rank, x, y, z, layer)                                \
    template <class T> __forceinline__ T name parameters {                                 \
        T value;                                                                           \
        emu::fetch(t, rank, x, y, z, layer, &value, sizeof value);                         \
        return value;                                                                      \
    }
EMU_TEXTURE(tex1D, (cudaTextureObject_t t, float x), 1, x, 0, 0, 0)
EMU_TEXTURE(tex2D, (cudaTextureObject_t t, float x, float y), 2, x, y, 0, 0)
EMU_TEXTURE(tex3D, (cudaTextureObject_t t, float x, float y, float z), 3, x, y, z, 0)
EMU_TEXTURE(tex1DLod, (cudaTextureObject_t t, float x, float), 1, x, 0, 0, 0)
EMU_TEXTURE(tex2DLod, (cudaTextureObject_t t, float x, float y, float), 2, x, y, 0, 0)
EMU_TEXTURE(tex3DLod, (cudaTextureObject_t t, float x, float y, float z, float), 3, x, y, z, 0)
EMU_TEXTURE(tex1DLayered, (cudaTextureObject_t t, float x, int layer), 1, x, 0, 0, layer)
EMU_TEXTURE(tex2DLayered, (cudaTextureObject_t t, float x, float y, int layer), 2, x, y, 0, layer)
template <class T>
__forceinline__ T texCubemapLayered(cudaTextureObject_t t, float x, float y, float z, int layer) {
    float u, v;
    int face = emu::face(x, y, z, &u, &v);
    T value;
    // Within a face places are always from 0 to 1.
    emu::fetch(t, 2, u, v, 0, 6l * layer + face, &value, sizeof value);
    return value;
}
template <class T> __forceinline__ T texCubemap(cudaTextureObject_t t, float x, float y, float z) {
    return texCubemapLayered<T>(t, x, y, z, 0);
}

// ---- surfaces -----------------------------------------------------------------------------------
namespace emu {
// Where a value lies; null outside. The place along x is in bytes.
EMU_UNWATCHED inline char* surface(cudaSurfaceObject_t object, int x, int y, int z, size_t bytes,
                                   cudaSurfaceBoundaryMode mode) {
    // Members of other functions are watched.
    const cudaArray& a = *reinterpret_cast<cudaArray_const_t>(object);
    const long row = long(a.extent.width * a.element);
    const long rows = a.extent.height ? long(a.extent.height) : 1;
    const long slices = a.extent.depth ? long(a.extent.depth) : 1;
    long at[3] = {x, y, z}, most[3] = {row - long(bytes), rows - 1, slices - 1};
    for (int axis = 0; axis < 3; ++axis) {
        bool is_outside = at[axis] < 0 || at[axis] > most[axis];
        if (is_outside && mode == cudaBoundaryModeTrap) emu_trap("a place outside of a surface");
        if (is_outside && mode == cudaBoundaryModeZero) return nullptr;
        at[axis] = at[axis] < 0 ? 0 : at[axis] > most[axis] ? most[axis] : at[axis];
    }
    return a.data + (at[2] * rows + at[1]) * row + at[0];
}
EMU_UNWATCHED inline void surface_read(cudaSurfaceObject_t object, int x, int y, int z, void* to,
                                       size_t bytes, cudaSurfaceBoundaryMode mode) {
    __builtin_memset(to, 0, bytes);
    if (const char* at = surface(object, x, y, z, bytes, mode)) __builtin_memcpy(to, at, bytes);
}
EMU_UNWATCHED inline void surface_write(cudaSurfaceObject_t object, int x, int y, int z,
                                        const void* from, size_t bytes,
                                        cudaSurfaceBoundaryMode mode) {
    if (char* at = surface(object, x, y, z, bytes, mode)) __builtin_memcpy(at, from, bytes);
}
}  // namespace emu
// Places with their types, and without.
#define EMU_SURFACE(kind, typed, names, y, z)                                                 \
    template <class T>                                                                        \
    __forceinline__ T kind##read(cudaSurfaceObject_t s, EMU_EACH typed,                       \
                                 cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {       \
        T value;                                                                              \
        emu::surface_read(s, x, y, z, &value, sizeof value, mode);                            \
        return value;                                                                         \
    }                                                                                         \
    template <class T>                                                                        \
    __forceinline__ void kind##read(T* to, cudaSurfaceObject_t s, EMU_EACH typed,             \
                                    cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {    \
        *to = kind##read<T>(s, EMU_EACH names, mode);                                         \
    }                                                                                         \
    template <class T>                                                                        \
    __forceinline__ void kind##write(T value, cudaSurfaceObject_t s, EMU_EACH typed,          \
                                     cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap) {   \
        emu::surface_write(s, x, y, z, &value, sizeof value, mode);                           \
    }
#define EMU_EACH(...) __VA_ARGS__
EMU_SURFACE(surf1D, (int x), (x), 0, 0)
EMU_SURFACE(surf2D, (int x, int y), (x, y), y, 0)
EMU_SURFACE(surf3D, (int x, int y, int z), (x, y, z), y, z)
EMU_SURFACE(surf1DLayered, (int x, int layer), (x, layer), 0, layer)
EMU_SURFACE(surf2DLayered, (int x, int y, int layer), (x, y, layer), y, layer)

// ---- objects ------------------------------------------------------------------------------------
inline cudaError_t cudaCreateTextureObject(cudaTextureObject_t* to, const cudaResourceDesc* what,
                                           const cudaTextureDesc* how,
                                           const cudaResourceViewDesc* = nullptr) {
    EMU_API;
    emu::Texture t = {nullptr, {1, 1, 1}, 0, 0, 0, {}, *how};
    auto element = [](const cudaChannelFormatDesc& d) { return size_t(d.x + d.y + d.z + d.w) / 8; };
    if (what->resType == cudaResourceTypeArray) {
        const cudaArray& a = *what->res.array.array;
        t.data = a.data, t.desc = a.desc, t.element = a.element, t.pitch = a.row();
        t.size[0] = a.extent.width, t.size[1] = a.rows(), t.size[2] = a.slices();
        t.slice = a.row() * a.rows();
    } else if (what->resType == cudaResourceTypeLinear) {
        const auto& linear = what->res.linear;
        t.data = static_cast<const char*>(linear.devPtr), t.desc = linear.desc;
        t.element = element(linear.desc);
        t.size[0] = linear.sizeInBytes / t.element;
    } else if (what->resType == cudaResourceTypePitch2D) {
        const auto& rows = what->res.pitch2D;
        t.data = static_cast<const char*>(rows.devPtr), t.desc = rows.desc;
        t.element = element(rows.desc), t.pitch = rows.pitchInBytes;
        t.size[0] = rows.width, t.size[1] = rows.height;
    } else {
        emu::host->unsupported("cudaCreateTextureObject of a mipmapped array");
        return emu::keep(cudaErrorNotSupported);
    }
    *to = reinterpret_cast<cudaTextureObject_t>(new emu::Texture(t));
    return cudaSuccess;
}
inline cudaError_t cudaDestroyTextureObject(cudaTextureObject_t t) {
    EMU_API;
    delete reinterpret_cast<emu::Texture*>(t);
    return cudaSuccess;
}
inline cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t* to, const cudaResourceDesc* what) {
    EMU_API;
    if (what->resType != cudaResourceTypeArray) return emu::keep(cudaErrorInvalidValue);
    *to = reinterpret_cast<cudaSurfaceObject_t>(what->res.array.array);
    return cudaSuccess;
}
inline cudaError_t cudaDestroySurfaceObject(cudaSurfaceObject_t) { EMU_API; return cudaSuccess; }
EMU_UNSUPPORTED(cudaMallocMipmappedArray)
EMU_UNSUPPORTED(cudaGetMipmappedArrayLevel)
EMU_UNSUPPORTED(cudaFreeMipmappedArray)

// ---- texture references, as CUDA had them before version 12 --------------------------------------
constexpr int cudaTextureType1D = 1, cudaTextureType2D = 2, cudaTextureType3D = 3;
struct textureReference {
    int normalized = 0;
    cudaTextureFilterMode filterMode = cudaFilterModePoint;
    cudaTextureAddressMode addressMode[3] = {cudaAddressModeClamp, cudaAddressModeClamp,
                                             cudaAddressModeClamp};
    cudaChannelFormatDesc channelDesc = {};
    emu::Texture bound = {};
};
template <class T, int rank = 1, cudaTextureReadMode mode = cudaReadModeElementType>
struct texture : textureReference {
    cudaTextureObject_t object() const { return reinterpret_cast<cudaTextureObject_t>(&bound); }
};
namespace emu {
template <class T, int rank, cudaTextureReadMode mode>
cudaError_t bind(texture<T, rank, mode>& t, const char* data, const cudaChannelFormatDesc& desc,
                 size_t width, size_t height, size_t pitch) {
    t.channelDesc = desc;
    t.bound = {data, {width, height, 1}, pitch, 0, sizeof(T), desc, {}};
    for (int axis = 0; axis < 3; ++axis) t.bound.how.addressMode[axis] = t.addressMode[axis];
    t.bound.how.filterMode = t.filterMode;
    t.bound.how.readMode = mode;
    t.bound.how.normalizedCoords = t.normalized;
    return cudaSuccess;
}
}  // namespace emu
template <class T, int rank, cudaTextureReadMode mode>
cudaError_t cudaBindTexture(size_t* offset, texture<T, rank, mode>& t, const void* data,
                            const cudaChannelFormatDesc& desc, size_t bytes = UINT_MAX) {
    EMU_API;
    if (offset) *offset = 0;
    return emu::bind(t, static_cast<const char*>(data), desc, bytes / sizeof(T), 1, 0);
}
template <class T, int rank, cudaTextureReadMode mode>
cudaError_t cudaBindTexture(size_t* offset, texture<T, rank, mode>& t, const void* data,
                            size_t bytes = UINT_MAX) {
    return cudaBindTexture(offset, t, data, cudaCreateChannelDesc<T>(), bytes);
}
template <class T, int rank, cudaTextureReadMode mode>
cudaError_t cudaBindTexture2D(size_t* offset, texture<T, rank, mode>& t, const void* data,
                              const cudaChannelFormatDesc& desc, size_t width, size_t height,
                              size_t pitch) {
    EMU_API;
    if (offset) *offset = 0;
    return emu::bind(t, static_cast<const char*>(data), desc, width, height, pitch);
}
template <class T, int rank, cudaTextureReadMode mode>
cudaError_t cudaBindTextureToArray(texture<T, rank, mode>& t, cudaArray_const_t array) {
    EMU_API;
    return emu::bind(t, array->data, array->desc, array->extent.width, array->rows(), array->row());
}
template <class T, int rank, cudaTextureReadMode mode>
cudaError_t cudaBindTextureToArray(texture<T, rank, mode>& t, cudaArray_const_t array,
                                   const cudaChannelFormatDesc&) {
    return cudaBindTextureToArray(t, array);
}
template <class T, int rank, cudaTextureReadMode mode>
cudaError_t cudaUnbindTexture(texture<T, rank, mode>& t) {
    EMU_API;
    t.bound = {};
    return cudaSuccess;
}
// As C has it.
template <class T, int rank, cudaTextureReadMode mode>
cudaError_t cudaBindTexture(size_t* offset, texture<T, rank, mode>* t, const void* data,
                            const cudaChannelFormatDesc* desc, size_t bytes = UINT_MAX) {
    return cudaBindTexture(offset, *t, data, *desc, bytes);
}
template <class T, int rank, cudaTextureReadMode mode>
cudaError_t cudaUnbindTexture(texture<T, rank, mode>* t) {
    return cudaUnbindTexture(*t);
}
namespace emu {
template <class T, cudaTextureReadMode mode>
using fetched = std::conditional_t<mode == cudaReadModeElementType, T, float>;
}
template <class T, cudaTextureReadMode mode>
__forceinline__ emu::fetched<T, mode> tex1Dfetch(const texture<T, 1, mode>& t, int i) {
    return tex1Dfetch<emu::fetched<T, mode>>(t.object(), i);
}
template <class T, cudaTextureReadMode mode>
__forceinline__ emu::fetched<T, mode> tex1D(const texture<T, 1, mode>& t, float x) {
    return tex1D<emu::fetched<T, mode>>(t.object(), x);
}
template <class T, cudaTextureReadMode mode>
__forceinline__ emu::fetched<T, mode> tex2D(const texture<T, 2, mode>& t, float x, float y) {
    return tex2D<emu::fetched<T, mode>>(t.object(), x, y);
}

// Tensor maps of the driver API: what cp.async.bulk.tensor is told of a tensor, as the emulator has it
// (shared/emulator/src/completion/tensor.rs). CUDA Driver API, "Tensor Map Object Management".
#pragma once
#include <cstring>

#include "runtime/launch.h"

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef struct alignas(64) CUtensorMap_st { cuuint64_t opaque[16]; } CUtensorMap;
#define EMU_ELEMENTS(of)                        \
    of(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1)        \
    of(CU_TENSOR_MAP_DATA_TYPE_UINT16, 2)       \
    of(CU_TENSOR_MAP_DATA_TYPE_UINT32, 4)       \
    of(CU_TENSOR_MAP_DATA_TYPE_INT32, 4)        \
    of(CU_TENSOR_MAP_DATA_TYPE_UINT64, 8)       \
    of(CU_TENSOR_MAP_DATA_TYPE_INT64, 8)        \
    of(CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2)      \
    of(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4)      \
    of(CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 8)      \
    of(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2)     \
    of(CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ, 4)  \
    of(CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 4)     \
    of(CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ, 4)
#define EMU_ENUMERATOR(name, bytes) name,
typedef enum CUtensorMapDataType_enum { EMU_ELEMENTS(EMU_ENUMERATOR) } CUtensorMapDataType;
#undef EMU_ENUMERATOR
typedef enum CUtensorMapInterleave_enum {
    CU_TENSOR_MAP_INTERLEAVE_NONE,
    CU_TENSOR_MAP_INTERLEAVE_16B,
    CU_TENSOR_MAP_INTERLEAVE_32B
} CUtensorMapInterleave;
typedef enum CUtensorMapSwizzle_enum {
    CU_TENSOR_MAP_SWIZZLE_NONE,
    CU_TENSOR_MAP_SWIZZLE_32B,
    CU_TENSOR_MAP_SWIZZLE_64B,
    CU_TENSOR_MAP_SWIZZLE_128B
} CUtensorMapSwizzle;
typedef enum CUtensorMapL2promotion_enum {
    CU_TENSOR_MAP_L2_PROMOTION_NONE,
    CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
    CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    CU_TENSOR_MAP_L2_PROMOTION_L2_256B
} CUtensorMapL2promotion;
typedef enum CUtensorMapFloatOOBfill_enum {
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
} CUtensorMapFloatOOBfill;

namespace emu {
// The first rule that a map breaks; null if a GPU takes it.
inline const char* broken_rule(uint64_t element, uint32_t rank, const void* address, const cuuint64_t* sizes,
                               const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps,
                               CUtensorMapInterleave interleave, uint64_t span) {
    if (rank < 1 || rank > 5) return "expected 1 to 5 dimensions";
    if (uintptr_t(address) % 16) return "expected an address that is a multiple of 16";
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) return "no interleaved tensors are emulated";
    uint64_t row = box[0] * element, bytes = element;
    for (uint32_t d = 0; d < rank; ++d) {
        if (sizes[d] < 1 || sizes[d] > 1ull << 32) return "expected sizes of 1 to 2^32";
        if (box[d] < 1 || box[d] > 256) return "expected a box of 1 to 256 along each dimension";
        if (steps[d] < 1 || steps[d] > 8) return "expected steps of 1 to 8";
        if (d > 0 && (strides[d - 1] % 16 || strides[d - 1] >= 1ull << 40))
            return "expected strides that are multiples of 16 bytes below 2^40";
        bytes *= d > 0 ? (box[d] + steps[d] - 1) / steps[d] : box[d];
    }
    if (row % 16) return "expected rows of the box of a multiple of 16 bytes";
    if (span && row > span) return "expected rows of the box no longer than the swizzle";
    return bytes > 1u << 18 ? "expected a box that shared memory can hold" : nullptr;
}
}  // namespace emu

inline CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                       const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                       const cuuint32_t* steps, CUtensorMapInterleave interleave,
                                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                       CUtensorMapFloatOOBfill outside) {
    uint64_t element = 0, span = swizzle ? 16ull << swizzle : 0;
#define EMU_CASE(name, bytes) case name: element = bytes; break;
    switch (type) { EMU_ELEMENTS(EMU_CASE) }
#undef EMU_CASE
    if (!map || !sizes || !box || !steps || (rank > 1 && !strides) || !element) return CUDA_ERROR_INVALID_VALUE;
    if (const char* rule = emu::broken_rule(element, rank, address, sizes, strides, box, steps, interleave, span)) {
        static char told[160];
        snprintf(told, sizeof told, "cuTensorMapEncodeTiled: %s", rule);
        emu::host->unsupported(told);
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(map, 0, sizeof *map);
    map->opaque[0] = EMU_TENSOR_MAP;
    map->opaque[1] = uint64_t(address);
    map->opaque[2] = uint64_t(outside != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) << 32 | span << 16 | element << 8 | rank;
    for (uint32_t d = 0; d < rank; ++d) {
        map->opaque[3 + d] = sizes[d];
        if (d > 0) map->opaque[7 + d] = strides[d - 1];
        map->opaque[12] |= uint64_t(box[d] - 1) << (8 * d);
        map->opaque[13] |= uint64_t(steps[d] - 1) << (8 * d);
    }
    return CUDA_SUCCESS;
}

// How programs get at the driver without linking it.
typedef enum cudaDriverEntryPointQueryResult_enum {
    cudaDriverEntryPointSuccess,
    cudaDriverEntryPointSymbolNotFound,
    cudaDriverEntryPointVersionNotSufficent
} cudaDriverEntryPointQueryResult;
enum { cudaEnableDefault = 0, cudaEnableLegacyStream = 1, cudaEnablePerThreadDefaultStream = 2 };
inline cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** to, unsigned long long,
                                           cudaDriverEntryPointQueryResult* found = nullptr) {
    bool is_there = !strcmp(symbol, "cuTensorMapEncodeTiled");
    *to = is_there ? (void*)cuTensorMapEncodeTiled : nullptr;
    if (found) *found = is_there ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
inline cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** to, unsigned, unsigned long long flags,
                                                    cudaDriverEntryPointQueryResult* found = nullptr) {
    return cudaGetDriverEntryPoint(symbol, to, flags, found);
}

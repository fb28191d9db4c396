// cp.async.bulk.tensor, sm_90: copies of a box of a tensor of 1 to 5 dimensions, between device memory and
// shared memory, asked for by one thread. PTX ISA, "Data Movement and Conversion Instructions: Tensor copy".
//
// The host describes the tensor, the box, and how it lies in shared memory (TensorMap of lab_device; cuda.h's
// CUtensorMap); a kernel takes that as `const __grid_constant__ TensorMap`. Coordinates are those of the box's
// first element, the innermost dimension first; they may be negative in a load. The innermost one, in bytes, is
// a multiple of 16. The tile begins at a multiple of 128 bytes, and without a swizzle has the box's elements
// one after the other. With one, rows are as long as its span, and lie as lab/ptx/descriptor.cuh has them: chunks
// are mixed by address bits, so that whoever reads them by row begins the tile at a multiple of 8 spans.
//
// What lies outside of the tensor is loaded as zeros (or NaN), which count at the barrier as all bytes do, and
// is not stored, but for this: the hardware stores whole 16 bytes, so that a row whose length is no multiple of
// 16 is stored up to the next one.
#pragma once
#include "lab/ptx/bulk.cuh"

namespace lab {

// Opaque; a kernel takes it as a __grid_constant__, and hands it on by reference: a copy is not where TMA looks.
struct alignas(64) TensorMap { unsigned long long words[16]; };

#ifdef LAB_CLUSTERS
#ifndef LAB_EMULATOR
namespace tensor_copy {

// The instructions of each rank, whose texts name each coordinate.
template <int RANK> struct Box;

// %0 is the tile, %1 the map, %2 the barrier, %3 the mask; the coordinates follow.
#define LAB_BOX(RANK, AT, ...)                                                                                \
    template <> struct Box<RANK> {                                                                            \
        static __device__ __forceinline__ void load(unsigned tile, const TensorMap* map,                      \
                                                    const int (&at)[RANK], unsigned barrier) {                \
            asm volatile("cp.async.bulk.tensor." #RANK "d.shared::cluster.global.tile.mbarrier"               \
                         "::complete_tx::bytes [%0], [%1, " AT "], [%2];" ::"r"(tile),                        \
                         "l"(map), "r"(barrier), "n"(0), __VA_ARGS__                                          \
                         : "memory");                                                                         \
        }                                                                                                     \
        static __device__ __forceinline__ void multicast(unsigned tile, const TensorMap* map,                 \
                                                         const int (&at)[RANK], unsigned barrier,             \
                                                         unsigned short blocks) {                             \
            asm volatile("cp.async.bulk.tensor." #RANK "d.shared::cluster.global.tile.mbarrier"               \
                         "::complete_tx::bytes.multicast::cluster [%0], [%1, " AT "], [%2], %3;" ::"r"(tile), \
                         "l"(map), "r"(barrier), "h"(blocks), __VA_ARGS__                                     \
                         : "memory");                                                                         \
        }                                                                                                     \
        static __device__ __forceinline__ void store(unsigned tile, const TensorMap* map,                     \
                                                     const int (&at)[RANK]) {                                 \
            asm volatile("cp.async.bulk.tensor." #RANK "d.global.shared::cta.tile.bulk_group "                \
                         "[%1, " AT "], [%0];" ::"r"(tile),                                                   \
                         "l"(map), "n"(0), "n"(0), __VA_ARGS__                                                \
                         : "memory");                                                                         \
        }                                                                                                     \
        static __device__ __forceinline__ void add(unsigned tile, const TensorMap* map,                       \
                                                   const int (&at)[RANK]) {                                   \
            asm volatile("cp.reduce.async.bulk.tensor." #RANK "d.global.shared::cta.add.tile.bulk_group "     \
                         "[%1, " AT "], [%0];" ::"r"(tile),                                                   \
                         "l"(map), "n"(0), "n"(0), __VA_ARGS__                                                \
                         : "memory");                                                                         \
        }                                                                                                     \
    };
LAB_BOX(1, "{%4}", "r"(at[0]))
LAB_BOX(2, "{%4, %5}", "r"(at[0]), "r"(at[1]))
LAB_BOX(3, "{%4, %5, %6}", "r"(at[0]), "r"(at[1]), "r"(at[2]))
LAB_BOX(4, "{%4, %5, %6, %7}", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]))
LAB_BOX(5, "{%4, %5, %6, %7, %8}", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]))
#undef LAB_BOX

}  // namespace tensor_copy
#endif

// Brings the description itself near: the first copy by a map waits for it, and nothing is read or written.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
#ifndef LAB_EMULATOR
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#else
    (void)map;
#endif
}

// The box at these coordinates, to shared memory of this block; its bytes, all of the box's, count at `barrier`.
template <int RANK>
__device__ __forceinline__ void tensor_load(void* tile, const TensorMap& map, const int (&at)[RANK],
                                            Mbarrier* barrier) {
#ifdef LAB_EMULATOR
    emu_tensor_copy(tile, &map, at, RANK, barrier, 0);
#else
    tensor_copy::Box<RANK>::load(shared_address(tile), &map, at, shared_address(barrier));
#endif
}

// The same to the blocks of the cluster that have a bit in `blocks`: to the same place in each, its bytes
// counted at the barrier in the same place. Each of them expects the bytes, and its barrier is known to the cluster.
template <int RANK>
__device__ __forceinline__ void tensor_load_multicast(void* tile, const TensorMap& map, const int (&at)[RANK],
                                                      Mbarrier* barrier, unsigned short blocks) {
#ifdef LAB_EMULATOR
    emu_tensor_copy(tile, &map, at, RANK, barrier, blocks | EMU_MULTICAST);
#else
    tensor_copy::Box<RANK>::multicast(shared_address(tile), &map, at, shared_address(barrier), blocks);
#endif
}

// From shared memory; no coordinate is negative. Plain stores to the tile are fenced before, as for bulk_store, to
// whose groups it belongs: bulk_wait_read before the tile is written again, or the block ends.
template <int RANK>
__device__ __forceinline__ void tensor_store(const TensorMap& map, const int (&at)[RANK], const void* tile) {
#ifdef LAB_EMULATOR
    emu_tensor_copy(const_cast<void*>(tile), &map, at, RANK, nullptr, 0);
#else
    tensor_copy::Box<RANK>::store(shared_address(tile), &map, at);
#endif
}

// The same, f32 added to what is there. Each element by one block alone: the order of several would not be fixed.
template <int RANK>
__device__ __forceinline__ void tensor_add(const TensorMap& map, const int (&at)[RANK], const void* tile) {
#ifdef LAB_EMULATOR
    emu_tensor_copy(const_cast<void*>(tile), &map, at, RANK, nullptr, EMU_ADD);
#else
    tensor_copy::Box<RANK>::add(shared_address(tile), &map, at);
#endif
}

#endif
}  // namespace lab

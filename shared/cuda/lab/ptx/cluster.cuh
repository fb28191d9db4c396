// Blocks of a cluster, sm_90: addresses in each other's shared memory. PTX ISA, "mapa".
#pragma once

// Where there are clusters at all. (nvcc's pass for the host, which has no __CUDA_ARCH__, reads kernels, too.)
#if defined(LAB_EMULATOR) || !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define LAB_CLUSTERS
#include <cooperative_groups.h>

namespace lab {

// A place in the shared memory of some block of the cluster. Instructions take it, loads and stores do
// not: cooperative_groups maps pointers for those.
#ifdef LAB_EMULATOR
using ClusterAddress = void*;
#else
using ClusterAddress = unsigned;
#endif

// An address of this block's shared memory, as instructions take it.
#ifdef LAB_EMULATOR
__device__ __forceinline__ void* shared_address(const void* shared) { return const_cast<void*>(shared); }
#else
__device__ __forceinline__ unsigned shared_address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}
#endif

// Where block `rank` of the cluster has what this block has at `own`.
__device__ __forceinline__ ClusterAddress address_in_block(const void* own, int rank) {
#ifdef LAB_EMULATOR
    return emu_map_shared(own, unsigned(rank));
#else
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(own)), "r"(rank));
    return there;
#endif
}

// All threads of all blocks of the cluster meet; it orders no loads and stores but those whose values a thread has used already. So it has no
// fence, as cluster.sync() has: for the end of blocks that others have read.
__device__ __forceinline__ void cluster_meet() {
#ifdef LAB_EMULATOR
    cooperative_groups::this_cluster().sync();
#else
    asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;" ::: "memory");
#endif
}

}  // namespace lab
#endif

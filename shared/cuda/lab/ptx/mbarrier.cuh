// mbarrier, sm_90: a barrier in shared memory that counts arrivals, and bytes that asynchronous copies
// bring. PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
//
// It goes through phases. One is complete when as many threads have arrived as `mbarrier_init` said, and
// as many bytes have come as were expected in it; the next begins at once. Whoever waits names the
// phase by its parity: 0 for the first, then 1, 0, ... So a wait for parity 1 before the first phase is
// complete returns at once: the phase "before the first" counts as complete.
//
// An arrival releases, a successful wait acquires: what a thread did before it arrived is seen by whoever
// has waited for the phase. Both reach the own block only, but for those whose name says cluster.
#pragma once
#include "lab/ptx/cluster.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

// Its 8 bytes are the hardware's: no plain access.
struct alignas(8) Mbarrier {
    unsigned long long state;
};

// Before its first use; one thread. The block's other threads know of it after a barrier; copies and
// other blocks after mbarrier_fence_init() and then a barrier.
__device__ __forceinline__ void mbarrier_init(Mbarrier* barrier, unsigned arrivals) {
#ifdef LAB_EMULATOR
    emu_mbarrier_init(barrier, arrivals);
#else
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
#endif
}

__device__ __forceinline__ void mbarrier_fence_init() {
#ifdef LAB_EMULATOR
    emu_mbarrier_fence_init();
#else
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Its memory may be used for something else from here on.
__device__ __forceinline__ void mbarrier_invalidate(Mbarrier* barrier) {
#ifdef LAB_EMULATOR
    emu_mbarrier_invalidate(barrier);
#else
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

__device__ __forceinline__ void mbarrier_arrive(Mbarrier* barrier) {
#ifdef LAB_EMULATOR
    emu_mbarrier_arrive(barrier, 1, 0, EMU_SCOPE_BLOCK);
#else
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

// Arrives, and says that so many bytes are to come in this phase besides.
__device__ __forceinline__ void mbarrier_arrive_expect(Mbarrier* barrier, unsigned bytes) {
#ifdef LAB_EMULATOR
    emu_mbarrier_arrive(barrier, 1, bytes, EMU_SCOPE_BLOCK);
#else
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
#endif
}

// Arrives at the barrier of any block of the cluster; releases to the cluster.
__device__ __forceinline__ void mbarrier_arrive_cluster(ClusterAddress barrier) {
#ifdef LAB_EMULATOR
    emu_mbarrier_arrive(barrier, 1, 0, EMU_SCOPE_CLUSTER);
#else
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

// The same where all that other blocks then do in that place is a copy, and all that was read there was read by wgmma, or by
// threads of the copying block. Copies wait for the phase by themselves. So it releases loads and stores to the own block only:
// for the cluster it would wait at MEMBAR.ALL.GPU each time.
__device__ __forceinline__ void mbarrier_arrive_for_copies(ClusterAddress barrier) {
#ifdef LAB_EMULATOR
    emu_mbarrier_arrive(barrier, 1, 0, EMU_SCOPE_CLUSTER);
#else
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

// Whether the phase of that parity is complete; may take a while to say no.
__device__ __forceinline__ bool mbarrier_try_wait(Mbarrier* barrier, unsigned parity) {
#ifdef LAB_EMULATOR
    return emu_mbarrier_try_wait(barrier, parity, EMU_SCOPE_BLOCK);
#else
    unsigned complete;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(complete) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    return complete;
#endif
}

// The same; acquires from the cluster: other blocks have arrived, or stored what came.
__device__ __forceinline__ bool mbarrier_try_wait_cluster(Mbarrier* barrier, unsigned parity) {
#ifdef LAB_EMULATOR
    return emu_mbarrier_try_wait(barrier, parity, EMU_SCOPE_CLUSTER);
#else
    unsigned complete;
    asm volatile("{ .reg .pred p; "
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(complete) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    return complete;
#endif
}

// The same where other blocks have asked for copies, or arrived for some: acquires from the own block only, without a fence.
__device__ __forceinline__ bool mbarrier_try_wait_for_copies(Mbarrier* barrier, unsigned parity) {
#ifdef LAB_EMULATOR
    return emu_mbarrier_try_wait(barrier, parity, EMU_SCOPE_CLUSTER);
#else
    return mbarrier_try_wait(barrier, parity);
#endif
}

__device__ __forceinline__ void mbarrier_wait_for_copies(Mbarrier* barrier, unsigned parity) {
    while (!mbarrier_try_wait_for_copies(barrier, parity)) {}
}

__device__ __forceinline__ void mbarrier_wait(Mbarrier* barrier, unsigned parity) {
    while (!mbarrier_try_wait(barrier, parity)) {}
}

__device__ __forceinline__ void mbarrier_wait_cluster(Mbarrier* barrier, unsigned parity) {
    while (!mbarrier_try_wait_cluster(barrier, parity)) {}
}

}  // namespace lab
#endif

// cp.async.bulk, sm_90: copies of whole stretches of memory that go on while the thread does. One thread
// asks for all of it. PTX ISA, "Data Movement and Conversion Instructions: Bulk copy".
//
// Addresses and sizes are multiples of 16 bytes. The copies are made in the async proxy: they see what a
// thread has written by plain stores only if a fence_proxy_async() lies between, or for shared memory
// a fence_proxy_async_shared(): by the writer (then a barrier, if another thread asks for the copy) or,
// after the barrier, by whoever asks.
#pragma once
#include "lab/ptx/mbarrier.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

// Plain accesses before it are seen by asynchronous copies and wgmma after it, and the other way round.
__device__ __forceinline__ void fence_proxy_async() {
#ifdef LAB_EMULATOR
    emu_fence_proxy_async(false);
#else
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

// The same of accesses to this block's shared memory alone. It does not wait for device memory, as the other does
// (MEMBAR.ALL.GPU in the machine code).
__device__ __forceinline__ void fence_proxy_async_shared() {
#ifdef LAB_EMULATOR
    emu_fence_proxy_async(true);
#else
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// From device memory to shared memory of this block; the bytes count at `barrier`.
__device__ __forceinline__ void bulk_load(void* to, const void* from, unsigned bytes, Mbarrier* barrier) {
#ifdef LAB_EMULATOR
    emu_bulk_copy(to, from, bytes, barrier);
#else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
                     "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
#endif
}

// From shared memory of this block to that of a block of the cluster, in which `barrier` lies, too.
__device__ __forceinline__ void bulk_send(ClusterAddress to, const void* from, unsigned bytes,
                                          ClusterAddress barrier) {
#ifdef LAB_EMULATOR
    emu_bulk_copy(to, from, bytes, barrier);
#else
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to), "r"(shared_address(from)), "r"(bytes), "r"(barrier)
                 : "memory");
#endif
}

// From shared memory to device memory. Whoever asked closes a group of them, and waits for its groups.
__device__ __forceinline__ void bulk_store(void* to, const void* from, unsigned bytes) {
#ifdef LAB_EMULATOR
    emu_bulk_copy(to, from, bytes, nullptr);
#else
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
#endif
}

__device__ __forceinline__ void bulk_commit() {
#ifdef LAB_EMULATOR
    emu_bulk_commit();
#else
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Until at most the PENDING latest of this thread's groups are under way.
template <int PENDING> __device__ __forceinline__ void bulk_wait() {
#ifdef LAB_EMULATOR
    emu_bulk_wait(PENDING, false);
#else
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Until all but those have read what they copy: its shared memory may be written again.
template <int PENDING> __device__ __forceinline__ void bulk_wait_read() {
#ifdef LAB_EMULATOR
    emu_bulk_wait(PENDING, true);
#else
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
#endif
}

}  // namespace lab
#endif

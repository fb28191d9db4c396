// mbarrier, st.async and mapa, sm_90: numbers that blocks of a cluster store into each other's shared
// memory, and a barrier there that counts the bytes which have come. PTX ISA, "Parallel Synchronization
// and Communication Instructions: mbarrier", "st.async".
//
// The emulator knows no mbarrier: a wait is a barrier of the cluster there, which orders more.
#pragma once

// Where there are clusters at all.
#if defined(LAB_EMULATOR) || __CUDA_ARCH__ >= 900
#define LAB_CLUSTERS
#include <cooperative_groups.h>
#endif

namespace lab {

// Numbers that have come, of two boxes.
struct Arrivals {
#if defined(LAB_EMULATOR)
    __device__ __forceinline__ void begin(unsigned) {}
    template <class M> __device__ __forceinline__ void send(M* own, M v, int block, int) const {
        *cooperative_groups::this_cluster().map_shared_rank(own, block) = v;
    }
    __device__ __forceinline__ void wait(int, unsigned, unsigned) const {
        cooperative_groups::this_cluster().sync();
    }
#elif defined(LAB_CLUSTERS)
    unsigned bars;  // where in shared memory

    static __device__ __forceinline__ unsigned place(const void* shared) {
        return static_cast<unsigned>(__cvta_generic_to_shared(shared));
    }
    static __device__ __forceinline__ unsigned in_block(unsigned place, int block) {
        unsigned there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(place), "r"(block));
        return there;
    }
    __device__ __forceinline__ void begin(unsigned bytes) {
        __shared__ unsigned long long two[2];
        bars = place(two);
        if (threadIdx.x != 0) return;
        for (int box = 0; box < 2; ++box)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bars + 8 * box) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int box = 0; box < 2; ++box) expect(box, bytes);
    }
    __device__ __forceinline__ void expect(int box, unsigned bytes) const {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bars + 8 * box),
                     "r"(bytes)
                     : "memory");
    }
    template <class M> __device__ __forceinline__ void send(M* own, M v, int block, int box) const {
        unsigned to = in_block(place(own), block), bar = in_block(bars + 8 * box, block);
        if constexpr (sizeof(M) == 8)
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::
                             "r"(to), "l"(__double_as_longlong(v)), "r"(bar) : "memory");
        else
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::
                             "r"(to), "r"(__float_as_uint(v)), "r"(bar) : "memory");
    }
    // For the n-th time, from 0 on, that the box fills. Acquires from the cluster: other blocks have stored
    // what came, and the default is the own block.
    __device__ __forceinline__ void wait(int box, unsigned n, unsigned bytes) const {
        unsigned come;
        do {
            asm volatile("{ .reg .pred p; "
                         "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
                         "selp.u32 %0, 1, 0, p; }"
                         : "=r"(come) : "r"(bars + 8 * box), "r"(n % 2) : "memory");
        } while (!come);
        if (threadIdx.x == 0) expect(box, bytes);  // who sends of the next time has heard from this one
    }
#endif
};

}  // namespace lab

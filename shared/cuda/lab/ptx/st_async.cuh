// st.async, sm_90: a store into the shared memory of a block of the cluster that goes on while the thread
// does; its bytes count at an mbarrier of that block. PTX ISA, "st.async".
#pragma once
#include "lab/ptx/mbarrier.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

// For clusters of more than one block. `barrier` lies in the same block as `to`. Who has waited for its phase, acquiring from the cluster, sees
// the value.
template <class M>
__device__ __forceinline__ void store_async(ClusterAddress to, M value, ClusterAddress barrier) {
    static_assert(sizeof(M) == 4 || sizeof(M) == 8, "one or two words");
#ifdef LAB_EMULATOR
    emu_store_async(to, emu::to_bits(value), sizeof(M), barrier);
#else
    if constexpr (sizeof(M) == 8)
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::
                         "r"(to), "l"(*reinterpret_cast<unsigned long long*>(&value)), "r"(barrier) : "memory");
    else
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::
                         "r"(to), "r"(*reinterpret_cast<unsigned*>(&value)), "r"(barrier) : "memory");
#endif
}

}  // namespace lab
#endif

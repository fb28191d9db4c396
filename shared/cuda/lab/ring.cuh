// A ring of places in shared memory: some fill them, others use what is there, each at its own pace.
//
// Each place has two barriers. `full` completes when what was asked for has come; who uses it waits for that.
// `empty` completes when all users have left the place; who fills it waits for that. So both go round and
// round, and meet only where one of them has nothing to do.
#pragma once
#include "lab/ptx/mbarrier.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

// Where somebody is on his way round: at which place, and for which time.
template <int PLACES> struct Turn {
    int place = 0;
    unsigned parity = 0;  // of the phase that completes when this turn's place is full

    __device__ __forceinline__ void advance() {
        if (++place == PLACES) place = 0, parity ^= 1;
    }
};

template <int PLACES> struct Ring {
    Mbarrier full[PLACES], empty[PLACES];

    // One thread, before a barrier; `users` arrive each time that a place is left, `bringers` each time that it is full.
    __device__ __forceinline__ void init(unsigned users, unsigned bringers = 1) {
        for (int i = 0; i < PLACES; ++i) {
            mbarrier_init(&full[i], bringers);
            mbarrier_init(&empty[i], users);
        }
        mbarrier_fence_init();
    }

    // Until all have left what was here the last time; the first time nobody was, and the phase before the first
    // counts as complete.
    __device__ __forceinline__ void wait_empty(Turn<PLACES> at) { mbarrier_wait(&empty[at.place], at.parity ^ 1); }
    __device__ __forceinline__ void wait_full(Turn<PLACES> at) { mbarrier_wait(&full[at.place], at.parity); }
    // One thread may leave for its warpgroup, once it has waited for the wgmma that reads the place: a group of wgmma is
    // the warpgroup's (PTX ISA, "wgmma.commit_group"), and is complete for all of it or for none.
    __device__ __forceinline__ void leave(Turn<PLACES> at) { mbarrier_arrive(&empty[at.place]); }

    // Where copies that other blocks of the cluster have asked for bring a part of it.
    __device__ __forceinline__ void wait_full_cluster(Turn<PLACES> at) {
        mbarrier_wait_cluster(&full[at.place], at.parity);
    }
    // The same where the users of other blocks of the cluster leave it, too, and this block's leave theirs.
    __device__ __forceinline__ void wait_empty_cluster(Turn<PLACES> at) {
        mbarrier_wait_cluster(&empty[at.place], at.parity ^ 1);
    }
    __device__ __forceinline__ void leave_in_block(Turn<PLACES> at, int rank) {
        mbarrier_arrive_cluster(address_in_block(&empty[at.place], rank));
    }

    // The three of them where wgmma alone reads what other blocks have copied to a place: no fence for a thread's loads and stores.
    __device__ __forceinline__ void wait_full_of_copies(Turn<PLACES> at) {
        mbarrier_wait_for_copies(&full[at.place], at.parity);
    }
    __device__ __forceinline__ void wait_empty_for_copies(Turn<PLACES> at) {
        mbarrier_wait_for_copies(&empty[at.place], at.parity ^ 1);
    }
    __device__ __forceinline__ void leave_to_copies(Turn<PLACES> at, int rank) {
        mbarrier_arrive_for_copies(address_in_block(&empty[at.place], rank));
    }
};

}  // namespace lab
#endif

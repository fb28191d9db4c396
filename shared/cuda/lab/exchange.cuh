// What the blocks of a group hand each other, step by step. A block has a box in its shared memory,
// twice: all write into the one of the next step while they read the one of this step.
//
// Where the group is a cluster (sm_90), a block writes into the boxes of the others through
// distributed shared memory, and a cluster-wide barrier ends the step. Elsewhere it writes into
// their boxes in device memory, raises a flag, and copies its own from there once it has seen the
// flags of all: for that all blocks of the group must be resident.
#pragma once
#include "lab/order.cuh"

#if defined(LAB_EMULATOR) || __CUDA_ARCH__ >= 900
#define LAB_CLUSTERS
#include <cooperative_groups.h>
#endif

// Layout: COUNT numbers, of which number i lies at place(i) of SIZE.
template <class M, class Layout, int BLOCKS, int THREADS> struct Exchange {
    static_assert(BLOCKS <= THREADS, "a thread for the flag of each block");
    M* box;           // shared memory, 2 x SIZE
    M* post;          // device memory, BLOCKS x 2 x COUNT; not there in a cluster
    unsigned* flags;  // BLOCKS of them, zero at first; not there in a cluster
    int rank;         // of this block
    bool clustered;
    unsigned step = 0;

    // Of the step under way.
    __device__ __forceinline__ const M* read() const { return box + step % 2 * Layout::SIZE; }

    // Before the first send: all blocks have begun, and this one's threads have filled its box.
    __device__ __forceinline__ void begin() const {
#ifdef LAB_CLUSTERS
        if (clustered) return cooperative_groups::this_cluster().sync();
#endif
        __syncthreads();
    }

    // ANCHOR: send
    // Number i of a block's next box.
    __device__ __forceinline__ void send(int block, int i, M v) const {
        unsigned next = (step + 1) % 2;
#ifdef LAB_CLUSTERS
        if (clustered) {
            M* own = box + next * Layout::SIZE + Layout::place(i);
            *cooperative_groups::this_cluster().map_shared_rank(own, block) = v;
            return;
        }
#endif
        post[(block * 2 + next) * Layout::COUNT + i] = v;
    }
    // ANCHOR_END: send

    // ANCHOR: meet
    // Ends the step: what was sent has come. A box is written again no sooner than two meetings after,
    // and who has come to the second has read what came with the first.
    __device__ __forceinline__ void meet() {
        ++step;
#ifdef LAB_CLUSTERS
        if (clustered) return cooperative_groups::this_cluster().sync();
#endif
        __syncthreads();  // this block's numbers are written: one thread may say so for all
        if (threadIdx.x == 0) store_release(flags + rank, step);
        if (threadIdx.x < BLOCKS)
            while (load_acquire(flags + threadIdx.x) < step) {}
        __syncthreads();  // all blocks have written
        const M* come = post + (rank * 2 + step % 2) * Layout::COUNT;
        M* own = box + step % 2 * Layout::SIZE;
        for (int i = threadIdx.x; i < Layout::COUNT; i += THREADS) own[Layout::place(i)] = come[i];
        __syncthreads();  // all threads read what each has copied
    }
    // ANCHOR_END: meet
};

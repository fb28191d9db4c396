// What the blocks of a group hand each other, step by step. A block has a box in its shared memory,
// twice: all write into the one of the next step while they read the one of this step.
//
// Where the group is a cluster (sm_90), a number goes into the box of another block through
// distributed shared memory, and counts there: a step is over for a thread when all COUNT numbers
// have come into its block's box (lab/ptx/mbarrier.cuh). Nobody waits for anything else: at a barrier
// of the cluster, each would also wait for its own stores to device memory.
//
// Elsewhere a number goes into the block's box in device memory; a block raises a flag, and copies
// its own box from there once it has seen the flags of all: all blocks of the group must be resident.
//
// A box is written again two steps later. Whoever writes then has all numbers of the step between,
// those too that the box's own block sent. So each warp must send in each step, after all that its lanes
// read from the box of that step (a barrier or a shuffle of the whole warp lies between), and read no box
// after.
#pragma once
#include "lab/ptx/order.cuh"
#include "lab/ptx/st_async.cuh"

namespace lab {

#ifdef LAB_CLUSTERS
// Numbers that have come, of two boxes.
struct Arrivals {
    Mbarrier* bars;  // shared memory, 2

    // Each step brings so many bytes.
    __device__ __forceinline__ void begin(unsigned bytes) {
        __shared__ Mbarrier two[2];
        bars = two;
        if (threadIdx.x != 0) return;
        for (int box = 0; box < 2; ++box) mbarrier_init(bars + box, 1);
        mbarrier_fence_init();
        for (int box = 0; box < 2; ++box) mbarrier_arrive_expect(bars + box, bytes);
    }
    template <class M> __device__ __forceinline__ void send(M* own, M v, int block, int box) const {
        store_async(address_in_block(own, block), v, address_in_block(bars + box, block));
    }
    // For the n-th time, from 0 on, that the box fills. Other blocks have stored what came.
    __device__ __forceinline__ void wait(int box, unsigned n, unsigned bytes) const {
        mbarrier_wait_cluster(bars + box, n % 2);
        // Who sends of the next time has heard from this one.
        if (threadIdx.x == 0) mbarrier_arrive_expect(bars + box, bytes);
    }
};
#else
struct Arrivals {};
#endif

// Of COUNT numbers a step, BLOCKS blocks of THREADS.
template <class M, int COUNT, int BLOCKS, int THREADS> struct Exchange {
    static_assert(BLOCKS <= THREADS, "a thread for the flag of each block");
    M* box;           // shared memory, 2 x COUNT
    M* post;          // device memory, BLOCKS x 2 x COUNT; not there in a cluster
    unsigned* flags;  // BLOCKS of them, zero at first; not there in a cluster
    int rank;         // of this block
    bool clustered;
    unsigned step = 0;
    Arrivals arrivals{};

    // Of the step under way.
    __device__ __forceinline__ const M* read() const { return box + step % 2 * COUNT; }

    // Before the first send, when this block's threads have filled its box.
    __device__ __forceinline__ void begin() {
#ifdef LAB_CLUSTERS
        if (clustered) {
            arrivals.begin(COUNT * sizeof(M));
            // Nobody writes into a block, or counts in it, that has not begun.
            return cooperative_groups::this_cluster().sync();
        }
#endif
        __syncthreads();  // all threads read what each has filled
    }

    // ANCHOR: send
    // Number i of a block's next box.
    __device__ __forceinline__ void send(int block, int i, M v) const {
        unsigned next = (step + 1) % 2;
#ifdef LAB_CLUSTERS
        if (clustered) {
            arrivals.send(box + next * COUNT + i, v, block, next);
            return;
        }
#endif
        post[(block * 2 + next) * COUNT + i] = v;
    }
    // ANCHOR_END: send

    // ANCHOR: meet
    // Ends the step: all numbers of the next box have come.
    __device__ __forceinline__ void meet() {
        ++step;
#ifdef LAB_CLUSTERS
        if (clustered) {
            arrivals.wait(step % 2, (step - 1) / 2, COUNT * sizeof(M));
            return;
        }
#endif
        __syncthreads();  // this block's numbers are written: one thread may say so for all
        if (threadIdx.x == 0) store_release(flags + rank, step);
        if (threadIdx.x < BLOCKS)
            while (load_acquire(flags + threadIdx.x) < step) {}
        __syncthreads();  // all blocks have written
        const M* come = post + (rank * 2 + step % 2) * COUNT;
        for (int i = threadIdx.x; i < COUNT; i += THREADS) box[step % 2 * COUNT + i] = come[i];
        __syncthreads();  // all threads read what each has copied, and have read the box of this step
    }
    // ANCHOR_END: meet
};

}  // namespace lab

// What the blocks of a group hand each other, step by step. A block has a box in its shared memory,
// twice: all write into the one of the next step while they read the one of this step.
//
// Where the group is a cluster (sm_90), a number goes into the box of another block through
// distributed shared memory, and counts there: a step is over for a thread when all COUNT numbers
// have come into its block's box (st.async and mbarrier, PTX ISA). Nobody waits for anything else: at
// a barrier of the cluster, each would also wait for its own stores to device memory. The emulator
// knows no mbarrier; there it is a barrier of the cluster, which orders more.
//
// Elsewhere a number goes into the block's box in device memory; a block raises a flag, and copies
// its own box from there once it has seen the flags of all: all blocks of the group must be resident.
//
// A box is written again two steps later. Whoever writes then has all numbers of the step between,
// those too that the box's own block sent. So each warp must send in each step, after all that its lanes
// read from the box of that step (a barrier or a shuffle of the whole warp lies between), and read no box
// after.
#pragma once
#include "lab/order.cuh"

#if defined(LAB_EMULATOR) || __CUDA_ARCH__ >= 900
#define LAB_CLUSTERS
#include <cooperative_groups.h>
#endif

// Numbers that have come, of two boxes.
struct Arrivals {
#if defined(LAB_CLUSTERS) && !defined(LAB_EMULATOR)
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
#ifndef LAB_EMULATOR
            arrivals.begin(COUNT * sizeof(M));
#endif
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
            M* own = box + next * COUNT + i;
#ifdef LAB_EMULATOR
            *cooperative_groups::this_cluster().map_shared_rank(own, block) = v;
#else
            arrivals.send(own, v, block, next);
#endif
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
#ifdef LAB_EMULATOR
            cooperative_groups::this_cluster().sync();
#else
            arrivals.wait(step % 2, (step - 1) / 2, COUNT * sizeof(M));
#endif
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

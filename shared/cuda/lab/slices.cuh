// What the blocks of a cluster hand each other at the end of a step, in one piece: a block has a slice of h, and copies
// it into the box of every block, its own too (cp.async.bulk). Boxes and slices are there twice: of even steps, and of
// odd ones.
//
// A box is written again two steps later, and so is a slice. Whoever writes then must know that the box has been read,
// and that the copies have read the slice. A copy that arrives does not tell: it brings itself, and nothing of what its
// block has done before (PTX ISA, "cp.async.bulk": "does not transitively establish ordering with respect to prior
// instructions from the issuing thread"). A store does, st.async. So a word goes to each block, and counts at the same
// barrier: who has waited for the slices of a step has the words of all blocks, too. A store takes longer than a copy: the
// word goes as soon as the box is read, if it can.
//
// The slices of a quarter of the blocks have a barrier of their own: what they are for can begin before all have come. Not so
// where each block gets a slice of its own: a sum over all blocks takes little time, and four waits take more. Nor where half
// of the warps are for half of the blocks: they wait for these at once.
#pragma once
#include "lab/ptx/bulk.cuh"
#include "lab/ptx/st_async.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

// Some bytes on from there.
__device__ __forceinline__ unsigned further(unsigned address, int bytes) { return address + bytes; }
__device__ __forceinline__ void* further(void* address, int bytes) { return static_cast<char*>(address) + bytes; }

// The barriers of even steps, one for each part of the blocks, and those of odd ones: its slices have come, and its words; and
// the words, which say nothing but that.
template <int BLOCKS> struct Arrived {
    static constexpr int PARTS = BLOCKS < 4 ? BLOCKS : 4;
    Mbarrier slices[2 * PARTS];
    unsigned word[2][BLOCKS];
};

// SOURCES: 1 where all blocks get the same slice, else BLOCKS: a slice for each. GAP: numbers behind each part of a box.
// MOST: no more parts than these.
template <class T, int BLOCKS, int SLICE, int THREADS, int SOURCES = 1, int GAP = 0, int MOST = 4> struct Slices {
    static constexpr int PARTS = SOURCES > 1 ? 1 : Arrived<BLOCKS>::PARTS < MOST ? Arrived<BLOCKS>::PARTS : MOST;
    static constexpr int OF_PART = BLOCKS / PARTS;
    static constexpr int BOX = BLOCKS * SLICE + PARTS * GAP, WARPS = THREADS / 32, BYTES = SLICE * sizeof(T), WORD = sizeof(unsigned);
    static constexpr int EXPECTED = OF_PART * (BYTES + WORD);  // of a step and a part: slices and words
    static constexpr int NEXT = PARTS * int(sizeof(Mbarrier));  // from the barrier of an even step to that of an odd one
    static_assert(BYTES % 16 == 0, "a bulk copy is of 16 bytes or several: more units a block");
    static_assert(BLOCKS % PARTS == 0 && WARPS % PARTS == 0, "whole blocks, and whole warps, for each part");
    static_assert(BLOCKS <= THREADS, "a thread for each block");
    static_assert(GAP * sizeof(T) % 16 == 0, "a slice of the next part begins at a multiple of 16 bytes");
    static_assert(SOURCES == 1 || SOURCES == BLOCKS, "the same for all, or to each its own");
    T *boxes, *slices;  // shared memory: 2 x BOX, 2 x SOURCES x SLICE
    Arrived<BLOCKS>& arrived;
    int to = threadIdx.x / 32 + threadIdx.x % 32 * WARPS;  // the block that this thread sends to, if it is one: a few
                                                            // threads of each warp do
    ClusterAddress slice_there, word_there, slices_there;  // in that block, of even steps

    __device__ __forceinline__ Slices(T* boxes, T* slices, Arrived<BLOCKS>& arrived, int rank)
        : boxes(boxes), slices(slices), arrived(arrived) {
        int peer = to < BLOCKS ? to : rank;
        slice_there = address_in_block(boxes + rank * SLICE + rank / OF_PART * GAP, peer);
        word_there = address_in_block(&arrived.word[0][rank], peer);
        slices_there = address_in_block(&arrived.slices[rank / OF_PART], peer);
    }

    // Of what step s reads, and of what it gives: to block `peer`, where it is not the same for all.
    __device__ __forceinline__ T* box(unsigned s) const { return boxes + s % 2 * BOX; }
    __device__ __forceinline__ T* slice(unsigned s, int peer = 0) const {
        return slices + (s % 2 * SOURCES + (SOURCES > 1 ? peer : 0)) * SLICE;
    }

    // When this block's threads have filled the box of step 0.
    __device__ __forceinline__ void begin() const {
        if (threadIdx.x == 0) {
            for (int b = 0; b < 2 * PARTS; ++b) mbarrier_init(&arrived.slices[b], 1);
            mbarrier_fence_init();
            for (int b = 0; b < 2 * PARTS; ++b) mbarrier_arrive_expect(&arrived.slices[b], EXPECTED);
        }
        fence_proxy_async_shared();  // copies will write where threads have written
        // Nobody writes into a block, or counts in it, that has not begun.
        cooperative_groups::this_cluster().sync();
    }

    // ANCHOR: send
    // All threads of this block have read the box of step s, as a barrier has said: says so to all blocks.
    __device__ __forceinline__ void tell(unsigned s) const {
        int next = (s + 1) % 2;
        if (to < BLOCKS)
            store_async(further(word_there, next * BLOCKS * WORD), 0u, further(slices_there, next * NEXT));
    }

    // Until the box of step s > 0 has the slices of a part of the blocks. A thread that has waited for all parts, or has met
    // at a barrier others that have, knows that all blocks have read the box of step s - 1, and have the slices of step
    // s - 2. Thread p THREADS / PARTS must be among those that wait for part p: it sets the barrier for step s + 2.
    __device__ __forceinline__ void wait(unsigned s, int part = 0) const {
        Mbarrier* come = &arrived.slices[s % 2 * PARTS + part];
        mbarrier_wait_cluster(come, (s - 1) / 2 % 2);
        if (int(threadIdx.x) == part * (THREADS / PARTS)) mbarrier_arrive_expect(come, EXPECTED);
    }

    // Step s has given this block's slice, or this warp has given those that its lanes send. All threads come.
    __device__ __forceinline__ void send(unsigned s) const {
        fence_proxy_async_shared();  // the copies see what this thread has stored
        if (SOURCES == 1) __syncthreads();  // all threads have stored theirs, and read the box
        else __syncwarp();                  // all lanes have stored theirs; a barrier before says that the box is read
        if (to < BLOCKS) copy(s);
    }
    // This warp has given the slice of the n-th block that it sends to, and sends that.
    __device__ __forceinline__ void send_one(unsigned s, int n) const {
        fence_proxy_async_shared();  // the copy sees what this lane has stored
        __syncwarp();                // and what the others have
        if (int(threadIdx.x % 32) == n) copy(s);
    }
    // Block `to` gets its slice.
    __device__ __forceinline__ void copy(unsigned s) const {
        int next = (s + 1) % 2;
        bulk_send(further(slice_there, next * BOX * int(sizeof(T))), slice(s, to), BYTES,
                  further(slices_there, next * NEXT));
    }
    // ANCHOR_END: send

    // Nobody ends while others may still send to him.
    __device__ __forceinline__ void end() const { cooperative_groups::this_cluster().sync(); }
};

// A block by itself: its slice of a step is the box of the next, and nothing is copied.
template <class T, int SLICE, int THREADS, int MOST> struct Slices<T, 1, SLICE, THREADS, 1, 0, MOST> {
    static constexpr int PARTS = 1;
    T* boxes;  // shared memory: 2 x SLICE

    __device__ __forceinline__ Slices(T* boxes, T*, Arrived<1>&, int) : boxes(boxes) {}
    __device__ __forceinline__ T* box(unsigned s) const { return boxes + s % 2 * SLICE; }
    __device__ __forceinline__ T* slice(unsigned s) const { return box(s + 1); }
    __device__ __forceinline__ void begin() const { __syncthreads(); }  // threads read what others have filled
    __device__ __forceinline__ void wait(unsigned, int) const {}
    __device__ __forceinline__ void tell(unsigned) const {}
    __device__ __forceinline__ void send(unsigned) const { __syncthreads(); }  // all threads have stored theirs
    __device__ __forceinline__ void end() const {}
};

}  // namespace lab
#endif

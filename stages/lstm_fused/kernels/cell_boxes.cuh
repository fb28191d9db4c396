// What comes to the cells of a step, and what leaves them, of a whole block at once by TMA. A thread has units that are four
// to a warp: its loads and stores would ask for a line of memory for each row and 8 to 64 bytes of it, and a multiprocessor
// takes lines one after the other.
//
// A box has LINES lines: for each 8 units the ROWS rows one below the other, as a box of h does (lab/slices.cuh).
//
//   ax     64 bytes a line, the four gates of each unit, T's        y  16 bytes, T's
//   gates  128 bytes, likewise in f32                               c  32 bytes, f32
//
// Lines are swizzled, so that the eight rows of a warp's lanes meet different banks. Each box is there twice, of even steps
// and of odd ones. One thread, the same at all steps, asks for all copies.
#pragma once
#include "gate_groups.cuh"
#include "lab/ptx/tensor_copy.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

// S: the shares of the products (GroupShares).
template <class T, class S, int ROWS> struct CellBoxes {
    static constexpr int LINES = S::UNITS / 8 * ROWS;
    static constexpr int AX_LINE = 64, GATES_LINE = 128, C_LINE = 32, Y_LINE = 16;
    static __device__ constexpr int whole(int bytes) { return (bytes + 1023) / 1024 * 1024; }  // a swizzle begins there
    static constexpr int AX = whole(AX_LINE * LINES), GATES = whole(GATES_LINE * LINES), C = whole(C_LINE * LINES);
    static constexpr int OF_STEP = AX + GATES + C + whole(Y_LINE * LINES), BYTES = 2 * OF_STEP;

    char* memory;    // shared, from a multiple of 1024 bytes on
    Mbarrier* come;  // two: the ax of even steps, of odd ones
    const TensorMap &of_ax, &of_gates, &of_c, &of_y;
    int first_row, eights;  // of the units: blocks begin at whole eights
    bool keep;              // gates and c leave, too

    __device__ __forceinline__ bool is_asking() const { return int(threadIdx.x) == S::THREADS - 32; }

    // Of step s: where its boxes begin; a lane's bytes of a line.
    __device__ __forceinline__ char* of_step(unsigned s) const { return memory + s % 2 * OF_STEP; }
    template <int LINE> static __device__ __forceinline__ int in_box(int line, int byte) {
        return line * LINE + ((byte / 16 ^ line * LINE / 128 % (LINE / 16)) * 16 | byte % 16);
    }
    static __device__ __forceinline__ int line(int u, int row) { return u / 8 * ROWS + row; }

    // Before a barrier that all threads of the cluster come to.
    __device__ __forceinline__ void init() const {
        if (threadIdx.x == 0) mbarrier_init(&come[0], 1), mbarrier_init(&come[1], 1);
    }

    // ANCHOR: boxes
    // is_asking(): ax of step s, which is step t of the tensors. All have read that of step s - 2.
    __device__ __forceinline__ void load(unsigned s, int t) const {
        mbarrier_arrive_expect(&come[s % 2], AX_LINE * LINES);
        tensor_load(of_step(s), of_ax, {0, first_row, eights, t}, &come[s % 2]);
    }
    __device__ __forceinline__ void wait(unsigned s) const { mbarrier_wait(&come[s % 2], s / 2 % 2); }
    // What x adds to the gates of a cell: unit u of the block, and its row of the cluster.
    __device__ __forceinline__ uint2 ax(unsigned s, int u, int row) const {
        return *reinterpret_cast<const uint2*>(of_step(s) + in_box<AX_LINE>(line(u, row), u % 8 * 8));
    }

    // What a cell leaves. The boxes of step s - 2 are free: who asks has waited for them, and all have met him since.
    __device__ __forceinline__ void put(unsigned s, int u, int row, float4 gates, float c, T y) const {
        char* to = of_step(s) + AX;
        int of_cell = line(u, row);
        *reinterpret_cast<T*>(to + GATES + C + in_box<Y_LINE>(of_cell, u % 8 * 2)) = y;
        if (!keep) return;
        *reinterpret_cast<float4*>(to + in_box<GATES_LINE>(of_cell, u % 8 * 16)) = gates;
        *reinterpret_cast<float*>(to + GATES + in_box<C_LINE>(of_cell, u % 8 * 4)) = c;
    }
    // is_asking(): all have put what step s leaves, and a barrier lies between.
    __device__ __forceinline__ void store(unsigned s, int t) const {
        const char* from = of_step(s) + AX;
        if (keep) {
            tensor_store(of_gates, {0, first_row, eights, t}, from);
            tensor_store(of_c, {0, first_row, eights, t}, from + GATES);
        }
        tensor_store(of_y, {0, first_row, eights, t}, from + GATES + C);
        bulk_commit();
    }
    // All that was asked for is read.
    __device__ __forceinline__ void wait_stored() const {
        if (is_asking()) bulk_wait_read<0>();
    }
    // ANCHOR_END: boxes
};

}  // namespace lab
#endif

// The sums of a warpgroup to C by way of shared memory and TMA.
#pragma once
#include "lab/halves.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "lab/ptx/stmatrix.cuh"
#include "lab/ptx/tensor_copy.cuh"

namespace lab {

// 64 rows of C, a panel of columns at a time: a box, swizzled, so that the lanes of a store to shared memory meet
// different banks. Panels go to BUFFERS places in turn: while TMA reads one the next is written.
template <class T, int BN, int BUFFERS = 2> struct StagedStore {
    static constexpr int PANEL = 128 / sizeof(T), CELLS = BUFFERS * 64 * PANEL, BYTES = CELLS * sizeof(T);
    static_assert(sizeof(T) == 2, "sums are rounded to halves");
    static_assert(BN % (BUFFERS * PANEL) == 0, "whole panels, and each tile begins with the first place");
    T* panels;

    // ANCHOR: store
    // To rows i and columns j of matrix g. Fewer columns than BN, if no other tile follows; where they are no whole panels,
    // the first one is that of the last columns, and the last one stores some of these again.
    template <int SUMS>
    __device__ __forceinline__ void store(const TensorMap& C, const float (&sum)[SUMS], int i, int j, int g) const {
        constexpr int COLUMNS = SUMS * 2, PANELS = (COLUMNS + PANEL - 1) / PANEL;
        constexpr bool RAGGED = COLUMNS % PANEL != 0;
        static_assert(COLUMNS <= BN && (!RAGGED || PANELS > BUFFERS), "the first panel is complete before the last");
        bool asks = threadIdx.x % 128 == 0;
#pragma unroll
        for (int p = 0; p < PANELS; ++p) {
            int first = !RAGGED ? p * PANEL : p == 0 ? COLUMNS - PANEL : (p - 1) * PANEL;
            T* panel = panels + p % BUFFERS * 64 * PANEL;
            if (asks) bulk_wait_read<BUFFERS - 1>();  // what was stored from this place has been read
            if (RAGGED && p == PANELS - 1 && asks) bulk_wait<BUFFERS - 1>();  // and the first panel is in C
            meet();
#pragma unroll
            for (int c = 0; c < PANEL; c += 16) put(panel, &sum[(first + c) / 2], c);
            fence_proxy_async_shared();  // TMA reads what was written by plain stores
            meet();
            if (asks) {
                tensor_store(C, {j + first, i, g}, panel);
                bulk_commit();
            }
        }
    }

    // ANCHOR_END: store

    // Panel p of a tile, to rows i and columns j of matrix g, where the sums are rounded already: words(w) is their word w. The
    // barriers and the fence are those of store().
    template <class Words>
    __device__ __forceinline__ void store_panel(const TensorMap& C, int p, int i, int j, int g, Words words) const {
        bool asks = threadIdx.x % 128 == 0;
        T* panel = panels + p % BUFFERS * 64 * PANEL;
        if (asks) bulk_wait_read<BUFFERS - 1>();
        meet();
#pragma unroll
        for (int c = 0; c < PANEL; c += 16) {
            unsigned some[] = {words(c / 4), words(c / 4 + 1), words(c / 4 + 2), words(c / 4 + 3)};
            put(panel, some, c);
        }
        fence_proxy_async_shared();
        meet();
        if (asks) {
            tensor_store(C, {j, i, g}, panel);
            bulk_commit();
        }
    }

    // Before the block ends: its memory is read until then.
    __device__ __forceinline__ void finish() const {
        if (threadIdx.x % 128 == 0) bulk_wait_read<0>();
    }

  private:
    // The four warps of this warpgroup.
    __device__ __forceinline__ static void meet() { named_barrier_sync(1 + threadIdx.x / 128, 128); }

    // 16 rows of this warp's, 16 columns from c on.
    __device__ __forceinline__ static void put(T* panel, const float* sum, int c) {
        unsigned words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) words[w] = two_halves<T>(sum[2 * w], sum[2 * w + 1]);
        put(panel, words, c);
    }
    __device__ __forceinline__ static void put(T* panel, const unsigned (&words)[4], int c) {
        int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, row = warp * 16 + lane % 16;
        store_matrices(panel + row * PANEL + ((c / 8 + lane / 16) ^ row % 8) * 8, words);
    }
};

}  // namespace lab

// A tile of C in shared memory, where a kernel's warpgroups multiply and one warp more fetches and stores.
//
// The warp has TMA bring what is to be added to the tile, to the place where the result will stand, and the numbers that belong to
// its columns, while the products are under way. Each thread reads what is to be added where it then writes its results. The
// warp hands these to TMA, and fetches for the next tile once they have been read. No thread that multiplies waits for memory.
//
// 64 rows a warpgroup, in panels of 128 bytes of columns, swizzled as TMA does it: the lanes of an access, which have the
// columns that wgmma gives them, meet different banks if elements are halves.
#pragma once
#include "lab/halves.cuh"
#include "lab/ptx/mbarrier.cuh"
#include "lab/ptx/tensor_copy.cuh"
#include "lab/scalar.cuh"

#ifdef LAB_CLUSTERS
namespace lab {

template <class T, int BM, int BN> struct TileOfC {
    static constexpr int PANEL = 128 / sizeof(T), GROUPS = BM / 64, GROUP = 64 * BN, BYTES = BM * BN * sizeof(T);
    static_assert(BN % PANEL == 0, "whole panels");

    struct Barriers {
        Mbarrier ready[GROUPS];    // what is to be added has come, and the place is free
        Mbarrier written[GROUPS];  // the results stand there
        __align__(8) float of_columns[BN];

        // One thread, before a barrier.
        __device__ __forceinline__ void init() {
            for (int group = 0; group < GROUPS; ++group) {
                mbarrier_init(&ready[group], 32);
                mbarrier_init(&written[group], 4);
            }
            mbarrier_fence_init();
        }
    };
    T* place;
    Barriers& barriers;
    unsigned parity = 0;  // of this tile's phases

    // ANCHOR: fetch
    // By a warp. Numbers j and on of `bias`, which has `columns`; and the box of R at rows i and columns j of matrix g, unless
    // there is none.
    template <class B>
    __device__ __forceinline__ void fetch(const TensorMap& R, bool adds, int i, int j, int g, const B* bias, int columns) {
        bool asks = threadIdx.x % 32 == 0 && adds;
        for (int c = threadIdx.x % 32; c < BN; c += 32)
            barriers.of_columns[c] = j + c < columns ? to_math(bias[j + c]) : 0.0f;
        finish();  // the tile before has left
        for (int group = 0; group < GROUPS; ++group) {
            if (!asks) {
                mbarrier_arrive(&barriers.ready[group]);  // each lane, for the numbers that it has written
                continue;
            }
            mbarrier_arrive_expect(&barriers.ready[group], GROUP * sizeof(T));
            for (int p = 0; p < BN; p += PANEL)
                tensor_load(place + group * GROUP + p * 64, R, {j + p, i + group * 64, g}, &barriers.ready[group]);
        }
    }
    // By the same warp, after fetch(): to C, or f32 added to it.
    __device__ __forceinline__ void store(const TensorMap& C, int i, int j, int g, bool adds) {
        for (int group = 0; group < GROUPS; ++group) {
            mbarrier_wait(&barriers.written[group], parity);
            if (threadIdx.x % 32) continue;
            for (int p = 0; p < BN; p += PANEL) {
                const T* panel = place + group * GROUP + p * 64;
                if (sizeof(T) == 4 && adds) tensor_add(C, {j + p, i + group * 64, g}, panel);
                else tensor_store(C, {j + p, i + group * 64, g}, panel);
            }
        }
        if (threadIdx.x % 32 == 0) bulk_commit();
        parity ^= 1;
    }
    // Before the block ends: its memory is read until then.
    __device__ __forceinline__ void finish() const {
        if (threadIdx.x % 32 == 0) bulk_wait_read<0>();
    }
    // ANCHOR_END: fetch

    // ANCHOR: exchange
    // By a warpgroup that multiplies: each two neighbours of its sums become f(sums, numbers of their columns, what is to be
    // added to them).
    template <class F> __device__ __forceinline__ void exchange(const float (&sum)[BN / 2], bool adds, F f) {
        int group = threadIdx.x / 128, lane = threadIdx.x % 32;
        mbarrier_wait(&barriers.ready[group], parity);
#pragma unroll
        for (int n = 0; n < BN / 2; n += 2) {
            int row = threadIdx.x % 128 / 32 * 16 + lane / 4 + n / 2 % 2 * 8, column = n / 4 * 8 + lane % 4 * 2;
            float2 columns = *reinterpret_cast<const float2*>(&barriers.of_columns[column]);
            exchange_two(cell(group, row, column), adds, [&](float2 added) {
                return f(make_float2(sum[n], sum[n + 1]), columns, added);
            });
        }
        fence_proxy_async_shared();  // TMA reads what was written by plain stores
        __syncwarp();                // all lanes have fenced theirs
        if (lane == 0) mbarrier_arrive(&barriers.written[group]);
        parity ^= 1;
    }
    // ANCHOR_END: exchange

  private:
    __device__ __forceinline__ T* cell(int group, int row, int column) const {
        constexpr int CHUNK = 16 / sizeof(T);
        int in_panel = column % PANEL;
        return place + group * GROUP + column / PANEL * 64 * PANEL + row * PANEL +
               (in_panel / CHUNK ^ row % 8) * CHUNK + in_panel % CHUNK;
    }
    template <class F> __device__ __forceinline__ static void exchange_two(T* at, bool adds, F f) {
        if constexpr (sizeof(T) == 2) {
            unsigned& word = *reinterpret_cast<unsigned*>(at);
            float2 two = f(adds ? floats_of<T>(word) : make_float2(0, 0));
            word = two_halves<T>(two.x, two.y);
        } else {
            float2& both = *reinterpret_cast<float2*>(at);
            both = f(adds ? both : make_float2(0, 0));
        }
    }
};

}  // namespace lab
#endif

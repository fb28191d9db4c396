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

// Two neighbours, as one access has them.
template <class T> struct PairOf { using type = unsigned; };
template <> struct PairOf<float> { using type = float2; };

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
                mbarrier_init(&written[group], 128);
            }
            mbarrier_fence_init();
        }
    };
    using Pair = typename PairOf<T>::type;
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
        exchange(sum, adds, f, threadIdx.x / 128);
        parity ^= 1;
    }
    // The same of 64 rows, those of `group`, of several that a warpgroup has: the phase goes on behind the last.
    template <class F>
    __device__ __forceinline__ void exchange(const float (&sum)[BN / 2], bool adds, F f, int group) {
        int lane = threadIdx.x % 32;
        mbarrier_wait(&barriers.ready[group], parity);
        // A panel at a time: its loads first, for none may pass a store before it, and each would wait alone.
        constexpr int PAIRS = PANEL / 4;
#pragma unroll
        for (int p = 0; p < BN / PANEL; ++p) {
            Pair pairs[PAIRS];
#pragma unroll
            for (int n = 0; n < PAIRS; ++n) pairs[n] = adds ? *cell(group, p, n) : Pair{};
#pragma unroll
            for (int n = 0; n < PAIRS; ++n) {
                int column = p * PANEL + n / 2 * 8 + lane % 4 * 2;
                float2 of_columns = *reinterpret_cast<const float2*>(&barriers.of_columns[column]);
                const float* two = &sum[p * PANEL / 2 + 2 * n];
                pairs[n] = pair_of(f(make_float2(two[0], two[1]), of_columns, floats(pairs[n])));
            }
#pragma unroll
            for (int n = 0; n < PAIRS; ++n) *cell(group, p, n) = pairs[n];
        }
        fence_proxy_async_shared();  // TMA reads what was written by plain stores
        mbarrier_arrive(&barriers.written[group]);  // each lane, for what it has written, and read of the columns' numbers
    }
    // ANCHOR_END: exchange

  private:
    // Where the n-th two of this thread's elements of a panel lie: in 8 columns each two rows, as wgmma has them.
    __device__ __forceinline__ Pair* cell(int group, int panel, int n) const {
        constexpr int CHUNK = 16 / sizeof(T);
        int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4 + n % 2 * 8, column = n / 2 * 8 + lane % 4 * 2;
        T* of_panel = place + group * GROUP + panel * 64 * PANEL;
        return reinterpret_cast<Pair*>(of_panel + row * PANEL + (column / CHUNK ^ row % 8) * CHUNK + column % CHUNK);
    }
    __device__ __forceinline__ static float2 floats(unsigned pair) { return floats_of<T>(pair); }
    __device__ __forceinline__ static float2 floats(float2 pair) { return pair; }
    __device__ __forceinline__ static Pair pair_of(float2 two) {
        if constexpr (sizeof(T) == 2) return two_halves<T>(two.x, two.y);
        else return two;
    }
};

}  // namespace lab
#endif

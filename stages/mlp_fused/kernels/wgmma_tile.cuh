// A tile of a product of bf16 by wgmma, C = A B, its sums in f32 in registers: a block has BM x BN of them, each of its
// BM / 64 warpgroups 64 rows. One more warp asks TMA for tiles of both operands, BK deep, PLACES of them in flight.
//
// An operand lies along k or across it. Along k a tile is one box, a row of it a span of BK elements of k. Across, a box is a panel:
// BK rows of 64 neighbours, and wgmma takes it transposed. What of a box lies outside of its matrix is zero.
#pragma once
#include "lab/halves.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/tensor_copy.cuh"
#include "lab/ptx/wgmma.cuh"
#include "lab/ring.cuh"
#include "rounded_tile.cuh"

namespace lab {

template <int BM, int BN, int PLACES, Along A_LIES, Along B_LIES> struct WgmmaTile {
    static constexpr int BK = 64, SPAN = 128, STEP = 16, CONSUMERS = BM * 2, THREADS = CONSUMERS + 32;
    static constexpr int STAGE = (BM + BN) * BK, BYTES = PLACES * STAGE * sizeof(Half);
    static_assert(BM % 64 == 0 && BN % 64 == 0, "whole warpgroups, whole panels");
    float sum[BN / 2];

    // The rows of the tile that this thread has sums of: this one, and 8 further on.
    static __device__ __forceinline__ int row() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }

    // SIDE rows of A, or columns of B, from m on, and BK of k; one thread.
    template <int SIDE, Along LIES>
    static __device__ __forceinline__ void load(Half* to, const TensorMap& from, int m, int k, Mbarrier* full) {
        if constexpr (LIES == ALONG_K) {
            tensor_load(to, from, {k, m}, full);
        } else {
#pragma unroll
            for (int p = 0; p < SIDE; p += 64) tensor_load(to + p * BK, from, {m + p, k}, full);
        }
    }
    // The operand from `row` on: of 64 rows of A, of all columns of B.
    template <Along LIES> static __device__ __forceinline__ unsigned long long at(const Half* tile, int row) {
        if constexpr (LIES == ALONG_K) return k_major<SPAN>(tile + row * BK, 8 * SPAN);
        else return mn_major<SPAN>(tile + row * BK, BK * SPAN, 8 * SPAN);
    }
    template <Along LIES> static constexpr int STEP_BYTES = LIES == ALONG_K ? STEP * sizeof(Half) : STEP * SPAN;

    // ANCHOR: run
    // The products of k from `first` to before `end`; true in the threads that then have sums. also(rows, k, adds) may
    // add to each group of wgmma: `rows` are A's of this warpgroup, at step k of the tile.
    template <class Also>
    __device__ __forceinline__ bool run(Half* stages, Ring<PLACES>& ring, const TensorMap& A, int m0,
                                        const TensorMap& B, int n0, int first, int end, Also also) {
        if (threadIdx.x == 0) ring.init(BM / 64);
        __syncthreads();  // nobody waits at a barrier that is not there
        Turn<PLACES> turn;
        if (threadIdx.x >= CONSUMERS) {
            if (threadIdx.x == CONSUMERS)
                for (int k = first; k < end; k += BK, turn.advance()) {
                    ring.wait_empty(turn);
                    Half* stage = stages + turn.place * STAGE;
                    Mbarrier* full = &ring.full[turn.place];
                    mbarrier_arrive_expect(full, STAGE * sizeof(Half));
                    load<BM, A_LIES>(stage, A, m0, k, full);
                    load<BN, B_LIES>(stage + BM * BK, B, n0, k, full);
                }
            return false;
        }
        Turn<PLACES> last;
        for (int k0 = first; k0 < end; k0 += BK, turn.advance()) {
            ring.wait_full(turn);
            const Half* stage = stages + turn.place * STAGE;
            auto rows = at<A_LIES>(stage, threadIdx.x / 128 * 64), columns = at<B_LIES>(stage + BM * BK, 0);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < BK / STEP; ++k) {
                bool adds = k0 > first || k > 0;
                wgmma<Half, BN, A_LIES == ACROSS_K, B_LIES == ACROSS_K>(
                    sum, advance(rows, k * STEP_BYTES<A_LIES>), advance(columns, k * STEP_BYTES<B_LIES>), adds);
                also(advance(rows, k * STEP_BYTES<A_LIES>), adds);
            }
            wgmma_commit();
            wgmma_wait<1>();
            if (k0 > first && threadIdx.x % 128 == 0) ring.leave(last);
            last = turn;
        }
        wgmma_wait<0>();
        return true;
    }
    // ANCHOR_END: run

    // Columns of the j-th four that this thread has of a row, of BN / 16.
    static __device__ __forceinline__ int column(int j) { return j * 16 + four_at(); }
    // The j-th four of row() + 8 h; all lanes of a warp come here.
    __device__ __forceinline__ void four(float (&to)[4], int h, int j) const {
        join_fours(to, &sum[8 * j + 2 * h], &sum[8 * j + 4 + 2 * h]);
    }
};

}  // namespace lab

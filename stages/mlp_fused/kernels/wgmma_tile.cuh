// A tile of a product of bf16 by wgmma, C = A B, its sums in f32 in registers: a block has BM x BN of them, each of its
// BM / 64 warpgroups 64 rows. One more warp asks TMA for tiles of both operands, BK deep, PLACES of them in flight.
#pragma once
#include "lab/halves.cuh"
#include "lab/operand_tiles.cuh"
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ring.cuh"
#include "rounded_tile.cuh"

namespace lab {

template <int BM, int BN, int PLACES, Along A_LIES, Along B_LIES> struct WgmmaTile {
    static constexpr int BK = 64, CONSUMERS = BM * 2, THREADS = CONSUMERS + 32;
    using Tiles = OperandTiles<Half, A_LIES, B_LIES, BM, BN, BK>;
    static constexpr int STAGE = Tiles::CELLS, BYTES = PLACES * Tiles::BYTES;
    float sum[BN / 2];

    // The rows of the tile that this thread has sums of: this one, and 8 further on.
    static __device__ __forceinline__ int row() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }

    // ANCHOR: run
    // The products of k from `first` to before `end`; true in the threads that then have sums. also: as that of
    // lab/operand_tiles.cuh.
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
                    Tiles(stages + turn.place * STAGE).load(A, B, m0, n0, k, &ring.full[turn.place]);
                }
            return false;
        }
        Turn<PLACES> last;
        for (int k0 = first; k0 < end; k0 += BK, turn.advance()) {
            ring.wait_full(turn);
            Tiles(stages + turn.place * STAGE).multiply(sum, threadIdx.x / 128 * 64, k0 > first, also);
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

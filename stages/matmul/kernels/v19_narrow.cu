// C = A B by wgmma, narrower tiles in the last round. A [G, M, K], B [G, K, N], C [G, M, N], row-major, halves.
//
//   C_ij = Σ_k A_ik B_kj      products of T's, sums in f32
//
// As v13, but that the last round of tiles, if it has fewer than there are blocks, is cut into others of LAST columns, so
// that hardly a block has none (narrow_round.cuh).
#include "lab/ptx/warp_roles.cuh"
#include "lab/ring.cuh"
#include "lab/staged_store.cuh"
#include "narrow_round.cuh"
#include "warpgroup.cuh"

using namespace lab;

template <class T, int BM, int BN, int LAST, int BK, int PLACES, int HIGH>
constexpr int matmul_narrow_shared = PLACES * Tiles<T, BM, BN, BK>::BYTES + BM / 64 * StagedStore<T, BN>::BYTES;

// sum = the product of 64 rows of them, from `row` on. A warpgroup.
template <class Tiles, int CELLS, class T, int PLACES, int SUMS>
__device__ __forceinline__ void multiply(float (&sum)[SUMS], T* tiles, Ring<PLACES>& ring, Turn<PLACES>& turn, int row,
                                         int K) {
    Turn<PLACES> last;
    for (int k = 0; k < K; k += Tiles::PANEL, turn.advance()) {
        ring.wait_full(turn);
        Tiles(tiles + turn.place * CELLS).multiply(sum, row, k > 0);
        wgmma_wait<1>();
        if (k > 0 && threadIdx.x % 128 == 0) ring.leave(last);
        last = turn;
    }
    wgmma_wait<0>();
    if (threadIdx.x % 128 == 0) ring.leave(last);
}

template <class T, int BM, int BN, int LAST, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    matmul_narrow(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B,
                  const __grid_constant__ TensorMap C, int G, int M, int N, int K) {
    using Tiles = Tiles<T, BM, BN, BK>;
    // Whole panels: the last one may bring columns of the next tile, too.
    using Narrow = lab::Tiles<T, BM, (LAST + Tiles::PANEL - 1) / Tiles::PANEL * Tiles::PANEL, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there

    TileOrder<HIGH> order{(M + BM - 1) / BM, (N + BN - 1) / BN};
    NarrowRound<TileOrder<HIGH>, BN, LAST> round{order, order.down * order.across * G, N};
    auto narrow = round.at(blockIdx.x);
    Turn<PLACES> turn;
    if (threadIdx.x >= BM * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x == BM * 2) {
            for (int n = blockIdx.x; n < round.whole; n += gridDim.x) {
                auto [i, j, g] = order.at(n);
                ask<Tiles, Tiles::CELLS>(A, B, tiles, ring, turn, i * BM, j * BN, g, K);
            }
            if (round.has(narrow))
                ask<Narrow, Tiles::CELLS>(A, B, tiles, ring, turn, narrow.i * BM, narrow.column, narrow.g, K);
        }
    } else {
        registers_increase<CONSUMER_REGISTERS>();
        int group = threadIdx.x / 128, row = group * 64;
        StagedStore<T, BN> staged{tiles + PLACES * Tiles::CELLS + group * StagedStore<T, BN>::CELLS};
        for (int n = blockIdx.x; n < round.whole; n += gridDim.x) {
            float sum[BN / 2];
            multiply<Tiles, Tiles::CELLS>(sum, tiles, ring, turn, row, K);
            auto [i, j, g] = order.at(n);
            staged.store(C, sum, i * BM + row, j * BN, g);
        }
        if (round.has(narrow)) {
            float sum[LAST / 2];
            multiply<Narrow, Tiles::CELLS>(sum, tiles, ring, turn, row, K);
            staged.store(C, sum, narrow.i * BM + row, narrow.column, narrow.g);
        }
        staged.finish();
    }
}

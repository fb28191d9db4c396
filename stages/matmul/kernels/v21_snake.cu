// C = A B by wgmma, back and forth through the operands. A [G, M, K], B [G, K, N], C [G, M, N], row-major, halves.
//
//   C_ij = Σ_k A_ik B_kj      products of T's, sums in f32, up or down k
//
// As v20, but that a block goes through every other tile of its own from the end of k to its beginning. Blocks go from tile
// to tile together, and tiles that follow share rows of A, or columns of B where a stripe ends: what the L2 cache has last seen
// of these is asked for first. Which sums go down k depends on where the tile lies and on the number of blocks.
#include "behind.cuh"
#include "lab/ptx/warp_roles.cuh"
#include "narrow_round.cuh"

using namespace lab;

template <class T, int BM, int BN, int LAST, int BK, int PLACES, int HIGH>
constexpr int matmul_snake_shared = PLACES * Tiles<T, BM, BN, BK>::BYTES + BM / 64 * StagedStore<T, BN>::BYTES;

// LAST: as v19, and with BN columns the last round has tiles like the others.
template <class T, int BM, int BN, int LAST, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    matmul_snake(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B,
                  const __grid_constant__ TensorMap C, int G, int M, int N, int K) {
    using Order = TileOrder<HIGH, true>;
    using Tiles = Tiles<T, BM, BN, BK>;
    using Narrow = lab::Tiles<T, BM, (LAST + Tiles::PANEL - 1) / Tiles::PANEL * Tiles::PANEL, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there

    Order order{(M + BM - 1) / BM, (N + BN - 1) / BN};
    int all = order.down * order.across * G;
    NarrowRound<Order, BN, LAST> round{order, all, N};
    auto narrow = round.at(blockIdx.x);
    bool has_narrow = LAST < BN && round.has(narrow);
    int whole = LAST < BN ? round.whole : all;
    Turn<PLACES> turn;
    if (threadIdx.x >= BM * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x == BM * 2) {
            for (int n = blockIdx.x; n < whole; n += gridDim.x) {
                auto [i, j, g] = order.at(n);
                bool back = n / int(gridDim.x) % 2 == 1;
                ask<Tiles, Tiles::CELLS>(A, B, tiles, ring, turn, i * BM, j * BN, g, K, back);
            }
            bool back = whole / int(gridDim.x) % 2 == 1;
            if (has_narrow)
                ask<Narrow, Tiles::CELLS>(A, B, tiles, ring, turn, narrow.i * BM, narrow.column, narrow.g, K, back);
        }
    } else {
        registers_increase<CONSUMER_REGISTERS>();
        int group = threadIdx.x / 128, row = group * 64;
        StagedStore<T, BN> staged{tiles + PLACES * Tiles::CELLS + group * StagedStore<T, BN>::CELLS};
        KeptSums<T, BM, BN, Order> kept{C, staged, order, row};
        for (int n = blockIdx.x; n < whole; n += gridDim.x) {
            float sum[BN / 2];
            multiply<Tiles, Tiles::CELLS>(sum, kept, tiles, ring, turn, row, K);
            kept.keep(sum, n);
        }
        if (has_narrow) {
            float sum[LAST / 2];
            multiply<Narrow, Tiles::CELLS>(sum, kept, tiles, ring, turn, row, K);
            staged.store(C, sum, narrow.i * BM + row, narrow.column, narrow.g);
        } else {
#pragma unroll
            for (int p = 0; p < kept.PANELS; ++p) kept.store(p);
        }
        staged.finish();
    }
}

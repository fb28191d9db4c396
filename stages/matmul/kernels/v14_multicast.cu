// C = A B by wgmma, by pairs of blocks. A [G, M, K], B [G, K, N], C [G, M, N], row-major, halves.
//
//   C_ij = Σ_k A_ik B_kj      products of T's, sums in f32
//
// As v13, but that two blocks, a cluster, have tiles of C one below the other, and so the same columns of B: each asks
// for half of them, for both. A place is empty when the consumers of both have left it.
#include "lab/ptx/warp_roles.cuh"
#include "lab/ring.cuh"
#include "lab/staged_store.cuh"
#include "lab/tile_order.cuh"
#include "warpgroup.cuh"

using namespace lab;
namespace cg = cooperative_groups;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int matmul_multicast_shared = PLACES * Tiles<T, BM, BN, BK>::BYTES + BM / 64 * StagedStore<T, BN>::BYTES;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    matmul_multicast(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B,
                  const __grid_constant__ TensorMap C, int G, int M, int N, int K) {
    using Tiles = Tiles<T, BM, BN, BK>;
    constexpr int PAIR = 2;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    auto cluster = cg::this_cluster();
    int rank = cluster.block_rank();
    if (threadIdx.x == 0) ring.init(BM / 64 * PAIR);
    cluster.sync();  // nobody arrives at a barrier that is not there

    TileOrder<HIGH> order{(M + BM * PAIR - 1) / (BM * PAIR), (N + BN - 1) / BN};
    int all = order.down * order.across * G;
    Turn<PLACES> turn;
    if (threadIdx.x >= BM * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x == BM * 2)
            for (int n = blockIdx.x / PAIR; n < all; n += gridDim.x / PAIR) {
                auto [i, j, g] = order.at(n);
                for (int k = 0; k < K; k += BK, turn.advance()) {
                    ring.wait_empty_cluster(turn);
                    Tiles(tiles + turn.place * Tiles::CELLS)
                        .template load_for<PAIR>(A, B, (i * PAIR + rank) * BM, j * BN, k, g, rank, &ring.full[turn.place]);
                }
            }
    } else {
        registers_increase<CONSUMER_REGISTERS>();
        float sum[BN / 2];
        int group = threadIdx.x / 128, lane = threadIdx.x % 128;
        StagedStore<T, BN> staged{tiles + PLACES * Tiles::CELLS + group * StagedStore<T, BN>::CELLS};
        for (int n = blockIdx.x / PAIR; n < all; n += gridDim.x / PAIR) {
            Turn<PLACES> last;
            for (int k = 0; k < K; k += BK, turn.advance()) {
                ring.wait_full_cluster(turn);
                Tiles(tiles + turn.place * Tiles::CELLS).multiply(sum, group * 64, k > 0);
                wgmma_wait<1>();
                if (k > 0 && lane < PAIR) ring.leave_in_block(last, lane);
                last = turn;
            }
            wgmma_wait<0>();
            if (lane < PAIR) ring.leave_in_block(last, lane);
            auto [i, j, g] = order.at(n);
            staged.store(C, sum, (i * PAIR + rank) * BM + group * 64, j * BN, g);
        }
        staged.finish();
    }
    cluster.sync();  // nobody ends while the other may still send to him
}

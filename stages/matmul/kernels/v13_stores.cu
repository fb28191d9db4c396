// C = A B by wgmma, with asynchronous stores. A [G, M, K], B [G, K, N], C [G, M, N], row-major, halves.
//
//   C_ij = Σ_k A_ik B_kj      products of T's, sums in f32
//
// As v12, but that consumers leave their sums in shared memory, rounded, and TMA takes them to C while they go on with
// the next tile.
#include "lab/ptx/warp_roles.cuh"
#include "lab/ring.cuh"
#include "lab/staged_store.cuh"
#include "lab/tile_order.cuh"
#include "warpgroup.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int matmul_stores_shared = PLACES * Tiles<T, BM, BN, BK>::BYTES + BM / 64 * StagedStore<T, BN>::BYTES;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    matmul_stores(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B,
                  const __grid_constant__ TensorMap C, int G, int M, int N, int K) {
    using Tiles = Tiles<T, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there

    TileOrder<HIGH> order{(M + BM - 1) / BM, (N + BN - 1) / BN};
    int all = order.down * order.across * G;
    Turn<PLACES> turn;
    if (threadIdx.x >= BM * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x == BM * 2)
            for (int n = blockIdx.x; n < all; n += gridDim.x) {
                auto [i, j, g] = order.at(n);
                for (int k = 0; k < K; k += BK, turn.advance()) {
                    ring.wait_empty(turn);
                    Tiles(tiles + turn.place * Tiles::CELLS).load(A, B, i * BM, j * BN, k, &ring.full[turn.place], g);
                }
            }
    } else {
        registers_increase<CONSUMER_REGISTERS>();
        float sum[BN / 2];
        int group = threadIdx.x / 128, row = group * 64;
        StagedStore<T, BN> staged{tiles + PLACES * Tiles::CELLS + group * StagedStore<T, BN>::CELLS};
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            Turn<PLACES> last;
            for (int k = 0; k < K; k += BK, turn.advance()) {
                ring.wait_full(turn);
                Tiles(tiles + turn.place * Tiles::CELLS).multiply(sum, row, k > 0);
                wgmma_wait<1>();
                if (k > 0 && threadIdx.x % 128 == 0) ring.leave(last);
                last = turn;
            }
            wgmma_wait<0>();
            if (threadIdx.x % 128 == 0) ring.leave(last);
            auto [i, j, g] = order.at(n);
            staged.store(C, sum, i * BM + row, j * BN, g);
        }
        staged.finish();
    }
}

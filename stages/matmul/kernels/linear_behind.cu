// The product of linear.cu where nothing stands behind it: C_ij = Σ_k A_ik B_kj, of T's, sums in f32. A lies along k; B along
// it, y = x Wᵀ, or across, dx = dy W. The same bits as linear.cu's.
//
// Work split: as v20_behind.cu. A warpgroup goes on with its next tile at once; it keeps the sums, rounded, in registers, and
// stores a panel of them after every second step of k, while the tensor cores have work. Layers of a model have few steps of
// k, 12 for 768 columns: what is made of the sums before the next tile can begin takes a tenth of the time there.
#include "behind.cuh"
#include "lab/ptx/warp_roles.cuh"
#include "lab/tile_order.cuh"

using namespace lab;

template <class T, Along B_LIES, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int linear_behind_shared =
    PLACES * OperandTiles<T, ALONG_K, B_LIES, BM, BN, BK>::BYTES + BM / 64 * StagedStore<T, BN>::BYTES;

template <class T, Along B_LIES, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    linear_behind(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B,
                  const __grid_constant__ TensorMap C, int G, int M, int N, int K) {
    using Order = TileOrder<HIGH>;
    using Tiles = OperandTiles<T, ALONG_K, B_LIES, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there

    Order order{(M + BM - 1) / BM, (N + BN - 1) / BN};
    int all = order.down * order.across * G;
    Turn<PLACES> turn;
    if (threadIdx.x >= BM * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x > BM * 2) return;
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            auto [i, j, g] = order.at(n);
            ask<Tiles, Tiles::CELLS>(A, B, tiles, ring, turn, i * BM, j * BN, g, K);
        }
    } else {
        registers_increase<CONSUMER_REGISTERS>();
        int group = threadIdx.x / 128, row = group * 64;
        StagedStore<T, BN> staged{tiles + PLACES * Tiles::CELLS + group * StagedStore<T, BN>::CELLS};
        KeptSums<T, BM, BN, Order> kept{C, staged, order, row};
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            float sum[BN / 2];
            multiply<Tiles, Tiles::CELLS>(sum, kept, tiles, ring, turn, row, K);
            kept.keep(sum, n);
        }
#pragma unroll
        for (int p = 0; p < kept.PANELS; ++p) kept.store(p);
        staged.finish();
    }
}

// C = A B by wgmma, of f32 as TF32. A [G, M, K], B [G, K, N], C [G, M, N], row-major, f32.
//
//   (Cᵀ)_ji = Σ_k (Bᵀ)_jk (Aᵀ)_ki      B is rounded to TF32, A is cut to it, sums in f32
//
// As v12, but turned: Bᵀ comes to wgmma through registers, as its first operand (turned.cuh says why and how).
#include "lab/ptx/warp_roles.cuh"
#include "lab/tile_order.cuh"
#include "turned.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int matmul_turned_shared = PLACES * TurnedTiles<T, BM, BN, BK>::BYTES;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(BN * 2 + 128, 1)
    matmul_turned(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, T* C, int G, int M, int N,
                  int K) {
    using Tiles = TurnedTiles<T, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    if (threadIdx.x == 0) ring.init(BN / 16);
    __syncthreads();  // nobody waits at a barrier that is not there

    TileOrder<HIGH> order{(M + BM - 1) / BM, (N + BN - 1) / BN};
    int all = order.down * order.across * G;
    int end = (K + 2 * BK - 1) / (2 * BK) * (2 * BK);  // the last of a pair of steps may lie outside: zeros
    if (threadIdx.x >= BN * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        Turn<PLACES> turn;
        if (threadIdx.x == BN * 2)
            for (int n = blockIdx.x; n < all; n += gridDim.x) {
                auto [i, j, g] = order.at(n);
                for (int k = 0; k < end; k += BK, turn.advance()) {
                    ring.wait_empty(turn);
                    Tiles(tiles + turn.place * Tiles::CELLS).load(A, B, i * BM, j * BN, k, g, &ring.full[turn.place]);
                }
            }
    } else {
        registers_increase<CONSUMER_REGISTERS>();
        float sum[BM / 2];
        unsigned even[4][4], odd[4][4];
        TurnedConsumer<Tiles, T, PLACES> consumer{tiles, ring};
        for (int n = blockIdx.x; n < all; n += gridDim.x) {
            for (int k = 0; k < end; k += 2 * BK) {
                consumer.step(sum, even, k > 0);
                consumer.step(sum, odd, true);
            }
            wgmma_wait<0>();
            consumer.leave();
            auto [i, j, g] = order.at(n);
            store_turned<BM>({C + g * 1ll * M * N, M, N}, sum, i * BM, j * BN + Tiles::panel() + Tiles::chunk() * 4);
        }
    }
}

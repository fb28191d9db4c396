// C = A B by wgmma, by blocks that stay. A [G, M, K], B [G, K, N], C [G, M, N], row-major, halves.
//
//   C_ij = Σ_k A_ik B_kj      products of T's, sums in f32
//
// As v11, but that there are as many blocks as multiprocessors, and each goes from tile to tile of C: the producer
// asks for the next one's while the consumers still multiply and store the last one's.
#include "lab/ptx/warp_roles.cuh"
#include "lab/ring.cuh"
#include "lab/tile_order.cuh"
#include "warpgroup.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
constexpr int matmul_persistent_shared = PLACES * Tiles<T, BM, BN, BK>::BYTES;

template <class T, int BM, int BN, int BK, int PLACES, int HIGH>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    matmul_persistent(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, T* C, int G, int M,
                      int N, int K) {
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
        int row = threadIdx.x / 128 * 64;
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
            store_sums<T, BN>({C + g * 1ll * M * N, M, N}, sum, i * BM + row, j * BN);
        }
    }
}

// C = A B by wgmma, in tiles as wide as registers allow. A [M, K], B [K, N], C [M, N], row-major, halves, a batch of
// such along blockIdx.z.
//
//   C_ij = Σ_k A_ik B_kj      products of T's, sums in f32
//
// As v10, but that the tile is twice as wide: each element of A that is brought serves 256 columns. A consumer then
// has 128 sums a thread and more besides than the block's threads can have each. The producer needs few registers,
// and hands over the rest.
#include "lab/ptx/warp_roles.cuh"
#include "lab/ring.cuh"
#include "warpgroup.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK, int PLACES>
constexpr int matmul_wide_shared = PLACES * Tiles<T, BM, BN, BK>::BYTES;

// Two consumer warpgroups and a producer warpgroup, of which one thread works: registers move by whole warpgroups.
template <class T, int BM, int BN, int BK, int PLACES>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    matmul_wide(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, T* C, int M, int N, int K) {
    using Tiles = Tiles<T, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    int i0 = blockIdx.y * BM, j0 = blockIdx.x * BN, g = blockIdx.z;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there

    // ANCHOR: roles
    Turn<PLACES> turn;
    if (threadIdx.x >= BM * 2) {
        registers_decrease<PRODUCER_REGISTERS>();
        if (threadIdx.x == BM * 2)
            for (int k = 0; k < K; k += BK, turn.advance()) {
                ring.wait_empty(turn);
                Tiles(tiles + turn.place * Tiles::CELLS).load(A, B, i0, j0, k, &ring.full[turn.place], g);
            }
    } else {
        registers_increase<CONSUMER_REGISTERS>();
        float sum[BN / 2];
        // ANCHOR_END: roles
        int row = threadIdx.x / 128 * 64;
        Turn<PLACES> last;
        for (int k = 0; k < K; k += BK, turn.advance()) {
            ring.wait_full(turn);
            Tiles(tiles + turn.place * Tiles::CELLS).multiply(sum, row, k > 0);
            wgmma_wait<1>();
            if (k > 0 && threadIdx.x % 128 == 0) ring.leave(last);
            last = turn;
        }
        wgmma_wait<0>();
        store_sums<T, BN>({C + g * 1ll * M * N, M, N}, sum, i0 + row, j0);
    }
}

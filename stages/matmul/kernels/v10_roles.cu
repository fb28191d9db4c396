// C = A B by wgmma, by warps of two kinds. A [M, K], B [K, N], C [M, N], row-major, halves, a batch of such along
// blockIdx.z.
//
//   C_ij = Σ_k A_ik B_kj      products of T's, sums in f32
//
// A producer asks for tiles, as far ahead as there are places. Consumers, a warpgroup for each 64 rows, multiply
// them. Nobody waits for all: a place is asked for anew when each consumer has left it, and a consumer leaves it
// one product late, so that its tensor cores always have the next one before them.
#include "lab/ring.cuh"
#include "warpgroup.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK, int PLACES>
constexpr int matmul_roles_shared = PLACES * Tiles<T, BM, BN, BK>::BYTES;

template <class T, int BM, int BN, int BK, int PLACES>
__global__ void __launch_bounds__(BM * 2 + 32)
    matmul_roles(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, T* C, int M, int N, int K) {
    using Tiles = Tiles<T, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    int i0 = blockIdx.y * BM, j0 = blockIdx.x * BN, g = blockIdx.z;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there

    // ANCHOR: roles
    Turn<PLACES> turn;
    if (threadIdx.x >= BM * 2) {  // the producer: one thread of its warp
        if (threadIdx.x > BM * 2) return;
        for (int k = 0; k < K; k += BK, turn.advance()) {
            ring.wait_empty(turn);
            Tiles(tiles + turn.place * Tiles::CELLS).load(A, B, i0, j0, k, &ring.full[turn.place], g);
        }
        return;
    }
    float sum[BN / 2];
    int row = threadIdx.x / 128 * 64;
    Turn<PLACES> last;
    for (int k = 0; k < K; k += BK, turn.advance()) {
        ring.wait_full(turn);
        Tiles(tiles + turn.place * Tiles::CELLS).multiply(sum, row, k > 0);
        wgmma_wait<1>();
        if (k > 0 && threadIdx.x % 128 == 0) ring.leave(last);  // this product may be under way, the one before is not
        last = turn;
    }
    wgmma_wait<0>();
    // ANCHOR_END: roles
    store_sums<T, BN>({C + g * 1ll * M * N, M, N}, sum, i0 + row, j0);
}

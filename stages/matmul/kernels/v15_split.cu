// C = A B by wgmma, for products with few tiles. A [G, M, K], B [G, K, N], C [G, M, N], row-major, halves.
//
//   C_ij = Σ_s Σ_{k of part s} A_ik B_kj      products of T's, sums in f32
//
// As v10, but that the blocks of a cluster share a tile of C: each adds up a part of k. Then each leaves its sums in its
// shared memory, and adds up all parts of some of the rows, always in the same order.
#include "lab/cluster_sums.cuh"
#include "lab/ptx/named_barrier.cuh"
#include "lab/ring.cuh"
#include "warpgroup.cuh"

using namespace lab;
namespace cg = cooperative_groups;

template <class T, int BM, int BN, int BK, int PLACES>
constexpr int matmul_split_shared = PLACES * Tiles<T, BM, BN, BK>::BYTES > ClusterSums<BM, BN>::BYTES
                                        ? PLACES * Tiles<T, BM, BN, BK>::BYTES
                                        : ClusterSums<BM, BN>::BYTES;

template <class T, int BM, int BN, int BK, int PLACES>
__global__ void __launch_bounds__(BM * 2 + 32)
    matmul_split(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, T* C, int M, int N, int K) {
    using Tiles = Tiles<T, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    auto cluster = cg::this_cluster();
    int rank = cluster.block_rank(), parts = cluster.num_blocks();
    int i0 = blockIdx.y * BM, j0 = blockIdx.x / parts * BN, g = blockIdx.z;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there

    int steps = (K + BK - 1) / BK, first = steps * rank / parts, end = steps * (rank + 1) / parts;
    Matrix<T> c{C + g * 1ll * M * N, M, N};
    ClusterSums<BM, BN> sums{reinterpret_cast<float*>(tiles)};
    Turn<PLACES> turn;
    if (threadIdx.x == BM * 2)
        for (int n = first; n < end; ++n, turn.advance()) {
            ring.wait_empty(turn);
            Tiles(tiles + turn.place * Tiles::CELLS).load(A, B, i0, j0, n * BK, &ring.full[turn.place], g);
        }
    if (threadIdx.x < BM * 2) {
        float sum[BN / 2];
        int row = threadIdx.x / 128 * 64;
        Turn<PLACES> last;
        for (int n = first; n < end; ++n, turn.advance()) {
            ring.wait_full(turn);
            Tiles(tiles + turn.place * Tiles::CELLS).multiply(sum, row, n > first);
            wgmma_wait<1>();
            if (n > first && threadIdx.x % 128 == 0) ring.leave(last);
            last = turn;
        }
        wgmma_wait<0>();
        if (parts == 1) return store_sums<T, BN>(c, sum, i0 + row, j0);
        named_barrier_sync(1, BM * 2);  // all have read the tiles: sums take their place
        sums.store(sum);
    }
    if (parts == 1) return;
    cluster.sync();  // the sums of all blocks are there
    int rows = (BM + parts - 1) / parts, own = min(rows, BM - rank * rows);
    for (int n = threadIdx.x; n < own * BN / 4; n += blockDim.x) {
        float four[4] = {};
        int r = rank * rows + n / (BN / 4), j = n % (BN / 4) * 4;
        sums.load(four, cluster, r, j);
        c.template store<true>(four, i0 + r, j0 + j);
    }
    cluster.sync();  // nobody ends while others may read his sums
}

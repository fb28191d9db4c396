// C = A B by wgmma, for products with few tiles. A [G, M, K], B [G, K, N], C [G, M, N], row-major, halves.
//
//   C_ij = Σ_s Σ_{k of part s} A_ik B_kj      products of T's, sums in f32
//
// As v10, but that the blocks of a cluster share a tile of C: each adds up a part of k. Then each leaves its sums in its
// shared memory, and adds up all parts of some of the rows, always in the same order.
#include "lab/ptx/named_barrier.cuh"
#include "lab/ring.cuh"
#include "warpgroup.cuh"

using namespace lab;
namespace cg = cooperative_groups;

// Sums of a tile in shared memory: its rows begin 8 banks apart, so that the lanes of a warp store to all banks.
template <int BM, int BN> struct Sums {
    static constexpr int ROW = BN + 8, BYTES = BM * ROW * 4;
    float* x;

    // A warpgroup's, 64 rows from `row` on.
    __device__ __forceinline__ void store(const float (&sum)[BN / 2], int row) const {
        int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        float* own = x + (row + warp * 16 + lane / 4) * ROW + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < BN / 8; ++n) {
            *reinterpret_cast<float2*>(own + n * 8) = make_float2(sum[4 * n], sum[4 * n + 1]);
            *reinterpret_cast<float2*>(own + n * 8 + 8 * ROW) = make_float2(sum[4 * n + 2], sum[4 * n + 3]);
        }
    }

    // Four neighbours of row r, those of all blocks of the cluster added up.
    __device__ __forceinline__ void load(float (&four)[4], cg::cluster_group cluster, int r, int c) const {
        for (int block = 0; block < int(cluster.num_blocks()); ++block) {
            float4 part = *reinterpret_cast<float4*>(cluster.map_shared_rank(x, block) + r * ROW + c);
            four[0] += part.x, four[1] += part.y, four[2] += part.z, four[3] += part.w;
        }
    }
};

template <class T, int BM, int BN, int BK, int PLACES>
constexpr int matmul_split_shared = PLACES * Tiles<T, BM, BN, BK>::BYTES > Sums<BM, BN>::BYTES
                                        ? PLACES * Tiles<T, BM, BN, BK>::BYTES
                                        : Sums<BM, BN>::BYTES;

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
    Sums<BM, BN> sums{reinterpret_cast<float*>(tiles)};
    Turn<PLACES> turn;
    if (threadIdx.x == BM * 2)
        for (int n = first; n < end; ++n, turn.advance()) {
            ring.wait_empty(turn);
            Tiles(tiles + turn.place * Tiles::CELLS).load(A, B, i0, j0, n * BK, g, &ring.full[turn.place]);
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
        sums.store(sum, row);
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

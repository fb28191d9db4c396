// C = A B by wgmma, for few tiles and long sums. A [G, M, K], B [G, K, N], C [G, M, N], row-major, halves.
//
//   C_ij = Σ_s Σ_{k of part s} A_ik B_kj      products of T's, sums in f32
//
// As v15, but that the blocks of a tile are no cluster: any multiprocessors will do, and so all have work. Each block
// leaves its sums in device memory. When all blocks of the grid have, each adds up all parts of some rows, always in the
// same order.
//
// Work: blockIdx.x = tile along N x parts + part, blockIdx.y = tile along M, blockIdx.z = g. A cooperative launch.
#include "lab/ring.cuh"
#include "part_sums.cuh"
#include "warpgroup.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK, int PLACES>
constexpr int matmul_grid_shared = PLACES * Tiles<T, BM, BN, BK>::BYTES;

// sums: [tiles, parts, BM, BN].
template <class T, int BM, int BN, int BK, int PLACES>
__global__ void __launch_bounds__(BM * 2 + 32)
    matmul_grid(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, T* C, float* sums, int parts,
                int M, int N, int K) {
    using Tiles = Tiles<T, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    int part = blockIdx.x % parts, along = blockIdx.x / parts;
    int i0 = blockIdx.y * BM, j0 = along * BN, g = blockIdx.z;
    if (threadIdx.x == 0) ring.init(BM / 64);
    __syncthreads();  // nobody waits at a barrier that is not there

    int steps = (K + BK - 1) / BK, first = steps * part / parts, end = steps * (part + 1) / parts;
    long long tile = (g * gridDim.y + blockIdx.y) * (gridDim.x / parts) + along;
    PartSums<BM, BN> of_tile{sums + tile * parts * BM * BN};
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
        of_tile.store(part, sum, row);
    }
    cooperative_groups::this_grid().sync();  // the sums of all blocks are there
    Matrix<T> c{C + g * 1ll * M * N, M, N};
    int rows = (BM + parts - 1) / parts, own = min(rows, BM - part * rows);
    for (int n = threadIdx.x; n < own * BN / 4; n += blockDim.x) {
        float four[4] = {};
        int r = part * rows + n / (BN / 4), j = n % (BN / 4) * 4;
        of_tile.load(four, parts, r, j);
        c.template store<true>(four, i0 + r, j0 + j);
    }
}

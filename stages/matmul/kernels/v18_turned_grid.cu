// C = A B by wgmma, of f32 as TF32, for few tiles and long sums. A [G, M, K], B [G, K, N], C [G, M, N], row-major, f32.
//
//   (Cᵀ)_ji = Σ_s Σ_{k of part s} (Bᵀ)_jk (Aᵀ)_ki      B is rounded to TF32, A is cut to it, sums in f32
//
// As v16, but that several blocks share a tile, as in v17: each adds up a part of k and leaves its sums in device memory.
// When all blocks of the grid have, each adds up all parts of some rows, always in the same order.
//
// Work: blockIdx.x = tile along N x parts + part, blockIdx.y = tile along M, blockIdx.z = g. A cooperative launch.
#include "lab/ptx/warp_roles.cuh"
#include "part_sums.cuh"
#include "turned.cuh"

using namespace lab;

// What comes behind the barrier is compiled for the fewest that a thread may have there: 24 would spill.
constexpr int SHARED_PRODUCER_REGISTERS = 56, SHARED_CONSUMER_REGISTERS = 224;

template <class T, int BM, int BN, int BK, int PLACES>
constexpr int matmul_turned_grid_shared = PLACES * TurnedTiles<T, BM, BN, BK>::BYTES;

// sums: [tiles, parts, BM, BN].
template <class T, int BM, int BN, int BK, int PLACES>
__global__ void __launch_bounds__(BN * 2 + 128, 1)
    matmul_turned_grid(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, T* C, float* sums,
                       int parts, int M, int N, int K) {
    using Tiles = TurnedTiles<T, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Ring<PLACES> ring;
    int part = blockIdx.x % parts, along = blockIdx.x / parts;
    int i0 = blockIdx.y * BM, j0 = along * BN, g = blockIdx.z;
    if (threadIdx.x == 0) ring.init(BN / 16);
    __syncthreads();  // nobody waits at a barrier that is not there

    int pairs = (K + 2 * BK - 1) / (2 * BK);  // of steps; the last may lie outside: zeros
    int first = pairs * part / parts * 2, end = pairs * (part + 1) / parts * 2;
    long long tile = (g * gridDim.y + blockIdx.y) * (gridDim.x / parts) + along;
    PartSums<BM, BN> of_tile{sums + tile * parts * BM * BN};
    bool multiplies = threadIdx.x < BN * 2;
    if (!multiplies) {
        registers_decrease<SHARED_PRODUCER_REGISTERS>();
        Turn<PLACES> turn;
        if (threadIdx.x == BN * 2)
            for (int n = first; n < end; ++n, turn.advance()) {
                ring.wait_empty(turn);
                Tiles(tiles + turn.place * Tiles::CELLS).load(A, B, i0, j0, n * BK, g, &ring.full[turn.place]);
            }
    } else {
        registers_increase<SHARED_CONSUMER_REGISTERS>();
        float sum[BM / 2];
        unsigned even[4][4], odd[4][4];
        TurnedConsumer<Tiles, T, PLACES> consumer{tiles, ring};
        for (int n = first; n < end; n += 2) {
            consumer.step(sum, even, n > first);
            consumer.step(sum, odd, true);
        }
        wgmma_wait<0>();
        store_turned<BM>(of_tile.of(part), sum, 0, Tiles::panel() + Tiles::chunk() * 4);
    }
    cooperative_groups::this_grid().sync();  // the sums of all blocks are there
    if (!multiplies) return;
    Matrix<T> c{C + g * 1ll * M * N, M, N};
    int rows = (BM + parts - 1) / parts, own = min(rows, BM - part * rows);
    for (int n = threadIdx.x; n < own * BN / 4; n += BN * 2) {
        float four[4] = {};
        int r = part * rows + n / (BN / 4), j = n % (BN / 4) * 4;
        of_tile.load(four, parts, r, j);
        c.template store<true>(four, i0 + r, j0 + j);
    }
}

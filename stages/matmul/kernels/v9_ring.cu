// C = A B by wgmma, the tiles asked for ahead. A [M, K], B [K, N], C [M, N], row-major, halves, a batch of such along
// blockIdx.z.
//
//   C_ij = Σ_k A_ik B_kj      products of T's, sums in f32
//
// As v8, but that there are places for PLACES tiles: while one is multiplied the next ones are on their way. When
// all have read a place, its next tiles are asked for.
#include "lab/ring.cuh"
#include "warpgroup.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK, int PLACES>
constexpr int matmul_ring_shared = PLACES * Tiles<T, BM, BN, BK>::BYTES;

template <class T, int BM, int BN, int BK, int PLACES>
__global__ void __launch_bounds__(BM * 2)
    matmul_ring(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, T* C, int M, int N, int K) {
    using Tiles = Tiles<T, BM, BN, BK>;
    DYNAMIC_TILES(T, tiles);
    __shared__ Mbarrier full[PLACES];
    int i0 = blockIdx.y * BM, j0 = blockIdx.x * BN, g = blockIdx.z, row = threadIdx.x / 128 * 64;
    if (threadIdx.x == 0) {
        for (int n = 0; n < PLACES; ++n) mbarrier_init(&full[n], 1);
        mbarrier_fence_init();
    }
    __syncthreads();  // the others wait at barriers that are there

    // ANCHOR: loop
    auto ask = [&](int n, int place) {
        if (threadIdx.x == 0 && n * BK < K)
            Tiles(tiles + place * Tiles::CELLS).load(A, B, i0, j0, n * BK, &full[place], g);
    };
    for (int n = 0; n < PLACES; ++n) ask(n, n);
    float sum[BN / 2];
    Turn<PLACES> turn;
    for (int n = 0; n * BK < K; ++n, turn.advance()) {
        mbarrier_wait(&full[turn.place], turn.parity);
        Tiles(tiles + turn.place * Tiles::CELLS).multiply(sum, row, n > 0);
        wgmma_wait<0>();
        __syncthreads();  // all have read these tiles: others may take their place
        ask(n + PLACES, turn.place);
    }
    // ANCHOR_END: loop
    store_sums<T, BN>({C + g * 1ll * M * N, M, N}, sum, i0 + row, j0);
}

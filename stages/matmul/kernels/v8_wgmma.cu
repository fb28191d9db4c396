// C = A B by wgmma. A [M, K], B [K, N], C [M, N], row-major, halves, a batch of such along blockIdx.z.
//
//   C_ij = Σ_k A_ik B_kj      products of T's, sums in f32
//
// A block computes BM x BN elements of C, each of its warpgroups 64 rows of them. One thread asks for the
// tiles, BK deep, of A and B: TMA brings them, and a barrier counts their bytes. All wait for it, multiply, and
// wait for that; then the next tiles take the place of these.
#include "warpgroup.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK> constexpr int matmul_wgmma_shared = Tiles<T, BM, BN, BK>::BYTES;

template <class T, int BM, int BN, int BK>
__global__ void __launch_bounds__(BM * 2)
    matmul_wgmma(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, T* C, int M, int N, int K) {
    DYNAMIC_TILES(T, place);
    Tiles<T, BM, BN, BK> tiles(place);
    __shared__ Mbarrier full;
    int i0 = blockIdx.y * BM, j0 = blockIdx.x * BN, g = blockIdx.z, row = threadIdx.x / 128 * 64;
    if (threadIdx.x == 0) {
        mbarrier_init(&full, 1);
        mbarrier_fence_init();
    }
    __syncthreads();  // the others wait at a barrier that is there

    // ANCHOR: loop
    float sum[BN / 2];
    for (int n = 0; n * BK < K; ++n) {
        if (threadIdx.x == 0) tiles.load(A, B, i0, j0, n * BK, &full, g);
        mbarrier_wait(&full, n % 2);
        tiles.multiply(sum, row, n > 0);
        wgmma_wait<0>();
        __syncthreads();  // all have read these tiles: the next go to their place
    }
    // ANCHOR_END: loop
    store_sums<T, BN>({C + g * 1ll * M * N, M, N}, sum, i0 + row, j0);
}

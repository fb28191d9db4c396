// C = A B by wgmma. A [M, K], B [K, N], C [M, N], row-major, halves, a batch of such along blockIdx.z.
//
//   C_ij = Σ_k A_ik B_kj      products of T's, sums in f32
//
// A block computes BM x BN elements of C, each of its warpgroups 64 rows of them. One thread asks for the
// tiles, BK deep, of A and B: TMA brings them, swizzled in spans of 128 bytes, and a barrier counts their
// bytes. All wait for it, multiply, and wait for that; then the next tiles take the place of these.
//
// A span is BK elements of k of a row of A, so that its tile is one box. Of B, consecutive columns of which
// lie side by side, it is 64 columns of one k: a box is a panel of these, and wgmma takes it transposed.
// What of a box lies outside of its matrix is zero.
#include "lab/ptx/dynamic_shared.cuh"
#include "lab/ptx/tensor_copy.cuh"
#include "lab/ptx/wgmma.cuh"
#include "tensor.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK> constexpr int matmul_wgmma_shared = (BM + BN) * BK * sizeof(T);

template <class T, int BM, int BN, int BK>
__global__ void __launch_bounds__(BM * 2)
    matmul_wgmma(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, T* C, int M,
                 int N, int K) {
    constexpr int SPAN = 128, STEP = 32 / sizeof(T), PANEL = SPAN / sizeof(T);
    static_assert(BK * sizeof(T) == SPAN && BM % 64 == 0 && BN % PANEL == 0, "whole spans");
    DYNAMIC_TILES(T, of_a);
    T* of_b = of_a + BM * BK;
    __shared__ Mbarrier full;
    int i0 = blockIdx.y * BM, j0 = blockIdx.x * BN, g = blockIdx.z, group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        mbarrier_init(&full, 1);
        mbarrier_fence_init();
    }
    __syncthreads();  // the others wait at a barrier that is there

    // ANCHOR: loop
    float sum[BN / 2];
    auto a = k_major<SPAN>(of_a + group * 64 * BK, 8 * SPAN);
    auto b = mn_major<SPAN>(of_b, BK * SPAN, 8 * SPAN);
    for (int n = 0; n * BK < K; ++n) {
        if (threadIdx.x == 0) {
            mbarrier_arrive_expect(&full, (BM + BN) * BK * sizeof(T));
            tensor_load(of_a, A, {n * BK, i0, g}, &full);
            for (int j = 0; j < BN; j += PANEL)
                tensor_load(of_b + j * BK, B, {j0 + j, n * BK, g}, &full);
        }
        mbarrier_wait(&full, n % 2);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < BK; k += STEP)
            wgmma<T, BN, false, true>(sum, advance(a, k * sizeof(T)), advance(b, k * SPAN), n + k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        __syncthreads();  // all have read these tiles: the next go to their place
    }
    // ANCHOR_END: loop

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Matrix<T> c{C + g * 1ll * M * N, M, N};
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < BN / 8; j += 2) {
            float four[4];
            exchange(four, &sum[4 * j + 2 * i], &sum[4 * (j + 1) + 2 * i]);
            c.template store<true>(four, i0 + warp * 16 + i * 8 + lane / 4,
                                   j0 + (j + lane % 2) * 8 + lane % 4 / 2 * 4);
        }
}

// C = A B on the tensor cores: A [M, K], B [K, N], C [M, N], row-major, a batch of such along
// blockIdx.z.
//
//   C_ij = Σ_k A_ik B_kj      products of T's (f32 is rounded to TF32), sums in f32
//
// A block computes BM x BN elements of C, its warps WM x WN each, as tiles of 16 x 8, whose sums lie
// in the registers of a warp's lanes. Both tiles, BK deep, go by cp.async to shared memory, swizzled,
// in STAGES places. When one has landed, the place of the one before it is given to a further one; then, a
// step of 32 bytes of k after the other, ldmatrix brings elements to their lanes, to be multiplied. B is
// row-major, so that a column of it, which the tensor cores ask for, lies across rows: ldmatrix
// transposes halves on the way. Of 4-byte elements it cannot, and each lane loads its own.
//
// PACK elements are copied at a time: 16 bytes, which asks that K and N be a multiple of as many, or
// one by one.
#include "lab/ptx/dynamic_shared.cuh"
#include "tensor.cuh"

using namespace lab;

template <class T, int BM, int BN, int BK, int, int, int STAGES, int>
constexpr int matmul_mma_shared = STAGES * (BM + BN) * BK * sizeof(T);

template <class T, int BM, int BN, int BK, int WM, int WN, int STAGES, int PACK>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32)
    matmul_mma(const T* A, const T* B, T* C, int M, int N, int K) {
    constexpr int THREADS = BM / WM * (BN / WN) * 32, CELLS = 16 / sizeof(T), STEP = MMA_K<T>;
    // Rows of B's tile are read four at a time if not by ldmatrix, and eight columns of each.
    using TileA = SwizzledTile<T, BK>;
    using TileB = SwizzledTile<T, BN, sizeof(T) == 4 ? 2 : 1>;
    constexpr int STAGE = BM * BK + BK * BN;  // a tile of A, then one of B
    DYNAMIC_SHARED(T, tiles);
    Matrix<const T> a{A + blockIdx.z * 1ll * M * K, M, K}, b{B + blockIdx.z * 1ll * K * N, K, N};
    Matrix<T> c{C + blockIdx.z * 1ll * M * N, M, N};
    int i0 = blockIdx.y * BM, j0 = blockIdx.x * BN;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int wi = warp / (BN / WN) * WM, wj = warp % (BN / WN) * WN;

    // The n-th tiles along k.
    auto copy = [&](int n) {
        T *to_a = tiles + n % STAGES * STAGE, *to_b = to_a + BM * BK;
        for (int e = threadIdx.x * CELLS; e < BM * BK; e += THREADS * CELLS) {
            int i = e / BK, k = e % BK;
            copy_chunk<PACK>(to_a + TileA::offset(i, k), a.at(i0 + i, n * BK + k), i0 + i < M,
                             K - n * BK - k);
        }
        for (int e = threadIdx.x * CELLS; e < BK * BN; e += THREADS * CELLS) {
            int k = e / BN, j = e % BN;
            copy_chunk<PACK>(to_b + TileB::offset(k, j), b.at(n * BK + k, j0 + j), n * BK + k < K,
                             N - j0 - j);
        }
        async_commit();
    };

    // ANCHOR: loop
    float sum[WM / 16][WN / 8][4] = {};
    for (int n = 0; n + 1 < STAGES; ++n) copy(n);
    for (int n = 0; n * BK < K; ++n) {
        async_wait<STAGES - 2>();
        __syncthreads();  // tiles n have landed, and those before are read: the next go to their place
        copy(n + STAGES - 1);
        T *of_a = tiles + n % STAGES * STAGE, *of_b = of_a + BM * BK;
#pragma unroll
        for (int k = 0; k < BK; k += STEP) {
            unsigned a_k[WM / 16][4], b_k[WN / 16][4];
#pragma unroll
            for (int i = 0; i < WM / 16; ++i)
                load_a<TileA>(a_k[i], of_a, wi + i * 16, k);
#pragma unroll
            for (int j = 0; j < WN / 16; ++j) load_b<TileB>(b_k[j], of_b, k, wj + j * 16);
#pragma unroll
            for (int i = 0; i < WM / 16; ++i)
#pragma unroll
                for (int j = 0; j < WN / 8; ++j)
                    multiply_add<T>(sum[i][j], a_k[i], b_k[j / 2][j % 2 * 2],
                                    b_k[j / 2][j % 2 * 2 + 1]);
        }
    }
    // ANCHOR_END: loop
#pragma unroll
    for (int i = 0; i < 2 * (WM / 16); ++i)
#pragma unroll
        for (int j = 0; j < WN / 8; j += 2) {
            float four[4];
            exchange(four, &sum[i / 2][j][i % 2 * 2], &sum[i / 2][j + 1][i % 2 * 2]);
            c.template store<PACK != 1>(four, i0 + wi + i * 8 + g,
                                        j0 + wj + (j + t % 2) * 8 + t / 2 * 4);
        }
}

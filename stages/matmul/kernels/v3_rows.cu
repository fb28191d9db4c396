// C = A B, a tile of C a block, TM rows of it a thread:  C_ij = Σ_k0 Σ_k As_ik Bs_kj
//
// Work split: a block BM x BN elements of C, a thread TM elements of one column; blockIdx.z is the
// matrix of the batch. An element of Bs, once in a register, is used TM times: TM + 1 loads from
// shared memory for TM multiply-adds, where one element a thread takes 2 for each.
//
// A: M x K, B: K x N, C: M x N, row-major.
#include "lab/tile.cuh"

using namespace lab;

// ANCHOR: rows
template <class T, int BM, int BN, int BK, int TM>
__global__ void __launch_bounds__(BM* BN / TM)
    matmul_rows(const T* __restrict__ A, const T* __restrict__ B, T* __restrict__ C, int M, int N,
                int K) {
    constexpr int THREADS = BM * BN / TM;
    static_assert(BM % TM == 0, "BM must be a multiple of TM");
    static_assert(THREADS <= 1024, "a block has 1024 threads at most: raise TM, or lower BM or BN");
    static_assert(BM * BK % THREADS == 0 && BK * BN % THREADS == 0,
                  "each thread loads equally many: raise BK to a multiple of BM / TM and BN / TM");
    __shared__ float As[BM][BK], Bs[BK][BN];
    Matrix<const T> a{A + blockIdx.z * 1ll * M * K, M, K}, b{B + blockIdx.z * 1ll * K * N, K, N};
    Matrix<T> c{C + blockIdx.z * 1ll * M * N, M, N};
    int i0 = blockIdx.y * BM, j0 = blockIdx.x * BN;
    int ti = threadIdx.x / BN * TM, tj = threadIdx.x % BN;

    float sum[TM] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int e = threadIdx.x; e < BM * BK; e += THREADS)
            As[e / BK][e % BK] = a.cell(i0 + e / BK, k0 + e % BK);
        for (int e = threadIdx.x; e < BK * BN; e += THREADS)
            Bs[e / BN][e % BN] = b.cell(k0 + e / BN, j0 + e % BN);
        __syncthreads();  // a thread reads what others have stored
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            float b_kj = Bs[k][tj];
#pragma unroll
            for (int i = 0; i < TM; ++i) sum[i] += As[ti + i][k] * b_kj;
        }
        __syncthreads();  // the tiles are read: the next ones may overwrite them
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
        if (c.inside(i0 + ti + i, j0 + tj))
            *c.at(i0 + ti + i, j0 + tj) = from_math<T>(sum[i]);
}
// ANCHOR_END: rows

// C = A B:  C_ij = Σ_k A_ik B_kj,  i < M, j < N, k < K
//
// Work split: a thread an element, 32 x 32 threads a block; blockIdx.z is the matrix of the batch.
// threadIdx.x runs down the rows of C: the lanes of a warp stand in one column, a row apart.
//
// A: M x K, B: K x N, C: M x N, row-major.
#include "lab/scalar.cuh"

using namespace lab;

// ANCHOR: naive
template <class T>
__global__ void matmul_naive(const T* __restrict__ A, const T* __restrict__ B, T* __restrict__ C,
                             int M, int N, int K) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= M || j >= N) return;
    const T* a = A + (blockIdx.z * 1ll * M + i) * K;
    const T* b = B + blockIdx.z * 1ll * K * N + j;

    float sum = 0;
    for (int k = 0; k < K; ++k) sum += to_math(a[k]) * to_math(b[k * 1ll * N]);
    C[(blockIdx.z * 1ll * M + i) * N + j] = from_math<T>(sum);
}
// ANCHOR_END: naive

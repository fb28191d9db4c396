// C = A B:  C_ij = Σ_k A_ik B_kj,  i < M, j < N, k < K
//
// Work split: a thread an element, 32 x 32 threads a block; blockIdx.z is the matrix of the batch.
// threadIdx.x runs along the columns of C: the lanes of a warp are neighbours in a row of B and of
// C, and all ask for the same element of A.
//
// A: M x K, B: K x N, C: M x N, row-major.
#include "lab/scalar.cuh"

using namespace lab;

// ANCHOR: coalesced
template <class T>
__global__ void matmul_coalesced(const T* __restrict__ A, const T* __restrict__ B,
                                 T* __restrict__ C, int M, int N, int K) {
    int i = blockIdx.y * blockDim.y + threadIdx.y;
    int j = blockIdx.x * blockDim.x + threadIdx.x;
    // ANCHOR_END: coalesced
    if (i >= M || j >= N) return;
    const T* a = A + (blockIdx.z * 1ll * M + i) * K;
    const T* b = B + blockIdx.z * 1ll * K * N + j;

    float sum = 0;
    for (int k = 0; k < K; ++k) sum += to_math(a[k]) * to_math(b[k * 1ll * N]);
    C[(blockIdx.z * 1ll * M + i) * N + j] = from_math<T>(sum);
}

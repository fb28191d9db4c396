// C = A B, a tile of C a block:  C_ij = Σ_k0 Σ_k As_ik Bs_kj,  k0 in steps of TILE
//
// Work split: a block TILE x TILE elements of C, a thread an element; blockIdx.z is the matrix of
// the batch. The block takes a tile of A and a tile of B into shared memory at a time: each element
// is fetched once for the TILE threads that use it.
//
// A: M x K, B: K x N, C: M x N, row-major.
#include "lab/tile.cuh"

using namespace lab;

// ANCHOR: tiled
template <class T, int TILE>
__global__ void __launch_bounds__(TILE* TILE)
    matmul_tiled(const T* __restrict__ A, const T* __restrict__ B, T* __restrict__ C, int M, int N,
                 int K) {
    static_assert(TILE * TILE <= 1024, "a thread an element: lower TILE to 32");
    __shared__ float As[TILE][TILE], Bs[TILE][TILE];
    Matrix<const T> a{A + blockIdx.z * 1ll * M * K, M, K}, b{B + blockIdx.z * 1ll * K * N, K, N};
    Matrix<T> c{C + blockIdx.z * 1ll * M * N, M, N};
    int ti = threadIdx.x / TILE, tj = threadIdx.x % TILE;
    int i = blockIdx.y * TILE + ti, j = blockIdx.x * TILE + tj;

    float sum = 0;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        As[ti][tj] = a.cell(i, k0 + tj);
        Bs[ti][tj] = b.cell(k0 + ti, j);
        __syncthreads();  // a thread reads what TILE others have stored
        for (int k = 0; k < TILE; ++k) sum += As[ti][k] * Bs[k][tj];
        __syncthreads();  // the tiles are read: the next ones may overwrite them
    }
    if (c.inside(i, j)) *c.at(i, j) = from_math<T>(sum);
}
// ANCHOR_END: tiled

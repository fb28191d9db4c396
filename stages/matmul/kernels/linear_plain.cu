// A linear layer and its gradients on CUDA cores, of any type and any sizes: what linear.cu does where there is no wgmma, and
// in f32.
//
//   C_ij = f(scale Σ_k A_ik B_kj + bias_j) + R_ij      or C_ij += the same
//
// G matrices, how A and B lie, and the activations f: as in linear.cu.
//
// Work split: a block has 64 x 64 of C, blockIdx.z is the matrix; each of its 64 threads has 8 x 8 sums, as in v5_warps. Tiles
// of A and B are stored with rows of k, whichever way they lie: neighbouring threads read neighbouring elements of memory.
#include "lab/along.cuh"
#include "lab/epilogue.cuh"
#include "lab/tile.cuh"

using namespace lab;

constexpr int SIDE = 64, DEEP = 16, EACH = 8, THREADS = SIDE / EACH * SIDE / EACH;
// Each row of k begins four banks further on: lanes that store a column of k touch every bank once.
constexpr int ROW = SIDE + 4;

// 64 rows or columns of an operand from i0 on, at k0 and the 15 behind it; what lies outside is zero.
template <Along LIES, class T>
__device__ __forceinline__ void load_tile(float (&tile)[DEEP][ROW], const T* x, int side, int K, int i0, int k0) {
#pragma unroll 4
    for (int e = threadIdx.x; e < SIDE * DEEP; e += THREADS) {
        int i = LIES == ALONG_K ? e / DEEP : e % SIDE, k = LIES == ALONG_K ? e % DEEP : e / SIDE;
        bool inside = i0 + i < side && k0 + k < K;
        long long at = LIES == ALONG_K ? (i0 + i) * 1ll * K + k0 + k : (k0 + k) * 1ll * side + i0 + i;
        tile[k][i] = inside ? float(to_math(x[at])) : 0.0f;
    }
}

__device__ __forceinline__ float activate(int activation, float v) {
    switch (activation) {
        case RELU: return Relu{}(v);
        case GELU: return Gelu{}(v);
        case SILU: return Silu{}(v);
        default: return v;
    }
}

template <class T, class OUT, Along A_LIES, Along B_LIES>
__global__ void __launch_bounds__(THREADS)
    linear_plain(const T* __restrict__ A, const T* __restrict__ B, OUT* C, const T* bias, const OUT* R, int M, int N, int K,
                 float scale, int activation, int has_bias, int has_added, int accumulates) {
    __shared__ __align__(16) float As[DEEP][ROW], Bs[DEEP][ROW];
    long long g = blockIdx.z;
    const T *a = A + g * M * K, *b = B + g * K * N;
    int i0 = blockIdx.y * SIDE, j0 = blockIdx.x * SIDE;
    int ti = threadIdx.x / (SIDE / EACH) * 4, tj = threadIdx.x % (SIDE / EACH) * 4;

    float sum[EACH][EACH] = {};
    for (int k0 = 0; k0 < K; k0 += DEEP) {
        load_tile<A_LIES>(As, a, M, K, i0, k0);
        load_tile<B_LIES>(Bs, b, N, K, j0, k0);
        __syncthreads();  // a thread reads what others have stored
#pragma unroll
        for (int k = 0; k < DEEP; ++k) {
            float a_k[EACH], b_k[EACH];
            load_fours(a_k, &As[k][ti], SIDE / 2);
            load_fours(b_k, &Bs[k][tj], SIDE / 2);
#pragma unroll
            for (int i = 0; i < EACH; ++i)
#pragma unroll
                for (int j = 0; j < EACH; ++j) sum[i][j] += a_k[i] * b_k[j];
        }
        __syncthreads();  // the tiles are read: the next ones may overwrite them
    }
#pragma unroll
    for (int r = 0; r < EACH; ++r)
#pragma unroll
        for (int c = 0; c < EACH; ++c) {
            int i = i0 + ti + r % 4 + r / 4 * SIDE / 2, j = j0 + tj + c % 4 + c / 4 * SIDE / 2;
            if (i >= M || j >= N) continue;
            long long at = (g * M + i) * N + j;
            float v = activate(activation, scale * sum[r][c] + (has_bias ? float(to_math(bias[j])) : 0.0f));
            if (has_added) v += float(to_math(R[at]));
            if (accumulates) v += float(to_math(C[at]));
            C[at] = from_math<OUT>(v);
        }
}

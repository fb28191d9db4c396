// y = s (x Wᵀ) + residual of few rows: a thread an output.
//
//     y_rn = s_n Σ_k W_nk x_rk + residual_rn
//
// Work split: thread n of row r walks down row n of W. Neighbouring threads read neighbouring rows: each load of a warp touches
// 32 sectors, and uses 2 or 4 of the 32 bytes of each.
//
// weight: N x K; x: R x K; residual, y: R x N.
#include "few_rows.cuh"

using namespace lab;

constexpr int THREADS = 128;

template <class T>
__global__ void __launch_bounds__(THREADS)
    few_rows_naive(const T* __restrict__ weight, const T* __restrict__ x, const T* __restrict__ residual, T* __restrict__ y,
                   int R, int N, int K, int has_residual) {
    int n = blockIdx.x * THREADS + threadIdx.x, r = blockIdx.y;
    if (n >= N) return;
    const T *w = weight + 1ll * n * K, *of_row = x + 1ll * r * K;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += to_math(w[k]) * to_math(of_row[k]);
    long long at = 1ll * r * N + n;
    if (has_residual) sum += to_math(residual[at]);
    y[at] = from_math<T>(sum);
}

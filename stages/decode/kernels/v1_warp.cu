// y = x Wᵀ + residual of few rows: a warp a row of W.
//
//     y_rn = Σ_k W_nk x_rk + residual_rn
//
// Work split: a warp has row n. Its lanes load 16 bytes each, 512 contiguous bytes, and multiply them with the same columns of
// all ROWS rows of x, which the L1 cache keeps. A butterfly adds up the lanes. W crosses device memory once, whatever R is.
// A lane waits for one load before it asks for the next: a warp has 512 bytes in flight.
//
// weight: N x K; x: R x K; residual, y: R x N. K is a multiple of 16.
#include "few_rows.cuh"

using namespace lab;

constexpr int THREADS = 256;

template <class T, int ROWS>
__global__ void __launch_bounds__(THREADS)
    few_rows_warp(const T* __restrict__ weight, const T* __restrict__ x, const T* __restrict__ residual, T* __restrict__ y,
                  int R, int N, int K, int has_residual) {
    constexpr int E = Pack<T>::N;
    int n = (blockIdx.x * THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (n >= N) return;
    const T* row = weight + 1ll * n * K;
    float sum[ROWS] = {};
#pragma unroll 1
    for (int k = lane * E; k < K; k += 32 * E) {
        Pack<T> w = load_pack(row + k);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (r >= R) break;
            Pack<T> v = load_pack(x + 1ll * r * K + k);
#pragma unroll
            for (int i = 0; i < E; ++i) sum[r] += w.v[i] * v.v[i];
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (r >= R) break;
        sum[r] = warp_reduce(sum[r], Add{});
        long long at = 1ll * r * N + n;
        if (lane == 0) y[at] = from_math<T>(sum[r] + (has_residual ? to_math(residual[at]) : 0.0f));
    }
}

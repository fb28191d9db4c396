// A gradient in halves, as it joins those in f32; and numbers of f32 in a narrower type:
//
//     sum_n = x_n          or, to what other parts of the batch have left, sum_n += x_n
//     y_n = x_n            rounded once
//
// Work split: a thread N elements.
//
// x, sum, y: n elements.
#include "strip.cuh"

using namespace lab;

template <class T, int N>
__global__ void __launch_bounds__(PASS_THREADS)
    widen(const T* __restrict__ x, float* __restrict__ sum, long long n, bool accumulates) {
    constexpr int EACH = N > 1 ? 4 : 1;  // floats of 16 bytes
    long long first = (blockIdx.x * 1ll * PASS_THREADS + threadIdx.x) * N;
    if (first >= n) return;
    float cells[N];
    load_cells<N>(cells, x + first);
#pragma unroll
    for (int i = 0; i < N; i += EACH) {
        float own[EACH] = {};
        if (accumulates) load_cells<EACH>(own, sum + first + i);
#pragma unroll
        for (int k = 0; k < EACH; ++k) own[k] += cells[i + k];
        store_cells<EACH>(sum + first + i, own);
    }
}

template <class T, int N>
__global__ void __launch_bounds__(PASS_THREADS) narrow(const float* __restrict__ x, T* __restrict__ y, long long n) {
    constexpr int EACH = N > 1 ? 4 : 1;  // floats of 16 bytes
    long long first = (blockIdx.x * 1ll * PASS_THREADS + threadIdx.x) * N;
    if (first >= n) return;
    float cells[N];
#pragma unroll
    for (int i = 0; i < N; i += EACH) {
        float own[EACH];
        load_cells<EACH>(own, x + first + i);
#pragma unroll
        for (int k = 0; k < EACH; ++k) cells[i + k] = own[k];
    }
    store_cells<N>(y + first, cells);
}
